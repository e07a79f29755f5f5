"""Measurements from Python, and the commands ``bench`` and ``benchmark``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcnbatch.fileio import StrPath
    from gcnbatch.lab.bench.spgemm.runs import SpgemmTiming
    from gcnbatch.lab.bench.spmm.command import SpmmBench
    from gcnbatch.lab.bench.spmm.tune import Tuning
    from gcnbatch.lab.benchmark.results import Result

Say = Callable[[str], object]


@dataclass(frozen=True)
class SuiteResults:
    """Results of a published suite of data sets.

    Parameters
    ----------
    folder : Path
        Holds a run per set, split and model, ``results.json``, ``results.csv`` and ``report.html``.
    results : tuple of Result
        ``set``, ``split``, ``model``, ``metric``; ``test`` scores, their ``mean`` and ``deviation``; ``valid``.
    """

    folder: Path
    results: tuple[Result, ...]


def bench_spmm(
    data: StrPath | None = None,
    *,
    figures: Sequence[str] = (),
    batch: int | None = None,
    dim: int | str | None = None,
    nnz_per_row: int | str | None = None,
    columns: Sequence[int | str] = (),
    seed: int = 0,
    methods: Sequence[str] = (),
    repeats: int = 20,
    device: int = 0,
    compare: StrPath | None = None,
    out: StrPath | None = None,
    say: Say = lambda line: None,
) -> SpmmBench:
    """Multiply batches of sparse matrices with dense ones, check the results, and measure the methods.

    Parameters
    ----------
    data : path
        Take a batch of this data set.
    figures : sequence of str
        Figures of the papers, ``"8a"`` … ``"10"``; empty, with no other choice: all.
    batch : int
        Matrices in the batch; None: 100, of a data set 50.
    dim, nnz_per_row : int or str
        Rows of a matrix and entries of a row, or their range ``"20-60"``; None: 50 and 3.
    columns : sequence of int
        Columns of the dense matrix; empty: 2, 4, … 1024.
    seed : int
        Of the random matrices.
    methods : sequence of str
        Names of the command's help; empty: all but naive and csr.
    repeats : int
        Repetitions of a measurement.
    device : int
        Number of the GPU.
    compare : path
        Report what is slower than in this ``rows.jsonl``.
    out : path
        Folder of the result; None: ``runs/bench-spmm-<time>``.
    say : callable
        Called with each message.

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

    asked = command.Asked(
        figures,
        batch,
        None if dim is None else str(dim),
        None if nnz_per_row is None else str(nnz_per_row),
        ",".join(map(str, columns)) if columns else None,
        seed,
        None if data is None else Path(data),
        ",".join(methods),
        repeats,
        device,
    )
    old = None if compare is None else Path(compare)
    return command.spmm(asked, None if out is None else Path(out), old, say)


def bench_spgemm(
    files: Sequence[StrPath] = (),
    *,
    classes: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    scale: float = 1.0,
    seed: int = 0,
    repeats: int = 20,
    device: int = 0,
    out: StrPath | None = None,
    say: Say = lambda line: None,
) -> list[SpgemmTiming]:
    """Multiply sparse matrices with sparse matrices; check every result, then measure.

    Parameters
    ----------
    files : sequence of path
        Matrix Market files or data sets.
    classes : sequence of {"molecules", "power_law", "stencil", "uniform"}
        None: all; beside files, none.
    methods : sequence of {"gcnbatch", "cusparse", "scipy"}
        None: all that can start.
    scale : float
        Size of the classes, at most 16.
    seed, repeats, device, say
        As for `bench_spmm`.
    out : path
        Also write the rows (JSON) and a figure into this folder: a new or empty one, or that of an earlier call.

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

    problems = report.problems([Path(file) for file in files], classes, scale, seed)
    found, notes = open_contenders(methods, device)
    for note in notes:
        say(note)
    with ExitStack() as stack:
        target = None
        if out is not None:
            earlier = (report.JSON, report.PLOT)
            target = stack.enter_context(folders.results(Path(out), "bench-spgemm", replaced=earlier)).folder
        rows = list(measure(report.shown(problems), found, repeats))
        if target is not None:
            report.save(rows, target)
    return rows


def bench_tune(device: int = 0, *, grid: Sequence[Sequence[int]] | None = None) -> Tuning:
    """Measure the candidates for adjacency products on a GPU; `Tuning.save` puts the table where ``"auto"`` reads it.

    Parameters
    ----------
    device : int
        Number of the GPU.
    grid : four sequences of int
        Rows of a matrix, entries of a row, columns of the dense matrix, matrices; None: that of the command.

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

    return tune.tune(device, tune.GRID if grid is None else tuple(tuple(axis) for axis in grid))


def moleculenet(
    data: StrPath,
    *,
    out: StrPath | None = None,
    sets: Sequence[str] = (),
    splits: Sequence[str] = (),
    models: Sequence[str] = (),
    seeds: int = 5,
    epochs: int | None = None,
    backend: str = "auto",
    device: int = 0,
    jobs: int = 0,
    quiet: bool = True,
    say: Say = lambda line: None,
) -> SuiteResults:
    r"""Train on MoleculeNet's sets, beside published scores; a folder that has some of the runs is completed.

    Parameters
    ----------
    data : path
        Folder with the tables, as DeepChem or chemprop package them.
    out : path
        Folder of the runs; None: ``runs/moleculenet-<time>``.
    sets, splits, models : sequence of str
        Names of the command's help; empty: all, of the sets those that are there.
    seeds : int
        Splits; on the scaffold split, of which there is one, models.
    epochs : int
        Of every run; None: by configuration.
    backend, device, jobs, quiet, say
        As for `gcnbatch.train`.

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
    from gcnbatch.lab.benchmark import runs

    folder, results = runs.start(
        Path(data),
        None if out is None else Path(out),
        runs.Settings(seeds=seeds, epochs=epochs),
        runs.Choice(tuple(sets), tuple(splits), tuple(models)),
        runs.Machine(backend, device, jobs),
        say,
        quiet,
    )
    return SuiteResults(folder, tuple(results))
