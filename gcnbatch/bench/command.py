"""The command `gcnbatch bench spmm`: options, measurement, result folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gcnbatch import folders
from gcnbatch.bench import problems, records, spmm_plots, spmm_tables
from gcnbatch.bench.problems import SpmmProblem
from gcnbatch.bench.records import Change
from gcnbatch.bench.spmm_runs import Outcome, Say, chosen_methods, run
from gcnbatch.errors import CheckFailed, InputError

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


class Done(NamedTuple):
    """Result of a run: its folder, its measurements, and their changes against an old run."""

    folder: Path
    outcome: Outcome
    changes: list[Change]


def spmm(asked: Asked, folder: Path | None, compare: Path | None, say: Say) -> Done:
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
            reasons = [*outcome.wrong, *spmm_tables.absent(outcome.absent)]
            raise CheckFailed("bench spmm", "nothing could be timed", hint=". ".join(reasons))
        records.write(target / ROWS, outcome.records)
        spmm_plots.draw(target / PLOT, outcome.records)
    return Done(target, outcome, records.compare(before, outcome.records) if compare else [])


def judge(done: Done) -> None:
    """Raise if a result was wrong or something became slower.

    Raises
    ------
    CheckFailed
        Lists the wrong results, or counts what became slower.
    """
    if done.outcome.wrong:
        raise CheckFailed("bench spmm", f"wrong, and not timed: {'; '.join(done.outcome.wrong)}")
    if count := sum(change.slower for change in done.changes):
        found = f"{count} of {len(done.changes)} figures became slower"
        raise CheckFailed("bench spmm", found, hint=f"See {done.folder}.")
