"""The sections of a configuration: every key with its type, default, bounds and description."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gcnbatch.options import common
from gcnbatch.options.declaration import parameters
from gcnbatch.options.imports import AtomFeatures, Descriptors, MoleculeOptions
from gcnbatch.text import is_storable

Width = Annotated[int, Field(ge=1, le=65_536)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


def _as_tuple(value: Any) -> Any:
    """Return a list (or one bare number), as TOML and the command line give it, as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _as_names(value: Any) -> Any:
    """Return a list of texts, or one text with commas, as a tuple."""
    if isinstance(value, str):
        return tuple(filter(None, (name.strip() for name in value.split(","))))
    return _as_tuple(value)


def _storable(value: str) -> str:
    if not is_storable(value):
        raise PydanticCustomError("text", "text in UTF-8 without NUL characters, as config.toml is. Rename it")
    return value


Text = Annotated[str, AfterValidator(_storable)]
LayerNames = Annotated[
    tuple[Annotated[str, Field(max_length=80), AfterValidator(_storable)], ...], BeforeValidator(_as_names)
]
BondProperties = Annotated[tuple[Literal["ring", "conjugated", "stereo"], ...], BeforeValidator(_as_names)]
Readouts = Annotated[tuple[Literal["sum", "mean", "max"], ...], BeforeValidator(_as_names)]
Transforms = Annotated[tuple[Literal["none", "log", "quantile", "auto"], ...], BeforeValidator(_as_names)]
Widths = Annotated[tuple[Width, ...], BeforeValidator(_as_tuple)]
PositiveWeights = Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], BeforeValidator(_as_tuple)]


def option_field(kind: Any, **own: Any) -> Any:
    """Return the field of a key that is also an option: with the option's default, limits and help, but for `own`.

    Parameters
    ----------
    kind
        Type of the option: ``Annotated[int | None, Option(…)]``.
    """
    return _of_option(get_args(kind)[1], **own)


def _of_table(name: str) -> Any:
    """Return the field of a key that is also an option of the import of a table."""
    option = parameters(MoleculeOptions)[name]
    return _of_option(option.form, "tables: ", default=option.default)


def _of_option(form: Any, where: str = "", **own: Any) -> Any:
    text = form.help.removesuffix(".")
    text = text if text[1].isupper() else text[0].lower() + text[1:]
    limits = {"ge": form.form.get("min"), "le": form.form.get("max")}
    return Field(**{"default": form.default, **limits, "description": where + text, **own})


