"""Trained models: the best weights of a run with their description, read and checked, and the data that fit them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from gcnbatch.config_sections import ModelConfig
from gcnbatch.data.checks import check_header
from gcnbatch.data.featurizer_options import STANDARDIZERS
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, misfit
from gcnbatch.model.gcn import Gcn, build, joins_graph_features
from gcnbatch.text import QUOTED, listed, printable, quoted
from gcnbatch.training import checkpoint
from gcnbatch.training.fit_files import BEST, SCALING
from gcnbatch.training.plan import all_folders
from gcnbatch.training.run_files import lacking
from gcnbatch.training.targets import Scaling

_KIND = "featurizer, kind"
_OTHER_KIND = "Their featurisers differ. Give the molecules as a table, or import and train again."


class Scale(BaseModel):
    """Mean and standard deviation of each output."""

    model_config = ConfigDict(extra="forbid", strict=True)
    mean: list[FiniteFloat]
    std: list[Annotated[FiniteFloat, Field(gt=0)]]


class About(BaseModel):
    """The description that training stores with the weights; tasks that are left out have no outputs."""

    model_config = ConfigDict(extra="forbid")
    model: ModelConfig
    header: Header
    scaling: Scale
    left_out: list[str] = []
    epoch: int = Field(ge=0)


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Parameters
    ----------
    place : Path
        Its folder.
    about : About
        Configuration, header of the training data, epoch.
    model : Gcn
    weights : dict of float32 arrays
        Parameters and running statistics by name.
    scaling : Scaling
        Of the targets.
    """

    place: Path
    about: About
    model: Gcn
    weights: dict[str, NDArray[np.float32]]
    scaling: Scaling

    @property
    def header(self) -> Header:
        """Header of its inputs and outputs."""
        return self.about.header

    @cached_property
    def left_out(self) -> NDArray[np.bool_]:
        """Which tasks (T,) have no outputs, as its training rows could not teach them."""
        return np.isin(self.header.task_names, self.about.left_out)

    @property
    def adjacency(self) -> str:
        """Its normalisation of the adjacency; see `BatchSource`."""
        return self.about.model.adjacency

    @property
    def joins_graph_features(self) -> bool:
        """Whether it reads features of whole graphs."""
        return joins_graph_features(self.about.model, self.header)


def model_folders(folder: Path) -> list[Path]:
    """Return the folders with the weights of this run: itself, or its members in order.

    Raises
    ------
    InputError
        When there are none.
    """
    if (folder / BEST).is_file():
        return [folder]
    ready = [path for path in all_folders(folder)[1:] if (path / BEST).is_file()]
    if not ready:
        raise lacking(folder, BEST)
    return ready


def read_trained(folder: Path) -> Trained:
    """Read the best weights in this folder.

    Raises
    ------
    InputError
        When they are damaged, do not fit their own description, or have values that no training gives.
    """
    path = folder / BEST
    found = checkpoint.load(path)
    try:
        about = About.model_validate(found.about)
    except ValidationError as error:
        raise InputError(str(path), misfit(error), f"the {BEST} that training writes") from error
    check_header(path, about.header)
    sizes = (len(about.scaling.mean), len(about.scaling.std))
    if set(sizes) != {about.header.n_outputs}:
        raise InputError(f"{path}: scaling", f"{sizes} outputs", f"{about.header.n_outputs} each")
    if unknown := set(about.left_out) - set(about.header.task_names):
        raise InputError(f"{path}: left_out", listed(sorted(unknown)), "tasks of the model")
    model = build(about.model, about.header)
    for name, slot in model.layout().slots.items():
        array: Any = found.arrays.get(name)
        if array is None or array.shape != slot.spec.shape or array.dtype != np.float32:
            got = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise InputError(f"{path}: {name}", got, f"float32 {slot.spec.shape}, as its own description says")
    checkpoint.check_weights(path, model.layout(), found.arrays)
    weights = {name: array for name, array in found.arrays.items() if not name.startswith(f"{SCALING}/")}
    return Trained(folder, about, model, weights, _scaling(path, about, found.group(SCALING)))


def _scaling(path: Path, about: About, arrays: checkpoint.Arrays) -> Scaling:
    """Return the scaling of the targets; runs of older versions and most others have no transforms."""
    plain = Scaling(np.array(about.scaling.mean), np.array(about.scaling.std))
    try:
        found = plain.with_arrays(arrays)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise InputError(f"{path}: {SCALING}", f"damaged transforms ({error})", "those of training") from error
    if len(found.kinds) != len(plain.mean):
        raise InputError(f"{path}: {SCALING}", f"transforms of {len(found.kinds)} outputs", f"{len(plain.mean)}")
    return found


def check_fit(trained: Trained, place: str, header: Header, hint: str, outputs: bool = True) -> None:
    """Refuse data (or a model) with other rows, features, channels or tasks than those of the trained model.

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
    known = trained.header
    aspects = [*_inputs(header, trained), *(_outputs(header, known) if outputs else ())]
    for what, got, expected in aspects:
        if got != expected:
            hint = _OTHER_KIND if what == _KIND else hint
            this, that = _both(got, expected)
            raise InputError(f"{place}: {what}", this, f"{that}, as in {trained.place}", hint)


def same_outputs(header: Header, trained: Header) -> bool:
    """Whether data have the tasks and classes of a model, so that its metrics on them can be computed."""
    return not other_outputs(header, trained)


def other_outputs(header: Header, trained: Header) -> str:
    """Return the first difference of target, tasks and classes of data from those of a model, "" if there is none."""
    for what, got, expected in _outputs(header, trained):
        if got != expected:
            this, that = _both(got, expected)
            return f"{what} {this} in place of {that}"
    return ""


def _outputs(header: Header, trained: Header) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each property of the targets."""
    yield "target", header.target, trained.target
    yield "tasks", header.task_names, trained.task_names
    yield "classes", header.class_names, trained.class_names


def _inputs(header: Header, model: Trained) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each property of the graphs."""
    trained = model.header
    yield "level", header.level, trained.level
    yield "number of features", header.n_features, trained.n_features
    if header.feature_names and trained.feature_names:
        yield "features", header.feature_names, trained.feature_names
    yield "channels", header.channel_names, trained.channel_names
    if header.featurizer and trained.featurizer:
        yield _KIND, header.featurizer.get("kind"), trained.featurizer.get("kind")
        for key in ("atom_features", "self_loops"):
            yield f"featurizer, {key}", header.featurizer.get(key), trained.featurizer.get(key)
        for key in STANDARDIZERS:
            yield f"featurizer, {key}", header.featurizer.get(key, False), trained.featurizer.get(key, False)
    if model.adjacency == "stored":
        yield "normalized edge weights", header.normalized, trained.normalized
    if model.joins_graph_features:
        yield "graph features", header.graph_feature_names, trained.graph_feature_names


def _both(got: Any, expected: Any) -> tuple[str, str]:
    return _first_difference(got, expected) if isinstance(got, tuple) else (_text(got), _text(expected))


def _first_difference(got: tuple[str, ...], expected: tuple[str, ...]) -> tuple[str, str]:
    """Return both lists if their lengths differ, else their first different names."""
    if len(got) != len(expected):
        return _shown(got), _shown(expected)
    index = next(i for i, pair in enumerate(zip(got, expected, strict=True)) if pair[0] != pair[1])
    return f"{quoted(got[index])} at place {index + 1}", quoted(expected[index])


def _text(value: object) -> str:
    return printable(str(value), QUOTED)


def _shown(names: tuple[str, ...]) -> str:
    return f"{len(names)} ({listed(names)})" if names else "none"
