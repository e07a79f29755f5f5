"""A selection: runs predict a pool of molecules, and a diverse set of the best ones is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.endings import is_dataset
from gcnbatch.data.schema import Header
from gcnbatch.data.shards import is_sharded
from gcnbatch.data.tables.table import Block
from gcnbatch.errors import InputError
from gcnbatch.inference import ensemble
from gcnbatch.inference.inputs import Data
from gcnbatch.inference.molecules import ALL_COLUMNS, SAMPLE_ROWS, SMILES, CsvOptions, columns_of, open_tables
from gcnbatch.predictions import Predictions, Sink, as_it_is
from gcnbatch.selection import acquisition, conditions
from gcnbatch.selection.acquisition import SHOWN, Acquisition
from gcnbatch.selection.candidates import UNREADABLE, Candidate, Candidates
from gcnbatch.selection.goals import Goals, Output, Source, goals
from gcnbatch.selection.known import Measured
from gcnbatch.text import counted, figure

Say = Callable[[str], object]
Float64 = NDArray[np.float64]
_Values = tuple[Float64, Float64]  # mean and deviation, NaN where there is none


@dataclass(frozen=True)
class Criteria:
    """Criteria of a selection.

    Parameters
    ----------
    count : int
        Number of molecules.
    by : str
        One of `acquisition.SHOWN`; empty: expected improvement for regression, else greedy.
    maximise, minimise : str
        The objective; see `gcnbatch.selection.goals`.
    below, above : sequence of str
        Bounds, ``TASK=NUMBER``.
    where : str
        See `gcnbatch.selection.conditions`.
    diversity : float
        The largest Tanimoto similarity of two chosen molecules.
    deviations : float
        Deviations that the upper bound adds.
    seed : int
        Of the draws.
    """

    count: int = 96
    by: str = ""
    maximise: str = ""
    minimise: str = ""
    below: Sequence[str] = ()
    above: Sequence[str] = ()
    where: str = ""
    diversity: float = 0.9
    deviations: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Selected:
    """Chosen molecules, the best first.

    Parameters
    ----------
    columns : dict of arrays
        ``rank``, ``score``, ``why``; the columns of the pool; value and deviation of every output; the similarity to
        the nearest measured molecule. Numbers are float64, all else text.
    goal : str
        What was maximised or minimised, in words.
    by : str
    rows : int
        Molecules of the pool.
    examined : int
        Molecules whose score was high enough when they were read: only these were checked against conditions and
        measured molecules.
    left_out : dict of int
        How many were left out, by the reason.
    """

    columns: dict[str, NDArray[Any]]
    goal: str
    by: str
    rows: int
    examined: int
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        about = {"chosen": len(self), "rows": self.rows, "examined": self.examined, "left_out": self.left_out}
        return {"goal": self.goal, "by": self.by, **about}

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def text(self) -> str:
        """Return lines for the user: how many molecules were chosen, and how many were left out for which reason."""
        lines = [f"{len(self):,} of {counted(self.rows, 'molecule')} chosen by {SHOWN[self.by]}, {self.goal}"]
        if self.left_out:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.left_out.items())
            among = "" if self.examined + self.left_out.get(UNREADABLE, 0) >= self.rows else " (among the best scores)"
            lines.append(f"left out{among}: {reasons}")
        return "\n".join(lines)


def select(
    folders: Sequence[Path], data: Data, criteria: Criteria, csv: CsvOptions, quiet: bool, say: Say, **options: Any
) -> Selected:
    """Choose molecules of a pool.

    Parameters
    ----------
    folders : sequence of Path
        Runs; each predicts its own outputs.
    data : Path or list of str
        A file or folder of molecules, or SMILES.
    criteria, csv
    quiet : bool
        No progress.
    say : callable
        Called with each message.
    **options
        `backend`, `device`, `cuda` of `gcnbatch.inference.ensemble.infer`.

    Raises
    ------
    InputError
        When runs, pool and criteria do not match, and when no molecule is left.
    """
    sources = [Source.of(folder) for folder in folders]
    wanted = goals(sources, criteria.maximise, criteria.minimise, criteria.below, criteria.above)
    header = next(source.header for source in sources if source.folder == wanted.objective.run)
    by = _acquisition(criteria.by, wanted)
    pool = _pool(data, header, csv)
    comparisons = conditions.parse(criteria.where, pool.names)
    measured = Measured.of(wanted)
    about: dict[str, Any] = {"level": None, "with_metrics": False, "quiet": quiet, **options}
    others: dict[Output, _Values] = {}
    for folder in dict.fromkeys(output.run for output in wanted.outputs if output.run != wanted.objective.run):
        found = _Kept([output for output in wanted.outputs if output.run == folder])
        ensemble.infer([folder], data, found, csv=pool.options, say=say, **about)
        others |= found.values()
    candidates = Candidates(measured, comparisons, pool.smiles, pool.ids, criteria.count)
    scorer = _Scorer(wanted, by, criteria, candidates, others)
    kept = replace(pool.options, keep_columns=(ALL_COLUMNS,))
    rows = ensemble.infer([wanted.objective.run], data, scorer, csv=kept, say=say, **about).rows
    chosen = candidates.choose(criteria.diversity)
    left_out = dict(candidates.left_out)
    if not chosen:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())
        raise InputError(
            str(data) if isinstance(data, Path) else "the pool", f"no molecule is left ({reasons})", "some"
        )
    if len(chosen) < criteria.count:
        say(f"only {counted(len(chosen), 'molecule')}: the others are left out")
    columns = _columns(chosen, pool, wanted, by, measured)
    return Selected(columns, str(wanted), by, rows, candidates.examined, left_out)


def _acquisition(by: str, wanted: Goals) -> Acquisition:
    if not by:
        return "greedy" if wanted.objective.is_probability else "expected-improvement"
    found = acquisition.named(by)
    if found == "expected-improvement" and wanted.objective.is_probability:
        got = f"{by}, and {wanted.objective.name} is a probability"
        raise InputError("--by", got, ", ".join(one for one in SHOWN if one != by))
    return found


@dataclass(frozen=True)
class _Pool:
    """How the pool is read: all columns, those of SMILES and of ids ("" without one)."""

    names: tuple[str, ...]
    smiles: str
    ids: str
    options: CsvOptions


def _pool(data: Data, header: Header, csv: CsvOptions) -> _Pool:
    """Return how the pool is read, so that all runs read it alike.

    Raises
    ------
    InputError
        For a data set, and for a table without a column of SMILES.
    """
    if isinstance(data, list):
        return _Pool((SMILES,), SMILES, "", csv)
    if not isinstance(data, Path) or is_dataset(data) or is_sharded(data):
        raise InputError(str(data), "a data set", "a file of molecules", "Its rows are those of the output.")
    with open_tables(data, csv.format) as table:
        first = next(table.blocks(), Block.of(0, table.names, ()))
        sample = {name: first[name][:SAMPLE_ROWS] for name in table.names}
        found = columns_of(data, sample, header, csv)
        return _Pool(table.names, found.smiles, found.id, replace(csv, smiles_column=found.smiles, id_column=found.id))


def _of(table: Predictions, output: Output) -> _Values:
    mean = table.outputs[:, output.column].astype(np.float64)
    if table.std is None:
        return mean, np.full(len(mean), np.nan)
    return mean, table.std[:, output.column].astype(np.float64)


class _Kept(Sink):
    """Keeps mean and deviation of some outputs for all rows: 16 bytes a row and output."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.encode = as_it_is
        self._parts: dict[Output, list[_Values]] = {output: [] for output in outputs}

    def write(self, made: Sequence[Predictions]) -> None:
        for output, parts in self._parts.items():
            parts += [_of(table, output) for table in made]

    def values(self) -> dict[Output, _Values]:
        return {
            output: (np.concatenate([mean for mean, _ in parts]), np.concatenate([of for _, of in parts]))
            for output, parts in self._parts.items()
        }


