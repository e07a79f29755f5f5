"""Trained models of an ensemble, one per run or member of a run, and the checks that data fit them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gcnbatch.config_sections import ModelConfig, TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.checks import check_header
from gcnbatch.data.featurizer import STANDARDIZERS
from gcnbatch.data.molecule_graphs import missing_targets
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, misfit
from gcnbatch.model.gcn import Gcn, Loss, build, uniform_weights
from gcnbatch.model.predict import predict_rows
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.runners.task import RunnerTask
from gcnbatch.text import QUOTED, listed, printable, quoted
from gcnbatch.train import checkpoint, metrics
from gcnbatch.train.experiment import Scaling
from gcnbatch.train.member_files import BEST
from gcnbatch.train.plan import member_folders
from gcnbatch.train.report import METRICS


class Scale(BaseModel):
    """Mean and standard deviation of each output."""

    model_config = ConfigDict(extra="forbid")
    mean: list[float]
    std: list[float]


class _About(BaseModel):
    """The description that training stores with the weights."""

    model_config = ConfigDict(extra="forbid")
    model: ModelConfig
    header: Header
    scaling: Scale
    epoch: int = Field(ge=0)


@dataclass(frozen=True)
class Member:
    """A trained model.

    Parameters
    ----------
    place : Path
        Its folder.
    about : _About
        Configuration, header of the training data, scaling of the targets, epoch.
    model : Gcn
    weights : dict of float32 arrays
        Parameters and running statistics by name.
    """

    place: Path
    about: _About
    model: Gcn
    weights: dict[str, NDArray[np.float32]]

    @property
    def header(self) -> Header:
        """Header of its inputs and outputs."""
        return self.about.header

    @property
    def adjacency(self) -> str:
        """Its normalisation of the adjacency; see `BatchSource`."""
        return self.about.model.adjacency

    def outputs(
        self, choice: BackendChoice, source: BatchSource, batch_size: int, progress: Callable[[int], object]
    ) -> tuple[NDArray[np.float32], str]:
        """Return outputs (R, K) for all rows of `source`, and the name of the backend that computed them.

        Outputs are probabilities, or values in the targets' unit.
        """
        rows = int(source.node_ptr[-1]) if self.header.level == "node" else source.n_graphs
        loss = Loss(self.header.target, uniform_weights(self.header))
        task = RunnerTask(self.model, loss, source, missing_targets(self.header, rows), TrainConfig(), seed=0)
        runner = choice.make_runner(task)
        try:
            runner.load_state(self.weights)
            logits = predict_rows(runner, source, np.arange(rows, dtype=np.int64), batch_size, progress)
        finally:
            runner.close()
        if self.header.target == "regression":
            scaling = Scaling(np.array(self.about.scaling.mean), np.array(self.about.scaling.std))
            return scaling.undo(logits), runner.backend
        return metrics.activate(self.header.target, logits), runner.backend


def load_members(folders: Sequence[Path], say: Callable[[str], object]) -> list[Member]:
    """Load the models of these run folders: one per run, or one per member (fold, repeat, model).

    Parameters
    ----------
    say : callable
        Called with a message about each unfinished run.

    Raises
    ------
    InputError
        For a folder without weights or given twice, damaged weights, and models with different inputs or outputs.
    """
    places: list[Path] = []
    for folder in folders:
        found = list(_weights_of(folder))
        if not (folder / METRICS).is_file():
            say(f"{folder} is not finished: taking the best weights so far of {len(found)} model(s)")
        places += found
    resolved = [place.resolve() for place in places]
    for i, place in enumerate(resolved):
        if place in resolved[:i]:
            raise InputError(str(places[i]), "given twice", "different runs", "A run with folds includes its folds.")
    members = [_load(place) for place in places]
    for other in members[1:]:
        check_fit(members[0], str(other.place), other.header, "Runs of an ensemble must be trained on alike data.")
    return members


def _weights_of(folder: Path) -> Iterator[Path]:
    """Yield the folders with the weights of this run: itself, or its members in order."""
    if (folder / BEST).is_file():
        yield folder
        return
    ready = [path for path in member_folders(folder) if (path / BEST).is_file()]
    if not ready:
        got = f"no {BEST} in it" if folder.is_dir() else "not a folder" if folder.exists() else "no such folder"
        raise InputError(str(folder), got, "the folder of a run", "Make one with 'gcnbatch train'.")
    yield from ready


def _load(folder: Path) -> Member:
    path = folder / BEST
    found = checkpoint.load(path)
    try:
        about = _About.model_validate(found.about)
    except ValidationError as error:
        raise InputError(str(path), misfit(error), f"the {BEST} that training writes") from error
    check_header(path, about.header)
    sizes = (len(about.scaling.mean), len(about.scaling.std))
    if set(sizes) != {about.header.n_outputs}:
        raise InputError(f"{path}: scaling", f"{sizes} outputs", f"{about.header.n_outputs} each")
    model = build(about.model, about.header)
    for name, slot in model.layout().slots.items():
        array: Any = found.arrays.get(name)
        if array is None or array.shape != slot.spec.shape or array.dtype != np.float32:
            got = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise InputError(f"{path}: {name}", got, f"float32 {slot.spec.shape}, as its own description says")
    return Member(folder, about, model, found.arrays)


# ------------------------------------------------------------------------------------------------ what fits


def check_fit(member: Member, place: str, header: Header, hint: str, outputs: bool = True) -> None:
    """Refuse data (or a model) with other rows, features, channels or tasks than those of the member.

    Parameters
    ----------
    place, header
        Name and header of the data to check.
    outputs : bool
        Also compare tasks and classes. Data to predict need not have those of the model.

    Raises
    ------
    InputError
        Names the first difference and both values.
    """
    trained = member.header
    aspects = [*_inputs(header, trained, member.adjacency == "stored"), *(_outputs(header, trained) if outputs else ())]
    for what, got, expected in aspects:
        if got != expected:
            this, that = _first_difference(got, expected) if isinstance(got, tuple) else (_text(got), _text(expected))
            raise InputError(f"{place}: {what}", this, f"{that}, as in {member.place}", hint)


def same_outputs(header: Header, trained: Header) -> bool:
    """Whether data have the tasks and classes of a model, so that its metrics on them can be computed."""
    return all(got == expected for _, got, expected in _outputs(header, trained))


def _outputs(header: Header, trained: Header) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each property of the targets."""
    yield "target", header.target, trained.target
    yield "tasks", header.task_names, trained.task_names
    yield "classes", header.class_names, trained.class_names


