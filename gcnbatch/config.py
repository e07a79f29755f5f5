"""The configuration of a run: one tree, which holds all defaults.

Values come from the defaults here, a TOML file and options of the command line; the later source wins
(`gcnbatch.config_tree` merges them). The merged tree is checked before anything is created and saved in the run folder,
so that the folder alone is enough to repeat the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from gcnbatch.backends import registry
from gcnbatch.config_sections import (
    ChemGCNConfig,
    CudaConfig,
    DataConfig,
    KipfConfig,
    ModelConfig,
    MoleculesConfig,
    Section,
    SplitConfig,
    TrainConfig,
    option_field,
)
from gcnbatch.errors import InputError, Misfit, closest, nearest
from gcnbatch.options import common
from gcnbatch.text import QUOTED, printable, shown


def _known_backend(name: str) -> str:
    """The registry knows the names; the error is that of a `Literal`."""
    *others, last = (f"'{choice}'" for choice in registry.choices())
    if name not in registry.choices():
        expected = {"expected": f"{', '.join(others)} or {last}"}
        raise PydanticCustomError("literal_error", "Input should be {expected}", expected)
    return name


class Config(Section):
    """Configuration of a run."""

    name: str = Field(
        default="run", min_length=1, max_length=80, pattern=r"^[A-Za-z0-9._-]+$", description="run's name"
    )
    seed: int = option_field(common.SeedKey, default=0, ge=0, le=2**63 - 1)
    backend: Annotated[str, AfterValidator(_known_backend)] = Field(
        default=registry.AUTO, description="what computes; auto: the fastest that can start here and supports the task"
    )
    device: int = option_field(common.DeviceKey, ge=0, le=1023)
    jobs: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="models that train at once, on the host in processes; 0: as many as the GPU takes, or one a core",
    )
    parquet: bool = Field(default=False, description="write each table of the folder (.csv) as .parquet, too")
    data: DataConfig = Field(default_factory=DataConfig)
    molecules: MoleculesConfig = Field(default_factory=MoleculesConfig)
    split: SplitConfig = Field(default_factory=SplitConfig)
    model: ModelConfig = Field(default_factory=ChemGCNConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    cuda: CudaConfig = Field(default_factory=CudaConfig)

    @model_validator(mode="after")
    def _one_source(self) -> Config:
        if self.data.path and self.data.synthetic:
            raise ValueError("data.path and data.synthetic are both given; keep one")
        if self.train.mixture and not self.split.cross_fit:
            raise ValueError("train.mixture needs split.cross_fit, such as 10: its weights are found on left-out rows")
        return self

    def to_toml(self) -> str:
        """Return the tree as TOML text; reading it back gives an equal tree."""
        return tomli_w.dumps(self.model_dump(mode="json"))


_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("", Config),
    ("data.", DataConfig),
    ("molecules.", MoleculesConfig),
    ("split.", SplitConfig),
    ("model.", ChemGCNConfig),
    ("model.", KipfConfig),
    ("train.", TrainConfig),
    ("cuda.", CudaConfig),
)


def resolve(tree: Mapping[str, Any], where: str = "configuration", given: Iterable[tuple[str, ...]] = ()) -> Config:
    """Check the merged tree and return it with every default filled in.

    Parameters
    ----------
    tree : mapping
    where : str
        Source of the keys for messages: a file.
    given : paths of keys
        Keys that come from the command line; messages then say "configuration".

    Raises
    ------
    InputError
        Names the first wrong key, its value, what is allowed and the nearest valid key.
    """
    tree = _default_kind(dict(tree))
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        key_path = tuple(part for part in Misfit.of(error).keys if part not in MODEL_KINDS)
        elsewhere = any(key_path[: len(path)] == path or path[: len(key_path)] == key_path for path in given)
        raise _explain(error, tree, "configuration" if elsewhere else where) from error


def _default_kind(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with kind chemgcn in a [model] table that has no kind."""
    model = tree.get("model")
    if isinstance(model, dict) and "kind" not in model:
        tree["model"] = {"kind": "chemgcn", **model}
    return tree