class _Scorer(Sink):
    """Scores the rows of each part and hands them to the candidates."""

    def __init__(
        self, wanted: Goals, by: Acquisition, criteria: Criteria, candidates: Candidates, others: dict[Output, _Values]
    ) -> None:
        self.encode = as_it_is
        self._wanted, self._by, self._criteria = wanted, by, criteria
        self._candidates, self._others = candidates, others
        self._rows = 0

    def write(self, made: Sequence[Predictions]) -> None:
        for table in made:
            self._add(table)
            self._rows += len(table.ids)

    def _add(self, table: Predictions) -> None:
        wanted, by, first, count = self._wanted, self._by, self._rows, len(table.ids)
        rows = slice(first, first + count)
        found = {
            output: _of(table, output)
            if output.run == wanted.objective.run
            else (self._others[output][0][rows], self._others[output][1][rows])
            for output in wanted.outputs
        }
        mean, deviation = found[wanted.objective]
        if wanted.objective.is_probability and by == "uncertainty":
            deviation = np.sqrt(np.clip(mean * (1 - mean), 0, None))
        elif by != "greedy" and table.std is None:
            got = f"{by}, and {wanted.objective.run} is one model, without a deviation"
            hint = "Take greedy, or train several models: --recipe best, or --ensemble 5."
            raise InputError("--by", got, "a run of several models", hint)
        draws = acquisition.normal(self._criteria.seed, first, count)
        high = self._candidates.measured.high
        score = acquisition.scores(by, wanted.oriented(mean), deviation, high, self._criteria.deviations, draws)
        if unreadable := int(np.count_nonzero(~np.isfinite(mean))):
            self._candidates.left_out[UNREADABLE] += unreadable
        probability = np.ones(count)
        for bound in wanted.bounds:
            value, spread = found[bound.output]
            own = bound.probability(value, None if np.isnan(spread).all() else spread)
            beyond = np.isfinite(score) & ~(own >= 0.5)
            if beyond.any():
                self._candidates.left_out[f"not {bound}"] += int(np.count_nonzero(beyond))
            score = np.where(beyond, np.nan, score)
            probability *= own
        if by == "expected-improvement":
            score = score * probability
        named = {output.name: values for output, values in found.items()}
        self._candidates.add(table, first, score, named, probability)