class Section(BaseModel):
    """Base of all sections: frozen, strict, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Section):
    """Source of the graphs."""

    path: Text = Field(
        default="", description="HDF5 data set, folder of shards, or table of molecules, from the working folder"
    )
    synthetic: Literal["", "quickstart", "tox21", "reaction100", "citation", "reddit", "products"] = Field(
        default="", description="generate this preset (seed 0) into the run folder instead of reading a path"
    )
    memory_mb: int = Field(
        default=4096, ge=16, description="larger sets are read in slices, through a cache of this size"
    )


class MoleculesConfig(Section):
    """What a table of molecules becomes, where `train` imports one; a data set keeps what its own import made."""

    bond_channels: bool = _of_table("bond_channels")
    bond_properties: BondProperties = _of_table("bond_properties")
    atom_features: AtomFeatures = _of_table("atom_features")
    positional: Text = _of_table("positional")
    descriptors: Descriptors = _of_table("descriptors")
    fingerprint: Text = _of_table("fingerprint")
    fingerprint_radius: int = _of_table("fingerprint_radius")
    fingerprint_size: int = _of_table("fingerprint_size")


class SplitConfig(Section):
    """Rows for training, validation and test."""

    kind: Literal["random", "stratified", "scaffold", "cluster", "time", "predefined"] = Field(
        default="random",
        description="how rows are assigned; scaffold, cluster: groups of molecules stay whole; time: the newest rows "
        "test, those before them validate; predefined: a split stored in the file",
    )
    name: Text = Field(
        default="", description="name of the predefined split (only for that kind); empty: the file's only one"
    )
    valid: Fraction = Field(
        default=0.1,
        description="share of rows for validation (inside each fold when folds > 0); of a predefined split without "
        "validation rows: share of its training rows",
    )
    valid_kind: Literal["random", "stratified", "scaffold", "cluster", "time"] = Field(
        default="random", description="how validation rows are drawn from the training rows of a predefined split"
    )
    test: Fraction = Field(default=0.1, description="share of rows for test (unused when folds > 0)")
    similarity: float = Field(
        default=0.4,
        gt=0.0,
        le=1.0,
        description="cluster: least Tanimoto similarity (Morgan fingerprints) of a molecule to its centre",
    )
    seed: int = Field(default=-1, ge=-1, le=2**63 - 1, description="seed of the split; -1: the run's seed")
    folds: int = option_field(common.FoldsKey, default=0, ge=0, le=1000)
    repeats: int = option_field(common.RepeatsKey, default=1, ge=1, le=1000)
    copies_together: bool = Field(
        default=False, description="put all copies of a molecule into the part of the first; not of predefined splits"
    )
    cross_fit: int = Field(
        default=0,
        ge=0,
        le=50,
        description="models, each of which validates on another of so many parts of the training and validation rows "
        "and trains on the others; copies of a molecule are in one part. 0: one validation part",
    )

    @model_validator(mode="after")
    def _room_for_training(self) -> SplitConfig:
        if self.valid + (0.0 if self.folds else self.test) >= 1.0:
            raise ValueError("valid + test must leave rows for training (sum below 1)")
        if self.folds == 1:
            raise ValueError("folds must be 0 or at least 2")
        if self.cross_fit == 1:
            raise ValueError("cross_fit must be 0 or at least 2")
        if self.name and self.kind != "predefined":
            raise ValueError(f"name = '{self.name}' needs kind = 'predefined', not '{self.kind}'")
        if self.valid_kind != "random" and self.kind != "predefined":
            raise ValueError(f"valid_kind = '{self.valid_kind}' needs kind = 'predefined', not '{self.kind}'")
        if self.folds and self.rule == "time":
            raise ValueError("folds need other test rows in each; a split by time has one test part, the newest rows")
        if self.repeats > 1 and self.rule in ("scaffold", "time"):
            raise ValueError(f"repeats of a {self.rule} split would be equal; it does not depend on the seed")
        return self

    @property
    def rule(self) -> str:
        """How rows are drawn: `kind`, or `valid_kind` where a predefined split names the other rows."""
        return self.valid_kind if self.kind == "predefined" else self.kind


_KIND = "which model; chemgcn: graphs, kipf: the nodes of one graph"


class ChemGCNConfig(Section):
    """Graph convolution with bias and batch norm per layer; readout and dense output (papers: ChemGCN)."""

    kind: Literal["chemgcn"] = Field(default="chemgcn", description=_KIND)
    widths: Widths = Field(default=(64, 64), min_length=1, description="output features of each graph convolution")
    adjacency: Literal["symmetric", "stored"] = Field(
        default="symmetric", description="symmetric: D^-1/2 A D^-1/2 per channel; stored: weights as in the file"
    )
    norm: Literal["batch", "layer", "none"] = Field(
        default="batch", description="after each graph convolution: over the batch's nodes, over a node's columns"
    )
    batch_norm_momentum: float = Field(
        default=0.1, gt=0.0, le=1.0, description="weight of a batch in running statistics"
    )
    batch_norm_epsilon: float = Field(default=1e-5, gt=0.0, le=1.0, description="added to the variance")
    layer_norm_epsilon: float = Field(default=1e-5, gt=0.0, le=1.0, description="added to the variance")
    dropout: Fraction = Field(default=0.0, description="dropout after each hidden layer")
    residual: bool = Field(
        default=False, description="add the input of a convolution to its output; from the second, where widths agree"
    )
    ffn: bool = Field(
        default=False,
        description="node-wise feed-forward network after each convolution: twice as wide inside, residual, norm",
    )
    virtual_node: bool = Field(
        default=False, description="after each convolution but the last, each node reads the mean of its graph"
    )
    jumping_knowledge: Literal["none", "cat", "max"] = Field(
        default="none",
        description="what follows reads the outputs of all convolutions; cat: concatenated, max: the largest by column",
    )
    dense: Widths = Field(default=(), description="node-wise dense layers (with ReLU) before the readout")
    readout: Readouts = Field(default=("sum",), min_length=1, description="nodes to graph; several are concatenated")
    graph_features: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="join the features of whole graphs (descriptors, the first fingerprint) to the readout; "
        "auto: if the data set has them; on: refuse a data set without",
    )
    head: Widths = Field(default=(), description="dense layers (with ReLU) between readout and output")

    @model_validator(mode="before")
    @classmethod
    def _norm_of_older_files(cls, tree: Any) -> Any:
        """Read ``batch_norm = true | false``, which configurations and weights had before `norm`."""
        if isinstance(tree, dict) and isinstance(tree.get("batch_norm"), bool):
            tree = dict(tree)
            tree.setdefault("norm", "batch" if tree.pop("batch_norm") else "none")
        return tree

    @model_validator(mode="after")
    def _widths_to_compare(self) -> ChemGCNConfig:
        if self.jumping_knowledge == "max" and len(set(self.widths)) > 1:
            raise ValueError(f"jumping_knowledge = 'max' needs equal widths, not {list(self.widths)}")
        return self


class KipfConfig(Section):
    """Kipf and Welling's node classifier: dropout, A X W, ReLU, no bias; the last convolution gives the classes."""

    kind: Literal["kipf"] = Field(default="kipf", description=_KIND)
    widths: Widths = Field(default=(16,), min_length=1, description="hidden widths; the output layer is added")
    adjacency: Literal["symmetric", "stored"] = Field(
        default="symmetric", description="symmetric: D^-1/2 A D^-1/2 per channel; stored: weights as in the file"
    )
    dropout: Fraction = Field(default=0.5, description="dropout on the input of every layer")
    input_dropout: bool = Field(default=True, description="dropout on the features too, not only on hidden layers")