def _fields(kind: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key as ``section.key`` with its field; those of both models, or of the one of this kind."""
    for prefix, section in _SECTIONS:
        if prefix != "model." or kind in ("", section.model_fields["kind"].default):
            yield from ((prefix + name, field) for name, field in section.model_fields.items() if field.description)


def keys() -> dict[str, str]:
    """Return every key as ``section.key`` with its description, for help texts and suggestions."""
    found: dict[str, str] = {}
    for key, field in _fields():
        found.setdefault(key, str(field.description))
    return found


def key_table() -> list[tuple[str, str, str, str]]:
    """Return key, default, allowed values and description of every key; a key of both models has both defaults."""
    defaults: dict[str, list[str]] = {}
    allowed: dict[str, list[str]] = {}
    for key, field in _fields():
        default = json.dumps(field.get_default(call_default_factory=True), default=list)
        for texts, text in ((defaults, default), (allowed, _allowed(key, field))):
            if text not in texts.setdefault(key, []):
                texts[key].append(text)
    return [(key, " or ".join(defaults[key]), ", ".join(allowed[key]), text) for key, text in keys().items()]


def _allowed(key: str, field: FieldInfo) -> str:
    """Return the choices, the range or the type of a key as text."""
    kind = field.annotation
    if key == "backend":
        return ", ".join(registry.choices())
    if get_origin(kind) is Literal:
        return ", ".join(str(choice) or '""' for choice in get_args(kind))
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if get_origin(element) is Literal:
            return f"list of {', '.join(map(str, get_args(element)))}"
        number, *more = get_args(element)
        return "list of texts" if number is str else f"list; each {_bounds(number, more)}"
    if kind is str:
        return "text"
    return "true, false" if kind is bool else _bounds(kind, field.metadata)


# What users of other programs call a key.
_ALIASES = {
    "lr": "train.learning_rate",
    "learningrate": "train.learning_rate",
    "bs": "train.batch_size",
    "batch": "train.batch_size",
    "epoch": "train.epochs",
    "n_epochs": "train.epochs",
    "num_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "wd": "train.weight_decay",
    "early_stopping": "train.patience",
    "scheduler": "train.schedule",
    "hidden": "model.widths",
    "hidden_size": "model.widths",
    "cv": "split.folds",
    "n_folds": "split.folds",
}
MODEL_KINDS = ("chemgcn", "kipf")
_EXPECTED = {
    "model_type": "a table of keys",
    "model_attributes_type": "a table of keys",
    "tuple_type": "a list of numbers",
    "too_short": "at least one value",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-'",
    "string_too_short": "at least one character",
}


def _explain(error: ValidationError, tree: Mapping[str, Any], where: str) -> InputError:
    first = Misfit.of(error)
    # A discriminated union puts the chosen kind into the location: model.chemgcn.widths.
    location = list(first.keys)
    kind = ""
    if len(location) > 1 and location[0] == "model" and location[1] in MODEL_KINDS:
        kind = location.pop(1)
    if location[-1:] == ["0"] and not isinstance(_dig(tree, location[:-1]), list | tuple):
        location.pop()  # a single value in place of a list
    key = ".".join(location)
    subject = f"{where}: {printable(key, QUOTED)}" if key else where
    if first.kind == "extra_forbidden" and location[-1].lower() in _ALIASES:
        known = _ALIASES[location[-1].lower()]
        return InputError(subject, "unknown key", hint=f"Did you mean '{known}'?")
    if first.kind == "extra_forbidden":
        return InputError(
            subject,
            f"unknown key{f' for model.kind {kind}' if kind else ''}",
            hint=nearest(key, _siblings(location, kind)),
        )
    if first.kind.startswith("union_tag"):
        return InputError(f"{subject}.kind", shown(_dig(tree, [*location, "kind"])), "'chemgcn' or 'kipf'")
    if first.kind == "value_error":
        return InputError(subject, first.got)
    expected = _range(location, kind) or _EXPECTED.get(first.kind) or first.expected
    got = _dig(tree, location)
    choices = re.findall("'([^']+)'", expected) if first.kind == "literal_error" else []
    return InputError(subject, shown(got), expected, closest(got, choices) if isinstance(got, str) else "")


def _range(location: list[str], kind: str) -> str:
    """Return the bounds of a number key as text, such as ``1 to 1000000`` or ``above 0, at most 1``."""
    field = dict(_fields(kind)).get(".".join(location[:2]))
    if field is None:
        return ""
    number, bounds = field.annotation, field.metadata
    if len(location) > 2 and get_origin(get_args(number)[0]) is not Literal:  # an element of a list
        number, *bounds = get_args(get_args(number)[0])
    return _bounds(number, bounds) if bounds and number in (int, float) else ""


def _bounds(number: Any, metadata: Iterable[Any]) -> str:
    """Return a type of number and its bounds as text."""
    bounds = list(chain.from_iterable(item.metadata if isinstance(item, FieldInfo) else [item] for item in metadata))
    limits = " and ".join(
        f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
        for bound, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
        for one in bounds
        if (value := getattr(one, bound, None)) is not None
    )
    what = "a whole number" if number is int else "a number"
    return f"{what}, {limits}" if limits else what


def _siblings(location: list[str], kind: str) -> list[str]:
    every = [key for key, _ in _fields(kind)]
    inside = [key for key in every if key.startswith(".".join(location[:-1]) + ".")] if len(location) > 1 else []
    return inside or [*every, "data", "molecules", "split", "model", "train"]


def _dig(tree: Any, location: Iterable[str]) -> Any:
    for part in location:
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, (list, tuple)) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree
