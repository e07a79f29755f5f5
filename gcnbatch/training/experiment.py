"""The experiment of a run: the opened data set, the model, and the runner task of each split."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics
from gcnbatch.config import Config
from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.copies import first_copies
from gcnbatch.data.graph_features import FeatureScaling
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.schema import Header
from gcnbatch.data.shards import fingerprint
from gcnbatch.data.splits import SplitRows, split_seed
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.mixture.transforms import Kind
from gcnbatch.model.gcn import (
    FEATURES,
    PLAIN_LOSSES,
    Gcn,
    Loss,
    build,
    freeze_layers,
    joins_graph_features,
    uniform_weights,
)
from gcnbatch.runners.task import RunnerTask
from gcnbatch.text import counted
from gcnbatch.training import mixed
from gcnbatch.training.checkpoint import Arrays
from gcnbatch.training.targets import Scaling, Targets

_BLOCK_BYTES = 1 << 25  # of graph features, if they were dense: sums of blocks decide the last digit


class _Sources:
    """What experiments on a data set share: sources by adjacency and graph features, rows and targets of splits."""

    def __init__(self, dataset: Dataset, on_ranks: bool, quiet: bool) -> None:
        self._dataset, self._quiet = dataset, quiet
        self._whole = dataset.fits_in_memory and not (on_ranks and dataset.n_graphs == 1)
        self._made: dict[tuple[str, bool], BatchSource] = {}
        self._rows: dict[tuple[str, float], SplitRows] = {}
        # By id of the split, which the value keeps alive.
        self._targets: dict[Hashable, tuple[Split, Targets]] = {}
        self._scalings: dict[int, tuple[Split, FeatureScaling]] = {}
        self._kinds: dict[Hashable, tuple[Kind, ...]] = {}

    def of(self, *options: Any) -> BatchSource:
        if options not in self._made:
            data = self._dataset.load() if self._whole else self._dataset
            self._made[options] = BatchSource(data, *options)
        return self._made[options]

    def split_rows(self, rule: str, similarity: float) -> SplitRows:
        if (rule, similarity) not in self._rows:
            self._rows[rule, similarity] = SplitRows.of(self._dataset, rule, similarity, self._quiet)
        return self._rows[rule, similarity]

    def targets(self, split: Split, train: TrainConfig, kinds: tuple[Kind, ...]) -> Targets:
        """Return the targets of a split. Models of an ensemble have the same split, and so do trials of a search."""
        key = id(split), train.standardize, train.regression_loss, train.bounds, train.task_weights, kinds
        if key not in self._targets:
            self._targets[key] = split, Targets.of(self._dataset, split, train, kinds)
        return self._targets[key][1]

    def scaling(self, split: Split) -> FeatureScaling:
        """Return the scaling of graph features, fitted to the training rows of a split."""
        if id(split) not in self._scalings:
            rows, header, dataset = np.sort(split.train), self._dataset.header, self._dataset
            size = max(_BLOCK_BYTES // (4 * len(header.graph_feature_names)), 1)

            def blocks() -> Iterator[NDArray[np.float32]]:
                for first in range(0, dataset.n_graphs, size):
                    stop = min(first + size, dataset.n_graphs)
                    low, high = np.searchsorted(rows, (first, stop))
                    yield dataset.measured_features(first, stop)[rows[low:high] - first]

            measured = len(header.graph_feature_names) - header.graph_feature_counts
            self._scalings[id(split)] = split, FeatureScaling.of(blocks, header.n_joined - measured)
        return self._scalings[id(split)][1]

    def kinds(self, split: Split, metric: str, seed: int) -> tuple[Kind, ...]:
        """Return the transforms that the kernel chooses; the parts of a cross-fitted model have the same rows."""
        rows = np.sort(np.concatenate([split.train, split.valid]))
        key = rows.tobytes(), metric, seed
        if key not in self._kinds:
            self._kinds[key] = mixed.choose_transforms(self._dataset, rows, self.first_copies[rows], metric, seed)
        return self._kinds[key]

    @cached_property
    def first_copies(self) -> Int64:
        return first_copies(self._dataset)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._dataset.path)


class Experiment:
    """An opened data set and everything that its splits share.

    Parameters
    ----------
    config : Config
    dataset : Dataset
        Opened and checked. It is loaded into memory if it fits in `data.memory_mb`, else read in slices.
    weights : dict of arrays
        What `gcnbatch.training.warm_start.weights` returned.
    on_ranks : bool
        Whether ranks train one model together; of a set of one graph, each then reads its own part.
    quiet : bool
        Show no progress of what a split needs.

    Attributes
    ----------
    initial : dict of arrays
        Those of `weights` that the model has.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        weights: Arrays | None = None,
        on_ranks: bool = False,
        quiet: bool = True,
        sources: _Sources | None = None,
    ) -> None:
        self.config, self.dataset = config, dataset
        self._sources = sources = sources or _Sources(dataset, on_ranks, quiet)
        self.header: Header = dataset.header
        model = build(config.model, dataset.header, dataset.n_graphs == 1 and not dataset.sparse_features)
        self.model = freeze_layers(model, config.train.freeze) if config.train.freeze else model
        self.weights = weights or {}
        self.initial = _fitting(self.model, self.weights, config.train.freeze)
        self.y, self.measured, self.ids = dataset.y, dataset.measured, dataset.ids
        _check_penalised(config, [layer.name for layer in self.model.layers])
        _check_loss(config.train, self.header)
        _check_transform(config.train, dataset)
        self.monitor = metrics.check_monitor(
            config.train.monitor, dataset.header.target, len(dataset.header.task_names)
        )
        self.source = sources.of(config.model.adjacency, joins_graph_features(config.model, dataset.header))

    def like(self, config: Config) -> Experiment:
        """Return the experiment of another configuration on the same data, which are not loaded again."""
        return Experiment(config, self.dataset, self.weights, sources=self._sources)

    @property
    def split_rows(self) -> SplitRows:
        """The rows of the data set that `gcnbatch.data.splits` divides."""
        return self._sources.split_rows(self.config.split.rule, self.config.split.similarity)

    @property
    def first_copies(self) -> Int64:
        """The first row (G,) with the molecule of each graph; see `gcnbatch.data.copies`."""
        return self._sources.first_copies

    def left_out(self, split: Split) -> NDArray[np.bool_]:
        """Return which tasks (T,) the training rows of this split cannot teach: they have no outputs."""
        return self._targets(split).left_out

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the data set's file, or of the index of its shards. A resumed run must use the same data."""
        return self._sources.fingerprint

    def task(self, split: Split) -> tuple[RunnerTask, Scaling]:
        """Return the runner task of this split and the scaling of its targets."""
        self._check_validation(split)
        found = self._targets(split)
        train, target = self.config.train, self.header.target
        kind = train.regression_loss if target == "regression" else PLAIN_LOSSES[target]
        weights = _weights(self.config, self.header, found.labels)
        loss = Loss(target, weights, kind if found.is_weighted else None)
        about = (self.model, loss, self.source, found.values, train, self.config.seed)
        return RunnerTask(*about, self._fitted(split) | self.initial), found.scaling

    @property
    def metric(self) -> str:
        """The metric of the run: what picks the best epoch; for the loss, the target's usual one."""
        if self.monitor != "loss":
            return self.monitor
        return metrics.default_monitor(self.header.target, len(self.header.task_names))

    def kinds(self, split: Split) -> tuple[Kind, ...]:
        """Return the transform of each target on a split: the configured, or the one that a kernel chooses."""
        given, tasks = self.config.train.transform, len(self.header.task_names)
        given = given * tasks if len(given) == 1 else given
        if self.header.target != "regression" or "auto" not in given:
            return tuple(kind for kind in given if kind != "auto")
        chosen = self._sources.kinds(split, self.metric, split_seed(self.config.split, self.config.seed))
        return tuple(own if kind == "auto" else kind for kind, own in zip(given, chosen, strict=True))

    def _targets(self, split: Split) -> Targets:
        return self._sources.targets(split, self.config.train, self.kinds(split))

    def _fitted(self, split: Split) -> dict[str, NDArray[np.float32]]:
        """Return the scaling of graph features, fitted to the training rows; a run to start from has its own."""
        if not joins_graph_features(self.config.model, self.header):
            return {}
        scaling = self._sources.scaling(split)
        return {f"{FEATURES}.mean": scaling.mean, f"{FEATURES}.scale": scaling.scale}

    def _check_validation(self, split: Split) -> None:
        train = self.config.train
        watching = [f"train.patience: {train.patience}"] if train.patience else []
        watching += ["train.schedule: 'plateau'"] if train.schedule == "plateau" else []
        if watching and not len(split.valid):
            raise InputError(watching[0], "no validation rows to watch", "some", "Set split.valid above 0.")


