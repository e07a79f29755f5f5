"""The digest of a run's data, beside the run: those who open the data again must find the same."""

from __future__ import annotations

import re
from pathlib import Path

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.training import run_files
from gcnbatch.training.experiment import Experiment

DIGEST = "data.sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}(?=\s|$)")
_MOST_BYTES = 1 << 16  # of a digest and a path


def record(folder: Path, experiment: Experiment) -> None:
    """Write the digest in the format of ``sha256sum``."""
    fileio.write_text(folder / DIGEST, f"{experiment.fingerprint}  {experiment.dataset.path}\n")


def check(folder: Path, experiment: Experiment, wrong: str) -> None:
    """Refuse data with another digest than that of the folder.

    Parameters
    ----------
    wrong : str
        What to say of them.

    Raises
    ------
    InputError
    """
    if read(folder) != experiment.fingerprint:
        path = str(experiment.dataset.path)
        raise InputError(path, wrong, f"the data of {folder / DIGEST}", "Restore it, or start anew.")


def read(folder: Path) -> str:
    """Return the digest of the data of the run in this folder.

    Raises
    ------
    InputError
    """
    expected = "the data set's digest"
    line = _DIGEST.match(run_files.read_text(folder / DIGEST, expected, _MOST_BYTES))
    if line is None:
        raise InputError(str(folder / DIGEST), "not a line of sha256sum", expected, "Restore the file.")
    return line[0]
