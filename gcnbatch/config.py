"""The configuration of a run: one tree, which holds all defaults.

Values come from the defaults here, a TOML file and options of the command line (``--set section.key=value`` sets any
key); the later source wins. The merged tree is checked before anything is created and saved in the run folder, so that
the folder alone is enough to repeat the run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gcnbatch.errors import InputError, nearest

Width = Annotated[int, Field(ge=1, le=65_536)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


def _as_tuple(value: Any) -> Any:
    """Return a list (or one bare number), as TOML and the command line give it, as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


Widths = Annotated[tuple[Width, ...], BeforeValidator(_as_tuple)]
PositiveWeights = Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], BeforeValidator(_as_tuple)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(_Section):
    """Source of the graphs."""

    path: str = Field(default="", description="HDF5 data set; relative paths start at the working folder")
    synthetic: Literal["", "quickstart", "tox21", "reaction100", "citation", "reddit"] = Field(
        default="", description="generate this preset (seed 0) into the run folder instead of reading a path"
    )
    memory_mb: int = Field(
        default=4096, ge=16, description="larger sets are read in slices, through a cache of this size"
    )


class SplitConfig(_Section):
    """Rows for training, validation and test."""

    kind: Literal["random", "stratified", "scaffold", "predefined"] = Field(
        default="random", description="how rows are assigned; predefined: a split stored in the file"
    )
    name: str = Field(
        default="", description="name of the predefined split (only for that kind); empty: the file's only one"
    )
    valid: Fraction = Field(default=0.1, description="share of rows for validation (inside each fold when folds > 0)")
    test: Fraction = Field(default=0.1, description="share of rows for test (unused when folds > 0)")
    seed: int = Field(default=-1, ge=-1, le=2**63 - 1, description="seed of the split; -1: the run's seed")
    folds: int = Field(default=0, ge=0, le=1000, description="k of k-fold cross-validation; 0: one run")

    @model_validator(mode="after")
    def _room_for_training(self) -> SplitConfig:
        if self.valid + (0.0 if self.folds else self.test) >= 1.0:
            raise ValueError("valid + test must leave rows for training (sum below 1)")
        if self.folds == 1:
            raise ValueError("folds must be 0 or at least 2")
        if self.name and self.kind != "predefined":
            raise ValueError(f"name = '{self.name}' needs kind = 'predefined', not '{self.kind}'")
        if self.folds and self.kind == "predefined":
            raise ValueError("folds cannot be combined with a predefined split")
        return self


class ChemGCNConfig(_Section):
    """Graph convolution with bias and batch norm per layer; readout and dense output (papers: ChemGCN)."""

    kind: Literal["chemgcn"] = "chemgcn"
    widths: Widths = Field(default=(64, 64), min_length=1, description="output features of each graph convolution")
    adjacency: Literal["symmetric", "stored"] = Field(
        default="symmetric", description="symmetric: D^-1/2 A D^-1/2 per channel; stored: weights as in the file"
    )
    batch_norm: bool = Field(default=True, description="batch norm after each graph convolution")
    batch_norm_momentum: float = Field(
        default=0.1, gt=0.0, le=1.0, description="weight of a batch in running statistics"
    )
    batch_norm_epsilon: float = Field(default=1e-5, gt=0.0, le=1.0, description="added to the variance")
    dropout: Fraction = Field(default=0.0, description="dropout after each hidden layer")
    dense: Widths = Field(default=(), description="node-wise dense layers (with ReLU) before the readout")
    readout: Literal["sum", "mean", "max"] = Field(default="sum", description="nodes to graph")
    head: Widths = Field(default=(), description="dense layers (with ReLU) between readout and output")


class KipfConfig(_Section):
    """Kipf and Welling's node classifier: dropout, A X W, ReLU, no bias; the last convolution gives the classes."""

    kind: Literal["kipf"] = "kipf"
    widths: Widths = Field(default=(16,), min_length=1, description="hidden widths; the output layer is added")
    adjacency: Literal["symmetric", "stored"] = Field(
        default="symmetric", description="symmetric: D^-1/2 A D^-1/2 per channel; stored: weights as in the file"
    )
    dropout: Fraction = Field(default=0.5, description="dropout on the input of every layer")
    input_dropout: bool = Field(default=True, description="dropout on the features too, not only on hidden layers")


ModelConfig = Annotated[Union[ChemGCNConfig, KipfConfig], Field(discriminator="kind")]