ModelConfig = Annotated[Union[ChemGCNConfig, KipfConfig], Field(discriminator="kind")]


class TrainConfig(Section):
    """Training of the parameters."""

    epochs: int = option_field(common.EpochsKey, default=50, ge=1, le=1_000_000)
    ensemble: int = option_field(common.EnsembleKey, default=1, ge=1, le=10_000)
    batch_size: int = option_field(common.BatchSizeKey, default=50, ge=1, le=1_000_000)
    eval_batch_size: int = Field(
        default=0, ge=0, le=1_000_000, description="graphs per batch in validation and test; 0: chosen by the backend"
    )
    mixture: bool = Field(
        default=False,
        description="mix the networks with a kernel and trees on fingerprint and descriptors (needs split.cross_fit)",
    )
    from_run: Text = Field(
        default="", description="start from the weights of this run, by name and shape; [model] defaults to its own"
    )
    freeze: LayerNames = Field(
        default=(), description="layers that keep the weights of from_run, such as conv1, conv2; all-conv: convolutions"
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
        default="constant",
        description="learning rate over epochs; cosine: half a period, to the floor after the last epoch",
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
        "auto",
        "loss",
        "roc_auc",
        "pr_auc",
        "accuracy",
        "balanced_accuracy",
        "f1",
        "mcc",
        "rmse",
        "mae",
        "r2",
        "spearman",
    ] = Field(
        default="auto",
        description="validation value that picks the best epoch; auto: roc_auc, accuracy, rmse (several tasks: r2)",
    )
    loss: Literal["auto", "squared", "absolute", "huber"] = Field(
        default="squared",
        description="regression: cost of a difference; huber: squared up to huber_delta, absolute beyond. Classes have "
        "cross-entropy. auto: for either, huber for regression",
    )
    huber_delta: float = Field(
        default=1.0,
        gt=0.0,
        description="huber: difference from which on its cost grows linearly; of standardised targets",
    )
    bounds: Literal["values", "one_sided"] = Field(
        default="values",
        description="regression: targets like >10; values: taken as 10; one_sided: predictions above 10 cost nothing",
    )
    task_weights: PositiveWeights = Field(default=(), description="weight of each task's labels; empty: 1")
    class_weights: Literal["none", "balanced"] = Field(
        default="none", description="balanced: weights of positives (or classes) by their rarity in the training rows"
    )
    pos_weight: PositiveWeights = Field(
        default=(), description="binary: weight of a positive per task; empty: from class_weights"
    )
    transform: Transforms = Field(
        default=("none",),
        min_length=1,
        description="regression: scale on which targets are learnt, one for all or one per task; log: natural "
        "logarithm; quantile: normal scores of ranks; auto: what gives a kernel the least error on left-out rows",
    )
    standardize: bool = Field(default=True, description="regression: fit targets scaled to mean 0 and deviation 1")
    level: float = Field(
        default=0.9, ge=0.5, lt=1.0, description="share of right values that intervals and sets of labels promise"
    )
    sync_batch_norm: bool = Field(
        default=True,
        description="on several ranks, batch-norm statistics over the whole batch; false: over each rank's graphs",
    )
    checkpoint_seconds: float = Field(
        default=5.0, ge=0.0, description="least time between checkpoints; 0: after every step"
    )
    tensorboard: bool = Field(default=False, description="write TensorBoard's event file into the folder of each fit")

    @model_validator(mode="after")
    def _frozen_from_somewhere(self) -> TrainConfig:
        if self.freeze and not self.from_run:
            raise ValueError(f"freeze = {', '.join(self.freeze)} needs from_run, the run whose weights are kept")
        return self

    @property
    def regression_loss(self) -> Literal["squared", "absolute", "huber"]:
        """The cost of a difference from a target of regression."""
        return "huber" if self.loss == "auto" else self.loss


class CudaConfig(Section):
    """Options of the CUDA backends; `cpu` ignores them."""

    precision: Literal["fp32", "tf32"] = Field(
        default="fp32", description="of matrix products; tf32: inputs rounded to 11 bits"
    )
    spmm: Literal["auto", "csr", "naive", "swa_csr", "swa_coo", "tf"] = Field(
        default="auto",
        description="kernel of adjacency products; auto: ours, by a measured table; nonbatched: tf, the papers' loop. "
        "naive: for reading, slow; swa_coo and tf add atomically: not bit-repeatable",
    )
    fast_math: bool = Field(
        default=False, description="compile with --use_fast_math: approximate division and exponentials"
    )
    resident: Literal["auto", "on", "off"] = option_field(common.ResidentKey)
