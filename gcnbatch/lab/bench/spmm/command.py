"""The command `gcnbatch bench spmm`: options, measurement, result folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gcnbatch import folders
from gcnbatch.errors import CheckFailed, InputError
from gcnbatch.lab.bench.spmm import plots, problems, records, tables
from gcnbatch.lab.bench.spmm.problems import SpmmProblem
from gcnbatch.lab.bench.spmm.records import Change
from gcnbatch.lab.bench.spmm.runs import Outcome, chosen_methods, run
from gcnbatch.options.lab import BenchSpmmOptions
from gcnbatch.text import counted

ROWS, PLOT = "rows.jsonl", "spmm.png"


class SpmmBench(NamedTuple):
    """Measurements of sparse times dense.

    Parameters
    ----------
    folder : Path
        Holds ``rows.jsonl`` and ``spmm.png``.
    outcome : Outcome
        ``records``, a dict per measurement; ``absent`` methods with the reason; ``wrong`` results, not timed.
    changes : list
        The measurements that an old run has, too: ``old``, ``new``, ``ratio`` and whether it is ``slower``.
    """

    folder: Path
    outcome: Outcome
    changes: list[Change]

    def judge(self) -> None:
        """Raise CheckFailed if a result was wrong or something became slower."""
        if self.outcome.wrong:
            raise CheckFailed("bench spmm", f"wrong, and not timed: {'; '.join(self.outcome.wrong)}")
        if count := sum(change.slower for change in self.changes):
            found = f"{count} of {counted(len(self.changes), 'figure')} became slower"
            raise CheckFailed("bench spmm", found, hint=f"See {self.folder}.")


def spmm(given: BenchSpmmOptions) -> SpmmBench:
    """Measure, and write records and plots into a folder; they stay even if the comparison with an old run fails.

    Raises
    ------
    InputError
        When options, an old record or the folder cannot be used.
    CheckFailed
        When nothing could be timed.
    """
    names, wanted = chosen_methods(given.methods), _problems(given)
    before = None if given.compare is None else records.read(Path(given.compare))
    with folders.results(None if given.out is None else Path(given.out), "bench-spmm") as (target, _):
        outcome = run(wanted, names, given.repeats, given.device, given.say)
        if not outcome.records:
            reasons = [*outcome.wrong, *tables.absent(outcome.absent)]
            raise CheckFailed("bench spmm", "nothing could be timed", hint=". ".join(reasons))
        records.write(target / ROWS, outcome.records)
        plots.draw(target / PLOT, outcome.records)
    return SpmmBench(target, outcome, [] if before is None else records.compare(before, outcome.records))


def _problems(given: BenchSpmmOptions) -> list[tuple[Callable[[], SpmmProblem], Sequence[int]]]:
    """Return a function that creates each problem, and the problem's columns.

    Raises
    ------
    InputError
        Options that do not go together.
    """
    columns = problems.counts("--columns", given.columns) if given.columns else None
    if given.data is None:
        shapes = problems.chosen(given.figures, given.batch, given.dim, given.nnz_per_row, columns)
        return [(partial(problems.random_batch, shape, given.seed), shape.columns) for shape in shapes]
    if given.figures or given.dim is not None or given.nnz_per_row is not None:
        beside = "--figure, --dim or --nnz-per-row beside a data set"
        raise InputError(str(given.data), beside, "one or the other", "Leave one out.")
    columns = columns or problems.COLUMNS
    found = problems.from_dataset(Path(given.data), given.batch, columns, given.seed)
    return [(lambda: found, columns)]