class TrainConfig(_Section):
    """Training of the parameters."""

    epochs: int = Field(default=50, ge=1, le=1_000_000, description="passes over the training rows")
    batch_size: int = Field(default=50, ge=1, le=1_000_000, description="graphs per step")
    eval_batch_size: int = Field(
        default=0, ge=0, le=1_000_000, description="graphs per batch in validation and test; 0: chosen by the backend"
    )
    optimizer: Literal["adam", "sgd"] = Field(default="adam", description="update rule")
    learning_rate: float = Field(default=1e-3, gt=0.0, le=100.0, description="step size at the start")
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0, description="Adam: decay of the first moment")
    beta2: float = Field(default=0.999, ge=0.0, lt=1.0, description="Adam: decay of the second moment")
    epsilon: float = Field(default=1e-8, gt=0.0, le=1.0, description="Adam: added to the denominator")
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="SGD: momentum")
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0, description="decoupled decay of weights (not biases)")
    l2: float = Field(default=0.0, ge=0.0, le=1.0, description="L2 penalty added to the gradient: l2 * W")
    l2_layers: Widths = Field(default=(), description="convolutions that l2 applies to, from 1; empty: every weight")
    schedule: Literal["constant", "step", "cosine", "plateau"] = Field(
        default="constant", description="learning rate over epochs"
    )
    schedule_every: int = Field(
        default=20, ge=1, description="step: epochs between reductions; plateau: epochs without gain"
    )
    schedule_factor: float = Field(default=0.5, gt=0.0, lt=1.0, description="step, plateau: factor of a reduction")
    schedule_floor: float = Field(default=0.0, ge=0.0, description="smallest learning rate of a schedule")
    clip_norm: float = Field(default=0.0, ge=0.0, description="largest global gradient norm; 0: no clipping")
    patience: int = Field(default=0, ge=0, description="stop after this many epochs without a better value; 0: never")
    min_delta: float = Field(default=0.0, ge=0.0, description="gain that counts as better")
    monitor: Literal[
        "auto", "loss", "roc_auc", "pr_auc", "accuracy", "balanced_accuracy", "f1", "mcc", "rmse", "mae", "r2"
    ] = Field(
        default="auto",
        description="validation value that picks the best epoch; auto: roc_auc, accuracy or rmse by target",
    )
    class_weights: Literal["none", "balanced"] = Field(
        default="none", description="balanced: weights of positives (or classes) by their rarity in the training rows"
    )
    pos_weight: PositiveWeights = Field(
        default=(), description="binary: weight of a positive per task; empty: from class_weights"
    )
    standardize: bool = Field(default=True, description="regression: fit targets scaled to mean 0 and deviation 1")
    checkpoint_seconds: float = Field(
        default=5.0, ge=0.0, description="least time between checkpoints; 0: after every step"
    )


class CudaConfig(_Section):
    """Options of the CUDA backends; `cpu` ignores them."""

    precision: Literal["fp32", "tf32"] = Field(
        default="fp32", description="of matrix products; tf32: tensor cores, inputs rounded to 11 bits"
    )
    spmm: Literal["auto", "csr", "swa_csr", "swa_coo", "tf"] = Field(
        default="auto",
        description="kernel of adjacency products; auto: ours, by a measured table; nonbatched: tf, the papers' loop. "
        "swa_coo and tf add atomically: not bit-repeatable",
    )
    fast_math: bool = Field(
        default=False, description="compile with --use_fast_math: approximate division and exponentials"
    )
    resident: Literal["auto", "on", "off"] = Field(
        default="auto", description="keep the data set on the device; auto: if it fits; off: stream every batch"
    )


class Config(_Section):
    """Configuration of a run."""

    name: str = Field(
        default="run", min_length=1, max_length=80, pattern=r"^[A-Za-z0-9._-]+$", description="run's name"
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="seed of weights, shuffles, dropout and splits")
    backend: Literal["auto", "cpu", "nonbatched", "batched", "fused"] = Field(
        default="auto", description="what computes; auto: the fastest that can start here and supports the task"
    )
    device: int = Field(default=0, ge=0, le=1023, description="GPU, of those that CUDA_VISIBLE_DEVICES shows")
    data: DataConfig = Field(default_factory=DataConfig)
    split: SplitConfig = Field(default_factory=SplitConfig)
    model: ModelConfig = Field(default_factory=ChemGCNConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    cuda: CudaConfig = Field(default_factory=CudaConfig)

    @model_validator(mode="after")
    def _one_source(self) -> Config:
        if self.data.path and self.data.synthetic:
            raise ValueError("data.path and data.synthetic are both given; keep one")
        return self

    def to_toml(self) -> str:
        """Return the tree as TOML text; reading it back gives an equal tree."""
        return tomli_w.dumps(self.model_dump(mode="json"))


# ------------------------------------------------------------------------------------------------ merging


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as nested tables.

    Raises
    ------
    InputError
        When the file is missing, not UTF-8 or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file", "a TOML configuration", "See configs/ for examples.") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "not text", "a TOML configuration", "Pass a data set with --data.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), f"cannot be read as TOML ({error})", hint="Fix that line.") from error
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "a TOML configuration") from error


