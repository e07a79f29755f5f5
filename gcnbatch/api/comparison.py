"""Baselines and comparisons of runs from Python, and the commands ``baseline`` and ``compare-runs``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import keys_of, load
from gcnbatch.api.run import Run, folders_of
from gcnbatch.options.declaration import arguments
from gcnbatch.options.results import CompareRunsOptions
from gcnbatch.options.training import BaselineOptions

if TYPE_CHECKING:
    pass


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


@arguments(CompareRunsOptions)
def compare_runs(given: CompareRunsOptions) -> Comparison:
    """Compare runs on the same data and splits; write a report.

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

    place = None if given.out is None else Path(given.out)
    folder, found = compare(folders_of(given.runs), place, given.metric, given.level, given.parquet)
    return Comparison(folder, found.as_dict())


@arguments(BaselineOptions)
def baseline(given: BaselineOptions) -> Run:
    """Fit a random forest to the rows that `train` would use: count-Morgan fingerprints and RDKit descriptors.

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

    checked = load(given.config, keys_of(given), given.settings or {})
    columns = TableColumns(given.smiles_column, tuple(given.target_columns))
    place = None if given.out is None else Path(given.out)
    folder, _ = start(checked, place, given.trees, columns, given.say, progress=not given.quiet)
    update(folder)
    return Run(folder)
