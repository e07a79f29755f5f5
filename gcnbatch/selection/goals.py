"""Goals of a selection: an output of a run to maximise or minimise, and bounds on other outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, nearest
from gcnbatch.predictions import output_names
from gcnbatch.text import figure, listed, quoted
from gcnbatch.training.trained import model_folders, read_trained

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """A run that predicts: its folder, its name, and the header of its data."""

    folder: Path
    name: str
    header: Header

    @classmethod
    def of(cls, folder: Path) -> Source:
        """Return the run in a folder.

        Raises
        ------
        InputError
            As `model_folders` and `read_trained`, and for a model of nodes.
        """
        header = read_trained(model_folders(folder)[0]).header
        if header.level == "node":
            raise InputError(str(folder), "predicts nodes", "a model of molecules")
        return cls(folder, folder.resolve().name, header)


@dataclass(frozen=True)
class Output:
    """An output of a run: its column, and its name in the table and in messages."""

    run: Path
    column: int
    name: str
    is_probability: bool


@dataclass(frozen=True)
class Bound:
    """An output that must stay below a value (`sign` -1) or above it (1)."""

    output: Output
    sign: int
    value: float

    def probability(self, mean: Float64, deviation: Float64 | None) -> Float64:
        """Return the probability (R,) that the bound holds; 0 or 1 where no deviation is known."""
        from scipy.special import ndtr

        distance = self.sign * (mean - self.value)
        if deviation is None:
            return (distance > 0).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.asarray(ndtr(distance / deviation))
        return np.where(deviation > 0, found, distance > 0)

    def __str__(self) -> str:
        return f"{self.output.name} {'<' if self.sign < 0 else '>'} {figure(self.value)}"


@dataclass(frozen=True)
class Goals:
    """The objective, 1 or -1 for maximising or minimising it, and the bounds."""

    objective: Output
    sign: int
    bounds: tuple[Bound, ...]

    @property
    def outputs(self) -> list[Output]:
        """All outputs that are predicted, each once."""
        return list(dict.fromkeys([self.objective, *(bound.output for bound in self.bounds)]))

    def oriented(self, values: Float64) -> Float64:
        """Return values of the objective so that more is better."""
        return values if self.sign > 0 else 1 - values if self.objective.is_probability else -values

    def __str__(self) -> str:
        verb = "maximising" if self.sign > 0 else "minimising"
        what = "the probability of label 1 of " if self.objective.is_probability else ""
        kept = f", with {listed(map(str, self.bounds))}" if self.bounds else ""
        return f"{verb} {what}{self.objective.name}{kept}"


def goals(sources: Sequence[Source], maximise: str, minimise: str, below: Sequence[str], above: Sequence[str]) -> Goals:
    """Return the goals that options name. Without an objective, the only output is maximised.

    Raises
    ------
    InputError
        For names that no run has or several have, two objectives, and bounds that are no numbers.
    """
    if maximise and minimise:
        raise InputError("--maximise and --minimise", "given together", "one of them; bounds take the other tasks")
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise InputError("RUN_DIR", f"two runs are called {max(names, key=names.count)}", "folders of different names")
    objective = _find("--minimise" if minimise else "--maximise", maximise or minimise, sources)
    bounds = [_bound("--below", text, -1, sources) for text in below]
    bounds += [_bound("--above", text, 1, sources) for text in above]
    return Goals(objective, -1 if minimise else 1, tuple(bounds))


def _bound(option: str, text: str, sign: int, sources: Sequence[Source]) -> Bound:
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name.strip() or not math.isfinite(value):
        raise InputError(f"{option} {quoted(text)}", "not TASK=NUMBER", f"such as {option} hERG=5")
    return Bound(_find(option, name.strip(), sources), sign, value)


def _find(option: str, name: str, sources: Sequence[Source]) -> Output:
    several = len(sources) > 1
    every = [
        (
            task,
            Output(
                source.folder,
                column,
                f"{source.name}.{task}" if several else task,
                source.header.target != "regression",
            ),
        )
        for source in sources
        for column, task in enumerate(output_names(source.header))
    ]
    if not name:
        if len(every) > 1:
            shown = listed(output.name for _, output in every)
            raise InputError("--maximise or --minimise", f"missing, with {len(every)} outputs", f"one of {shown}")
        return every[0][1]
    found = [output for task, output in every if name in (task, output.name)]
    if not found:
        raise InputError(
            option, f"no output {quoted(name)}", "a task of a run", nearest(name, [o.name for _, o in every])
        )
    if len(found) > 1:
        raise InputError(option, f"{quoted(name)} is an output of several runs", listed(one.name for one in found))
    return found[0]