def parse_assignment(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``"train.epochs=20"`` into key path and value; the value is TOML, a bare word is a string."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text}", "no '='", "section.key=value, such as train.epochs=20")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return tuple(part.strip() for part in key.split(".")), value


def put(tree: dict[str, Any], path: Iterable[str], value: Any) -> None:
    """Set ``tree[a][b]… = value`` for `path` (a, b, …), and create missing tables."""
    *tables, last = path
    for depth, name in enumerate(tables):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise InputError(".".join([*tables[: depth + 1], last]), f"{name} is a value", "section.key")
    tree[last] = value


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
        at = tuple(str(part) for part in error.errors(include_url=False)[0]["loc"] if part not in MODEL_KINDS)
        elsewhere = any(at[: len(path)] == path or path[: len(at)] == at for path in given)
        raise _explain(error, tree, "configuration" if elsewhere else where) from error


def _default_kind(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with kind chemgcn in a [model] table that has no kind."""
    model = tree.get("model")
    if isinstance(model, dict) and "kind" not in model:
        tree["model"] = {"kind": "chemgcn", **model}
    return tree


def keys() -> dict[str, str]:
    """Return every key as ``section.key`` with its description, for help texts and suggestions."""
    found: dict[str, str] = {}
    sections: list[tuple[str, type[BaseModel]]] = [
        ("", Config),
        ("data.", DataConfig),
        ("split.", SplitConfig),
        ("model.", ChemGCNConfig),
        ("model.", KipfConfig),
        ("train.", TrainConfig),
        ("cuda.", CudaConfig),
    ]
    for prefix, section in sections:
        for name, field in section.model_fields.items():
            if field.description or name == "kind":
                found.setdefault(prefix + name, field.description or "chemgcn or kipf")
    return found


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
    first = error.errors(include_url=False)[0]
    # A discriminated union puts the chosen kind into the location: model.chemgcn.widths.
    location = [str(part) for part in first["loc"]]
    kind = ""
    if len(location) > 1 and location[0] == "model" and location[1] in MODEL_KINDS:
        kind = location.pop(1)
    key = ".".join(location)
    subject = f"{where}: {key}" if key else where
    if first["type"] == "extra_forbidden":
        return InputError(
            subject,
            f"unknown key{f' for model.kind {kind}' if kind else ''}",
            hint=nearest(key, _siblings(location, kind)),
        )
    if first["type"].startswith("union_tag"):
        return InputError(f"{subject}.kind", repr(_dig(tree, [*location, "kind"])), "'chemgcn' or 'kipf'")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return InputError(subject, message)
    expected = _range(location, kind) or _EXPECTED.get(first["type"]) or message.removeprefix("Input should be ")
    return InputError(subject, f"{_dig(tree, location)!r}", expected)


def _range(location: list[str], kind: str) -> str:
    """Return the bounds of a number key as text, such as ``1 to 1000000`` or ``above 0, at most 1``."""
    sections: dict[str, type[_Section]] = {"data": DataConfig, "split": SplitConfig, "train": TrainConfig}
    sections["cuda"] = CudaConfig
    sections["model"] = KipfConfig if kind == "kipf" else ChemGCNConfig
    section = sections.get(location[0], Config) if len(location) > 1 else Config
    field = section.model_fields.get(location[1 if len(location) > 1 else 0])
    if field is None:
        return ""
    number, bounds = field.annotation, field.metadata
    if len(location) > 2:  # an element of a list
        number, element = get_args(get_args(number)[0])
        bounds = element.metadata
    if not bounds or number not in (int, float):
        return ""
    low = high = ""
    for bound in bounds:
        if (value := getattr(bound, "ge", None)) is not None:
            low = f"at least {value:g}" if isinstance(value, float) else f"at least {value}"
        if (value := getattr(bound, "gt", None)) is not None:
            low = f"above {value:g}"
        if (value := getattr(bound, "le", None)) is not None:
            high = f"at most {value:g}" if isinstance(value, float) else f"at most {value}"
        if (value := getattr(bound, "lt", None)) is not None:
            high = f"below {value:g}"
    what = "a whole number" if number is int else "a number"
    return f"{what}, {' and '.join(bound for bound in (low, high) if bound)}"


def _siblings(location: list[str], kind: str) -> list[str]:
    everything = list(keys())
    if kind:
        section = ChemGCNConfig if kind == "chemgcn" else KipfConfig
        everything = [k for k in everything if not k.startswith("model.")] + [
            f"model.{n}" for n in section.model_fields
        ]
    inside = [k for k in everything if k.startswith(".".join(location[:-1]) + ".")] if len(location) > 1 else []
    return inside or [*everything, "data", "split", "model", "train"]


def _dig(tree: Any, location: Iterable[str]) -> Any:
    for part in location:
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, (list, tuple)) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree
