"""The command `gcnbatch bench spmm`: options, measurement, result folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gcnbatch import folders
from gcnbatch.errors import CheckFailed, InputError
from gcnbatch.lab.bench.spmm import plots, problems, records, tables
from gcnbatch.lab.bench.spmm.problems import SpmmProblem
from gcnbatch.lab.bench.spmm.records import Change
from gcnbatch.lab.bench.spmm.runs import Outcome, Say, chosen_methods, run
from gcnbatch.text import counted

ROWS, PLOT = "rows.jsonl", "spmm.png"


@dataclass(frozen=True)
class Asked:
    """The options that select the measurements, as given by the user."""

    figures: Sequence[str]
    batch: int | None
    dim: str | None
    per_row: str | None
    columns: str | None
    seed: int
    data: Path | None
    methods: str
    repeats: int
    device: int

    def problems(self) -> list[tuple[Callable[[], SpmmProblem], Sequence[int]]]:
        """Return a function that creates each problem, and the problem's columns.

        Raises
        ------
        InputError
            Options that do not go together.
        """
        if self.data is None:
            shapes = problems.chosen(self.figures, self.batch, self.dim, self.per_row, self.columns)
            return [(partial(problems.random_batch, shape, self.seed), shape.columns) for shape in shapes]
        if self.figures or self.dim or self.per_row:
            beside = "--figure, --dim or --nnz-per-row beside a data set"
            raise InputError(str(self.data), beside, "one or the other", "Leave one out.")
        columns = problems.COLUMNS if self.columns is None else problems.counts("--columns", self.columns)
        found = problems.from_dataset(self.data, self.batch, columns, self.seed)
        return [(lambda: found, columns)]


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


def spmm(asked: Asked, folder: Path | None, compare: Path | None, say: Say) -> SpmmBench:
    """Measure, and write records and plots into `folder`; they stay even if the comparison with an old run fails.

    Raises
    ------
    InputError
        When options, an old record or the folder cannot be used.
    CheckFailed
        When nothing could be timed.
    """
    names = chosen_methods(asked.methods)
    wanted = asked.problems()
    before = records.read(compare) if compare else []
    with folders.results(folder, "bench-spmm") as (target, _):
        outcome = run(wanted, names, asked.repeats, asked.device, say)
        if not outcome.records:
            reasons = [*outcome.wrong, *tables.absent(outcome.absent)]
            raise CheckFailed("bench spmm", "nothing could be timed", hint=". ".join(reasons))
        records.write(target / ROWS, outcome.records)
        plots.draw(target / PLOT, outcome.records)
    return SpmmBench(target, outcome, records.compare(before, outcome.records) if compare else [])
