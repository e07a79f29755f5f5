"""Measurements from Python, and the commands ``compare-backends``, ``bench …`` and ``benchmark …``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import keys_of, load, optional_path
from gcnbatch.backends import registry
from gcnbatch.errors import CheckFailed
from gcnbatch.options.declaration import arguments
from gcnbatch.options.lab import (
    AdmetOptions,
    BenchSpgemmOptions,
    BenchSpmmOptions,
    BenchTuneOptions,
    CompareBackendsOptions,
    MoleculeaceOptions,
    MoleculenetOptions,
)

if TYPE_CHECKING:
    from gcnbatch.lab.bench.spgemm.runs import SpgemmTiming
    from gcnbatch.lab.bench.spmm.command import SpmmBench
    from gcnbatch.lab.bench.spmm.tune import Tuning
    from gcnbatch.lab.benchmark.results import Result


@dataclass(frozen=True)
class BackendComparison:
    """A comparison of backends.

    Parameters
    ----------
    folder : Path
        Holds ``report.json``, ``report.md``, ``report.html`` and the plots.
    content : dict
        ``report.json``: parity of each backend; speeds, where all agree.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def agree(self) -> bool:
        """Whether every backend agrees with the reference."""
        return bool(self.content["parity"]["passed"])

    @property
    def verdict(self) -> str:
        """The result in one or two sentences."""
        from gcnbatch.lab.backend_comparison.report import verdict

        return verdict(self.content)

    def judge(self) -> None:
        """Raise CheckFailed unless all backends agree."""
        if not self.agree:
            raise CheckFailed("parity", self.verdict.rstrip("."), hint=f"See {self.folder}.")


@arguments(CompareBackendsOptions)
def compare_backends(given: CompareBackendsOptions) -> BackendComparison:
    """Check that backends agree in losses, gradients and parameters; then measure them, unless one does not.

    Returns
    -------
    BackendComparison
        Also where backends do not agree; its `judge` raises an error then.

    Raises
    ------
    InputError
        When configuration, data or backends cannot be used.
    BackendUnavailable
        When no backend can be compared here.

    Examples
    --------
    >>> import gcnbatch
    >>> found = gcnbatch.compare_backends(backends=["cpu"], quick=True, out="compared")
    >>> found.agree, sorted(found.content["speedup"])
    (True, ['inference', 'training'])
    """
    from gcnbatch.lab.backend_comparison import comparison
    from gcnbatch.lab.backend_comparison.workload import QUICK, Effort

    times = {name: value for name, value in (("steps", given.steps), ("repeats", given.repeats)) if value is not None}
    folder, content = comparison.compare(
        load(given.config, keys_of(given), given.settings or {}),
        list(given.backends),
        optional_path(given.out),
        optional_path(given.timeline),
        replace(QUICK if given.quick else Effort(), **times),
        given.say,
    )
    return BackendComparison(folder, content)


@arguments(BenchSpmmOptions)
def bench_spmm(given: BenchSpmmOptions) -> SpmmBench:
    """Multiply batches of sparse matrices with dense ones, check the results, and measure the methods.

    Returns
    -------
    SpmmBench
        Also with wrong results; its `judge` raises an error then.

    Raises
    ------
    InputError
        For options that do not go together.
    CheckFailed
        When nothing could be timed.

    Examples
    --------
    >>> import gcnbatch
    >>> found = gcnbatch.bench_spmm(batch=3, dim=8, columns=[4], methods=["scipy"], repeats=2, out="bench")
    >>> [(record["method"], record["columns"]) for record in found.outcome.records]
    [('scipy', 4)]
    """
    from gcnbatch.lab.bench.spmm import command

    return command.spmm(given)


@arguments(BenchSpgemmOptions)
def bench_spgemm(given: BenchSpgemmOptions) -> list[SpgemmTiming]:
    """Multiply sparse matrices with sparse matrices; check every result, then measure.

    Raises
    ------
    InputError
        For unknown names, files that are no matrices, and a folder of something else.
    CheckFailed
        When a result is wrong.

    Examples
    --------
    >>> import gcnbatch
    >>> rows = gcnbatch.bench_spgemm(classes=["stencil"], methods=["scipy"], scale=0.001, repeats=1)
    >>> [(row.matrix, row.contender) for row in rows]
    [('stencil', 'scipy')]
    """
    from gcnbatch import folders
    from gcnbatch.lab.bench.spgemm import report
    from gcnbatch.lab.bench.spgemm.runs import measure, open_contenders

    problems = report.problems([Path(file) for file in given.files], given.classes, given.scale, given.seed)
    found, notes = open_contenders(given.methods, given.device)
    for note in notes:
        given.say(note)
    with ExitStack() as stack:
        target = None
        if given.out is not None:
            earlier = (report.JSON, report.PLOT)
            target = stack.enter_context(folders.results(Path(given.out), "bench-spgemm", replaced=earlier)).folder
        rows = list(measure(report.shown(problems), found, given.repeats))
        if target is not None:
            report.save(rows, target)
    return rows


@arguments(BenchTuneOptions)
def bench_tune(given: BenchTuneOptions) -> Tuning:
    """Measure the candidates for adjacency products on a GPU; `Tuning.save` puts the table where ``"auto"`` reads it.

    Raises
    ------
    BackendUnavailable
        Without a GPU.
    CheckFailed
        When candidates do not give the same bits.

    Examples
    --------
    >>> import gcnbatch
    >>> try:
    ...     table = gcnbatch.bench_tune(grid=[[32], [3], [64], [50]]).save("table.json")
    ... except gcnbatch.BackendUnavailable:
    ...     table = None  # no GPU here
    """
    from gcnbatch.lab.bench.spmm import tune

    return tune.tune(given.device, tune.GRID if given.grid is None else tuple(tuple(axis) for axis in given.grid))


@dataclass(frozen=True)
class SuiteResults:
    """Results of a published suite of data sets.

    Parameters
    ----------
    suite : str
    folder : Path
        Holds a run per set, split and model, ``results.json``, ``results.csv`` and ``report.html``.
    results : tuple of Result
        ``set``, ``split``, ``model``, ``metric``; ``test`` scores, their ``mean``, ``deviation`` and ``interval``;
        ``valid``; of a mixture's ``member`` its ``weight``.
    """

    suite: str
    folder: Path
    results: tuple[Result, ...]


@arguments(MoleculenetOptions)
def moleculenet(given: MoleculenetOptions) -> SuiteResults:
    r"""Train on MoleculeNet's sets, beside published scores; a folder that has some of the runs is completed.

    `data` has the tables as DeepChem or chemprop package them.

    Raises
    ------
    InputError
        For unknown names, tables that are not there, and a folder of something else or of other settings.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> rows = "".join(f"{'C' * size}O,{-size}\n" for size in range(1, 25))
    >>> Path("freesolv.csv").write_text(f"smiles,freesolv\n{rows}") > 0
    True
    >>> found = gcnbatch.moleculenet(".", splits=["random"], models=["baseline"], seeds=1, out="suite")
    >>> [(one.set, one.model, one.metric) for one in found.results]
    [('freesolv', 'baseline', 'rmse')]
    """
    return _suite("moleculenet", given)


@arguments(MoleculeaceOptions)
def moleculeace(given: MoleculeaceOptions) -> SuiteResults:
    r"""Train a recipe on MoleculeACE's sets and score their test rows, beside published scores.

    A folder that has some of the runs is completed. `data` has ``CHEMBL….csv.gz``, with columns ``smiles``, ``y`` and
    ``split``.

    Raises
    ------
    InputError
        As `moleculenet`.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> rows = "".join(f"{'C' * size}O,{size},{'test' if size % 5 == 0 else 'train'}\n" for size in range(1, 41))
    >>> Path("CHEMBL1862_Ki.csv").write_text(f"smiles,y,split\n{rows}") > 0
    True
    >>> found = gcnbatch.moleculeace(".", recipe="gcn", epochs=1, backend="cpu", out="suite")
    >>> [(one.set, one.model, one.metric) for one in found.results]
    [('CHEMBL1862_Ki', 'gcn', 'rmse')]
    """
    return _suite("moleculeace", given)


@arguments(AdmetOptions)
def admet(given: AdmetOptions) -> SuiteResults:
    r"""Train a recipe on the sets of TDC's ADMET group and score their test rows, beside published scores.

    A folder that has some of the runs is completed. `data` has ``<set>.train_val.csv.gz`` and ``<set>.test.csv.gz``,
    with columns ``Drug`` and ``Y``. Each set has the metric of its leaderboard.

    Raises
    ------
    InputError
        As `moleculenet`.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> for part, sizes in (("train_val", range(1, 33)), ("test", range(33, 41))):
    ...     rows = "".join(f"{'C' * size}O,{size % 2}\n" for size in sizes)
    ...     written = Path(f"dili.{part}.csv").write_text(f"Drug,Y\n{rows}")
    >>> found = gcnbatch.admet(".", recipe="gcn", epochs=1, backend="cpu", out="suite")
    >>> [(one.set, one.model, one.metric) for one in found.results]
    [('dili', 'gcn', 'roc_auc')]
    """
    return _suite("admet", given)


def _suite(name: str, given: MoleculenetOptions | MoleculeaceOptions | AdmetOptions) -> SuiteResults:
    from gcnbatch.lab.benchmark import runs

    registry.report_unused(given.backend, given.device, None, given.say)
    folder, results = runs.start(name, given)
    return SuiteResults(name, folder, tuple(results))