def _inputs(header: Header, trained: Header, stored: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each property of the graphs."""
    yield "level", header.level, trained.level
    yield "number of features", header.n_features, trained.n_features
    if header.feature_names and trained.feature_names:
        yield "features", header.feature_names, trained.feature_names
    yield "channels", header.channel_names, trained.channel_names
    if header.featurizer and trained.featurizer:
        for key in ("kind", "atom_features", "self_loops"):
            yield f"featurizer, {key}", header.featurizer.get(key), trained.featurizer.get(key)
        for key in STANDARDIZERS:
            yield f"featurizer, {key}", header.featurizer.get(key, False), trained.featurizer.get(key, False)
    if stored:
        yield "normalized edge weights", header.normalized, trained.normalized


def _first_difference(got: tuple[str, ...], expected: tuple[str, ...]) -> tuple[str, str]:
    """Return both lists if their lengths differ, else their first different names."""
    if len(got) != len(expected):
        return _shown(got), _shown(expected)
    at = next(i for i, pair in enumerate(zip(got, expected, strict=True)) if pair[0] != pair[1])
    return f"{quoted(got[at])} at place {at + 1}", quoted(expected[at])


def _text(value: object) -> str:
    return printable(str(value), QUOTED)


def _shown(names: tuple[str, ...]) -> str:
    return f"{len(names)} ({listed(names)})"
