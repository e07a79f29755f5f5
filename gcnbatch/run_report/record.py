"""What a report says of a finished run, read from its folder, and the test rows if its data set is still there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.config import Config, resolve
from gcnbatch.data.checks import check_targets
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError, InputError
from gcnbatch.predictions import read_outputs
from gcnbatch.text import printable
from gcnbatch.training import run_files
from gcnbatch.training.digest import DIGEST
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.fitted import Fit, read_fits
from gcnbatch.training.plan import GENERATED
from gcnbatch.training.report import METRICS, PREDICTIONS
from gcnbatch.training.run import CONFIG, ENVIRONMENT


@dataclass(frozen=True)
class TestRows:
    """The rows that a run tested: each once, with the mean of the outputs of the models that tested it.

    Parameters
    ----------
    header : Header
    graphs : int
        Graphs of the whole set.
    rows : (R,) int64
        Their numbers in the data set, ascending.
    ids : (R,) str
    y, outputs
        As in `gcnbatch.training.metrics.evaluate`.
    smiles : list of R str, or None
        None if the set stores none.
    """

    __test__ = False  # no test case

    header: Header
    graphs: int
    rows: NDArray[np.int64]
    ids: NDArray[np.str_]
    y: NDArray[Any]
    outputs: NDArray[np.float32]
    smiles: list[str] | None


@dataclass(frozen=True)
class Record:
    """A finished run.

    Parameters
    ----------
    folder : Path
    config : Config or None
        None for a baseline.
    environment : dict
        env.json; empty if it is not there.
    data : Path
    digest : str
        SHA-256 of the data set.
    metrics : dict
        metrics.json.
    fits : list of Fit
    tested : TestRows or None
    why_not : str
        Why there are no test rows.
    """

    folder: Path
    config: Config | None
    environment: dict[str, Any]
    data: Path
    digest: str
    metrics: dict[str, Any]
    fits: list[Fit]
    tested: TestRows | None
    why_not: str

    @property
    def name(self) -> str:
        """The run's name: that of its configuration, else of its folder."""
        return self.config.name if self.config else self.folder.resolve().name

    @property
    def one_split(self) -> bool:
        """Whether all models share their test rows, so that these can be resampled."""
        return len({fit.block for fit in self.fits}) == 1

    @property
    def models(self) -> str:
        """The models of a run with several: "5 folds", "2 repeats of 5 folds", "3 models"."""
        repeats, folds = (len(set(numbers)) for numbers in zip(*(fit.block for fit in self.fits), strict=True))
        if folds == 1:
            return f"{len(self.fits)} models"
        return f"{folds} folds" if repeats == 1 else f"{repeats} repeats of {folds} folds"

    @property
    def test(self) -> dict[str, Any]:
        """Figures of the test rows; with several models, of the mean of their outputs."""
        found = self.metrics.get("out_of_fold", self.metrics.get("test"))
        return found if isinstance(found, dict) else {}


def read(folder: Path, check_data: bool) -> Record:
    """Read a finished run.

    Parameters
    ----------
    folder : Path
    check_data : bool
        Compare the data set's digest with that of the run.

    Raises
    ------
    InputError
        When the folder is not that of a finished run, or a file in it is damaged.
    """
    fits = read_fits(folder)
    metrics = run_files.read_figures(folder / METRICS)
    config = None
    if (folder / CONFIG).is_file():
        config = resolve(run_files.read_toml(folder / CONFIG), where=str(folder / CONFIG))
    environment = run_files.read_json(folder / ENVIRONMENT, "a JSON object") if (folder / ENVIRONMENT).exists() else {}
    digest, _, path = run_files.read_text(folder / DIGEST, "the data set's digest").strip().partition("  ")
    data = folder / GENERATED if (folder / GENERATED).is_file() else Path(path)
    tested, why_not = None, ""
    try:
        if check_data and fileio.sha256(data) != digest:
            why_not = "the data set changed since the run"
        else:
            tested = _test_rows(data, fits)
            why_not = "" if tested else "the run has no test rows"
    except GcnbatchError as error:
        why_not = printable(str(error), 200)
    environment = environment if isinstance(environment, dict) else {}
    return Record(folder, config, environment, data, digest, metrics, fits, tested, why_not)


def _test_rows(path: Path, fits: list[Fit]) -> TestRows | None:
    if not any(len(fit.split.test) for fit in fits):
        return None
    with Dataset(path, check=False) as data:
        rows, outputs = pooled(data.header, fits)
        if rows[-1] >= len(data.y):
            raise InputError(str(path), f"{len(data.y)} rows", f"more than {rows[-1]}, as in {SPLITS}")
        check_targets(path, data.header, data.y)
        smiles = data.smiles()
        return TestRows(
            data.header,
            data.n_graphs,
            rows,
            data.ids[rows],
            data.y[rows],
            outputs,
            [smiles[row] for row in rows] if smiles is not None else None,
        )


def pooled(header: Header, fits: list[Fit]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows that a model tested, ascending, and the mean of the outputs of those models.

    Of a row that one model tested, the mean is that model's output to the bit.
    """
    parts = [read_outputs(fit.folder / PREDICTIONS, header, len(fit.split.test)) for fit in fits]
    rows, at, count = np.unique(
        np.concatenate([fit.split.test for fit in fits]), return_inverse=True, return_counts=True
    )
    total = np.zeros((len(rows), header.n_outputs))
    np.add.at(total, at, np.concatenate(parts))
    return rows, (total / count[:, None]).astype(np.float32)