def _columns(
    chosen: Sequence[Candidate], pool: _Pool, wanted: Goals, by: Acquisition, measured: Measured
) -> dict[str, NDArray[Any]]:
    """Return the table of chosen molecules; a name that is taken gets ``_`` appended."""
    near = measured.near.nearest([one.molecule.name for one in chosen]).astype(np.float64)
    columns: dict[str, NDArray[Any]] = {}

    def add(name: str, values: Sequence[Any] | NDArray[Any]) -> None:
        while name in columns:
            name += "_"
        columns[name] = np.asarray(values)

    add("rank", [str(rank) for rank in range(1, len(chosen) + 1)])
    for name in pool.names:
        add(name, [one.id if name == pool.ids else one.cells[name] for one in chosen])
    add("score", [one.score for one in chosen])
    for output in wanted.outputs:
        values = np.array([one.outputs[output.name] for one in chosen])
        add(output.name, values[:, 0])
        if np.isfinite(values[:, 1]).any():
            add(f"{output.name}_std", values[:, 1])
    if wanted.bounds:
        add("bounds_probability", [one.probability for one in chosen])
    add("nearest_similarity", near)
    add("why", [_why(one, wanted, by, measured, similar) for one, similar in zip(chosen, near.tolist(), strict=True)])
    return columns


def _why(one: Candidate, wanted: Goals, by: Acquisition, measured: Measured, similar: float) -> str:
    """Return the reasons for a molecule as text."""

    def value(output: Output) -> str:
        mean, deviation = one.outputs[output.name]
        return figure(mean) + (f" +- {figure(deviation)}" if math.isfinite(deviation) else "")

    reasons = [f"{wanted.objective.name} {value(wanted.objective)}"]
    if not math.isnan(measured.best):
        reasons[0] += f" (best measured {figure(wanted.sign * measured.best)})"
    if by != "greedy":
        reasons.append(f"{SHOWN[by]} {figure(one.score)}")
    reasons += [f"{bound}: {value(bound.output)}" for bound in wanted.bounds]
    reasons.append(f"similarity {similar:.2f} to the nearest measured molecule")
    return "; ".join(reasons)
