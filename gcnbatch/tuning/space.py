"""The space of a search: for each searched key of the configuration, a range or choices."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.trial import BaseTrial

from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import put
from gcnbatch.errors import InputError, nearest
from gcnbatch.text import QUOTED, printable, shown

DEFAULT = Path(__file__).with_name("space.toml")
_ON_STEP = 1e-6  # of a step: rounding of a value that lies on it
_MOST_REPEATS = 4096  # length of a list: of widths, or of weights of tasks
_RANGE, _CHOICES = {"low", "high", "log", "step", "repeat"}, {"choices", "repeat"}
# Keys that keep a model's shapes and kernels, so that trials that differ in them alone train together.
_FREE = {
    *("seed", "model.dropout", "train.epochs", "train.patience", "train.min_delta", "train.standardize"),
    "train.transform",
    *("train.learning_rate", "train.schedule", "train.schedule_every", "train.schedule_factor", "train.schedule_floor"),
    *("train.weight_decay", "train.l2", "train.clip_norm", "train.class_weights", "train.pos_weight"),
}
_FIXED = (
    "train.monitor",
    "train.ensemble",
    "train.checkpoint_seconds",
    "train.level",
    "train.from_run",
)  # the objective, and what cannot change it


@dataclass(frozen=True)
class Dimension:
    """What is searched of one key.

    Parameters
    ----------
    key : str
    choices : tuple
        Values of the key; empty: a range.
    low, high : int or float
    log : bool
        Search the range on a logarithmic scale.
    step : int, float or None
    repeat : Dimension or None
        Length of a list of equal values; None: the key is no such list.
    """

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    repeat: Dimension | None = None

    def describe(self) -> str:
        """Return the choices or the range as text."""
        if self.choices:
            found = ", ".join(str(choice) for choice in self.choices)
        else:
            step = f" in steps of {self.step:g}" if self.step is not None else ""
            found = f"{self.low:g} to {self.high:g}{' (logarithmic)' if self.log else ''}{step}"
        return f"{found}; {self.repeat.describe()} times" if self.repeat else found

    def suggest(self, trial: BaseTrial) -> Any:
        """Return the value of the key in this trial."""
        if self.choices:
            labels = [_label(choice) for choice in self.choices]
            value = self.choices[labels.index(trial.suggest_categorical(self.key, labels))]
        elif isinstance(self.low, int):
            value = trial.suggest_int(self.key, self.low, int(self.high), step=int(self.step or 1), log=self.log)
        else:
            value = trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)
        return [value] * self.repeat.suggest(trial) if self.repeat else value

    def corners(self) -> Iterator[Any]:
        """Yield the values that the configuration must accept: all choices, or both ends."""
        values = self.choices or (self.low, self.high)
        for value in values:
            if self.repeat is None:
                yield value
            else:
                yield from ([value] * int(count) for count in self.repeat.corners())

    @property
    def names(self) -> list[str]:
        """Names of its parameters in a trial."""
        return [self.key, *(self.repeat.names if self.repeat else [])]

    def parameters(self, value: Any) -> dict[str, Any]:
        """Return the parameters of a trial in which the key has this value; none if the dimension does not hold it."""
        value = list(value) if isinstance(value, tuple) else value
        if self.repeat is not None:
            return self._repeated(value)
        if self.choices:
            known = [choice for choice in self.choices if value in (choice, [choice])]
            return {self.key: _label(known[0])} if known else {}
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return {}
        steps = (value - self.low) / self.step if self.step else 0.0
        return {self.key: value} if abs(steps - round(steps)) < _ON_STEP else {}

    def _repeated(self, value: Any) -> dict[str, Any]:
        assert self.repeat is not None
        if not isinstance(value, list) or len(set(value)) != 1:
            return {}
        one, length = replace(self, repeat=None).parameters(value[0]), self.repeat.parameters(len(value))
        return one | length if one and length else {}


@dataclass(frozen=True)
class Space:
    """All dimensions, in the order of the file."""

    dimensions: tuple[Dimension, ...]

    @property
    def names(self) -> list[str]:
        """Names of the parameters of a trial."""
        return [name for dimension in self.dimensions for name in dimension.names]

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """Return the values of a trial by key."""
        return {dimension.key: dimension.suggest(trial) for dimension in self.dimensions}

    def start(self, base: Config) -> dict[str, Any]:
        """Return the parameters of the first trial: the values of `base`, as far as the space holds them."""
        tree = base.model_dump()
        found: dict[str, Any] = {}
        for one in self.dimensions:
            section, _, name = one.key.partition(".")
            found |= one.parameters(tree[section].get(name) if name else tree[section])
        return found

    def architecture(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return those parameters of a trial that trials of one cohort have in common."""
        common = [name for one in self.dimensions if one.key not in _FREE for name in one.names]
        return {name: parameters[name] for name in common}


def _label(choice: Any) -> Any:
    """Return a choice as Optuna can keep it: itself, or a list as JSON."""
    return json.dumps(choice) if isinstance(choice, list) else choice


def configured(base: Config, values: Mapping[str, Any], where: str = "trial") -> Config:
    """Return the configuration with these values by key.

    Raises
    ------
    InputError
        When a value or their combination is not valid.
    """
    tree = base.model_dump(mode="json")
    for key, value in values.items():
        put(tree, key.split("."), value)
    return resolve(tree, where)


def read_space(tree: Mapping[str, Any], base: Config, where: str, known_only: bool = False) -> Space:
    """Return the space of a TOML tree, checked with the configuration that it changes.

    Parameters
    ----------
    known_only : bool
        Leave out keys that the configuration does not have.

    Raises
    ------
    InputError
        For an empty space or range, an unknown key and a value that the configuration does not take.
    """
    dimensions = []
    for key, table in _tables(tree, where):
        try:
            dimensions.append(_checked(_dimension(key, table, where), base, where))
        except _UnknownKey:
            if not known_only:
                raise
    if not dimensions:
        raise InputError(where, "no key to search", "section.key = { low = …, high = … } or { choices = […] }")
    return Space(tuple(dimensions))


class _UnknownKey(InputError):
    """The configuration has no such key."""


def _tables(tree: Mapping[str, Any], where: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every key with its table, depth first."""
    for name, value in tree.items():
        key = ".".join((*path, name))
        if not isinstance(value, dict):
            raise InputError(
                f"{where}: {printable(key, QUOTED)}", shown(value), "{ low = …, high = … } or { choices = […] }"
            )
        if not value or any(isinstance(inner, dict) and field != "repeat" for field, inner in value.items()):
            yield from _tables(value, where, (*path, name))
        else:
            yield key, value


def _dimension(key: str, table: dict[str, Any], where: str) -> Dimension:
    place = f"{where}: {printable(key, QUOTED)}"
    allowed = _CHOICES if "choices" in table else _RANGE
    for field in table:
        if field not in allowed:
            raise InputError(f"{place}.{printable(field, QUOTED)}", "unknown key", hint=nearest(field, allowed))
    repeat = None
    if "repeat" in table:
        if not isinstance(table["repeat"], dict):
            raise InputError(f"{place}.repeat", shown(table["repeat"]), "{ low = 1, high = … }")
        repeat = _dimension(f"{key}.repeat", table["repeat"], where)
        for count in repeat.choices or (repeat.low, repeat.high):
            if not _is_number(count) or not isinstance(count, int) or not 1 <= count <= _MOST_REPEATS:
                raise InputError(f"{place}.repeat", shown(count), f"whole numbers from 1 to {_MOST_REPEATS}")
    if "choices" in table:
        choices = table["choices"]
        if not isinstance(choices, list) or not choices:
            raise InputError(f"{place}.choices", shown(choices), "a list of at least one value")
        if len({json.dumps(_label(choice), default=str) for choice in choices}) < len(choices):
            raise InputError(f"{place}.choices", shown(choices), "different values")
        return Dimension(key, tuple(choices), repeat=repeat)
    return _range(key, table, place, repeat)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that a float can hold."""
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


def _range(key: str, table: dict[str, Any], place: str, repeat: Dimension | None) -> Dimension:
    for end in ("low", "high"):
        if end not in table:
            raise InputError(place, f"no '{end}'", "low and high, or choices")
    for name in ("low", "high", "step"):
        if name in table and not _is_number(table[name]):
            raise InputError(f"{place}.{name}", shown(table[name]), "a finite number")
    low, high, log, step = table["low"], table["high"], table.get("log", False), table.get("step")
    if not isinstance(log, bool):
        raise InputError(f"{place}.log", shown(log), "true or false")
    if not low <= high:
        raise InputError(place, f"an empty range, {low} to {high}", "low at most high")
    if log and low <= 0:
        raise InputError(f"{place}.low", f"{low} on a logarithmic scale", "a number above 0")
    if step is not None and (step <= 0 or log):
        raise InputError(f"{place}.step", f"{step}{' with log' if log else ''}", "a number above 0, without log")
    whole = all(isinstance(value, int) for value in (low, high, step or 0))
    kind = int if whole else float
    return Dimension(key, (), kind(low), kind(high), log, step, repeat)


def _checked(dimension: Dimension, base: Config, where: str) -> Dimension:
    """Return the dimension in the type of its key, after the configuration took its corners."""
    key = dimension.key
    section, _, name = key.partition(".")
    if section not in ("seed", "model", "train") or key in _FIXED:
        raise InputError(
            f"{where}: {printable(key, QUOTED)}", "cannot be searched", "a key of [model] or [train], or seed"
        )
    values = base.model_dump(mode="json")
    if key != "seed" and section == "model" and name not in values["model"]:
        try:
            configured(base, {key: next(dimension.corners())}, where)
        except InputError as error:
            raise _UnknownKey(error.subject, error.got, error.expected, error.hint) from error
    accepted: Config | None = None
    for value in dimension.corners():
        accepted = configured(base, {key: value}, where)
    assert accepted is not None
    found = accepted.model_dump()[section]
    held = found[name] if name else found
    if isinstance(held, float) and not dimension.choices:
        low, high = float(dimension.low), float(dimension.high)
        return Dimension(key, (), low, high, dimension.log, dimension.step, dimension.repeat)
    return dimension