def _fitting(model: Gcn, weights: Arrays, frozen: tuple[str, ...]) -> Arrays:
    """Return those of the weights whose layer the model has with the same shapes.

    Raises
    ------
    InputError
        When there are none, or a frozen layer has none.
    """
    slots = model.layout().slots
    other = {
        name.rpartition(".")[0]
        for name, slot in slots.items()
        if (value := weights.get(name)) is None or value.shape != slot.spec.shape or value.dtype != np.float32
    }
    taken = {name: weights[name] for name in slots if name.rpartition(".")[0] not in other}
    if weights and not taken:
        raise InputError(
            "train.from_run",
            "no layer of that run has the shapes of this model",
            "a model like that one",
            "Leave out keys of [model]: they come from the run.",
        )
    if missing := [name for name in model.frozen_parameters() if name not in taken]:
        layer = missing[0].rpartition(".")[0]
        raise InputError(
            "train.freeze", f"{', '.join(frozen)}; that run has no {layer} of this shape", "layers with its weights"
        )
    return taken


def _check_penalised(config: Config, names: list[str]) -> None:
    convolutions = sum(name.removeprefix("conv").isdigit() for name in names)
    for number in config.train.l2_layers:
        if number > convolutions:
            raise InputError("train.l2_layers", str(number), f"1 to {convolutions}, the model's convolutions")


