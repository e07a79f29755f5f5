"""The digest of a run's data, beside the run: those who open the data again must find the same."""

from __future__ import annotations

from pathlib import Path

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.training import run_files
from gcnbatch.training.experiment import Experiment

DIGEST = "data.sha256"


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
    place = folder / DIGEST
    if run_files.read_text(place, "the data set's digest").split()[:1] != [experiment.fingerprint]:
        path = str(experiment.dataset.path)
        raise InputError(path, wrong, f"the data of {place}", "Restore it, or start anew.")
