"""Baselines and comparisons of runs from Python, and the commands ``baseline`` and ``compare-runs``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import Settings, load
from gcnbatch.api.run import Run, folders_of

if TYPE_CHECKING:
    from gcnbatch.api.options import ConfigLike
    from gcnbatch.fileio import StrPath


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs.

    Parameters
    ----------
    folder : Path
        Holds ``comparison.json``, ``scores.csv``, ``comparison.png`` and ``report.html``.
    content : dict
        ``comparison.json``: metric, confidence level, method, runs with their scores, pairs with their intervals.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def verdicts(self) -> list[str]:
        """A sentence per pair of runs."""
        return [pair["verdict"] for pair in self.content["pairs"]]


def compare_runs(
    runs: Iterable[Run | StrPath],
    *,
    out: StrPath | None = None,
    metric: str = "",
    level: float = 0.95,
    parquet: bool = False,
) -> Comparison:
    """Compare runs on the same data and splits; write a report.

    Parameters
    ----------
    runs : iterable of Run or path
    out : path
        Folder of the report; None: ``runs/compare-runs-<time>``.
    metric : str
        Figure of the test rows; empty: that which picks the best epoch by default.
    level : float
        Confidence level of the intervals.
    parquet : bool
        Write ``scores.parquet`` beside ``scores.csv``.

    Raises
    ------
    InputError
        When the runs cannot be compared, or a score is not defined.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 6, [0.2, 1.9, -0.3, 0.1] * 6)
    >>> gcnbatch.write("molecules.h5", graphs)
    >>> runs = [
    ...     gcnbatch.train({"model": {"widths": [width]}}, "molecules.h5", epochs=1, folds=2, out=f"run{width}")
    ...     for width in (2, 4)
    ... ]
    >>> found = gcnbatch.compare_runs(runs, out="compared")
    >>> found.content["metric"], len(found.verdicts)
    ('rmse', 1)
    """
    from gcnbatch.run_comparison.comparison import compare

    folder, found = compare(folders_of(runs), None if out is None else Path(out), metric, level, parquet)
    return Comparison(folder, found.as_dict())


def baseline(
    config: ConfigLike | None = None,
    data: StrPath | None = None,
    *,
    out: StrPath | None = None,
    seed: int | None = None,
    folds: int | None = None,
    repeats: int | None = None,
    trees: int = 100,
    settings: Settings | None = None,
    smiles_column: str = "",
    target_columns: Sequence[str] = (),
    quiet: bool = True,
    say: Callable[[str], object] = lambda line: None,
) -> Run:
    """Fit a random forest to the rows that `train` would use: count-Morgan fingerprints and RDKit descriptors.

    Parameters
    ----------
    config, seed, folds, repeats, settings, out, quiet, say
        As for `gcnbatch.train`; of the configuration, only data, split, seed and name matter.
    data : path
        HDF5 data set with SMILES, or a table of molecules.
    trees : int
        Trees of each forest.
    smiles_column, target_columns
        Columns of a table; empty: detected.

    Returns
    -------
    Run
        With metrics and test predictions, but without a model to predict with.

    Raises
    ------
    InputError
        When the data have no SMILES, or data and configuration do not match.

    Examples
    --------
    >>> import gcnbatch
    >>> smiles = ["CCO", "c1ccccc1", "CC#N", "CCN"] * 6
    >>> graphs = gcnbatch.from_smiles(smiles, [0.2, 1.9, -0.3, 0.1] * 6)
    >>> gcnbatch.write("molecules.h5", graphs, smiles=smiles)
    >>> gcnbatch.baseline({}, "molecules.h5", trees=5, out="forest").metrics["trees"]
    5
    """
    from gcnbatch.baselines import start
    from gcnbatch.baselines.runs import TableColumns
    from gcnbatch.run_report.files import update

    options = {
        ("data", "path"): None if data is None else str(data),
        ("seed",): seed,
        ("split", "folds"): folds,
        ("split", "repeats"): repeats,
    }
    checked = load(config, options, settings or {})
    columns, place = TableColumns(smiles_column, tuple(target_columns)), None if out is None else Path(out)
    folder, _ = start(checked, place, trees, columns, say, progress=not quiet)
    update(folder)
    return Run(folder)