def _check_loss(train: TrainConfig, header: Header) -> None:
    """Refuse a loss of other targets, and weights that do not match the tasks."""
    if train.loss not in ("auto", "squared") and header.target != "regression":
        hint = "Classes have cross-entropy: leave train.loss out."
        raise InputError("train.loss", f"'{train.loss}' for {header.target} targets", "regression targets", hint)
    if train.task_weights and header.target == "multiclass":
        raise InputError("train.task_weights", "given for multiclass targets", "targets of several tasks")
    if train.task_weights and len(train.task_weights) != len(header.task_names):
        got = counted(len(train.task_weights), "value")
        raise InputError("train.task_weights", got, f"{len(header.task_names)}, one per task")


def _check_transform(train: TrainConfig, dataset: Dataset) -> None:
    """Refuse transforms of classes, those that do not match the tasks, and a choice without what it reads."""
    header = dataset.header
    if header.target != "regression":
        if named := next((kind for kind in train.transform if kind not in ("none", "auto")), None):
            raise InputError("train.transform", f"'{named}' for {header.target} targets", "regression targets")
        return
    _check_count("train.transform", train.transform, len(header.task_names))
    if "auto" in train.transform:
        mixed.check_features("train.transform: 'auto'", dataset, "Name none, log or quantile.")


def _check_count(key: str, values: Sequence[Any], tasks: int) -> None:
    if len(values) not in (1, tasks):
        raise InputError(key, counted(len(values), "value"), f"1, or {tasks}, one per task")


def _weights(config: Config, header: Header, labels: NDArray[Any]) -> NDArray[np.float32]:
    """Return the weights of positives (binary) or classes: the configured ones, or balanced by the training rows.

    Of regression, return the delta of huber for each task.
    """
    train = config.train
    weights: NDArray[np.float32] = uniform_weights(header)
    if train.pos_weight:
        if header.target != "binary":
            raise InputError("train.pos_weight", f"given for {header.target} targets", "binary targets")
        _check_count("train.pos_weight", train.pos_weight, header.n_outputs)
        return weights * np.asarray(train.pos_weight, dtype=np.float32)
    if train.class_weights == "none":
        return weights if header.target != "regression" else weights * np.float32(train.huber_delta)
    if header.target == "regression":
        raise InputError("train.class_weights", "'balanced' for regression targets", "binary or multiclass targets")
    if header.target == "binary":
        positives, negatives = np.nansum(labels == 1, axis=0), np.nansum(labels == 0, axis=0)
        return (np.maximum(negatives, 1) / np.maximum(positives, 1)).astype(np.float32)
    counts = np.bincount(labels[labels >= 0], minlength=header.n_outputs)
    return (counts.sum() / np.maximum(counts, 1) / header.n_outputs).astype(np.float32)
