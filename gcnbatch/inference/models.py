"""The models of runs: loading, outputs, and their mean and deviation.

A `Model` is a network. A `Whole` is what a run predicts as one: a model, or the models of a cross-fitted run, with its
mixture if it has one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.inference.on_backend import OnBackend
from gcnbatch.inference.parts import InputForm, OfMembers
from gcnbatch.machine import cores
from gcnbatch.mixture import Members, Molecules, Preparation, Prepared
from gcnbatch.model.gcn import Loss, uniform_weights
from gcnbatch.model.predict import predict_rows
from gcnbatch.moments import in_units, unit_of
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.runners.cohort import group
from gcnbatch.runners.task import RunnerTask, no_targets
from gcnbatch.text import counted
from gcnbatch.timeline import span
from gcnbatch.training import mixed, run_files
from gcnbatch.training.fit_files import BEST
from gcnbatch.training.mixed import NETWORK, Mixed
from gcnbatch.training.plan import block_folders
from gcnbatch.training.reports import METRICS
from gcnbatch.training.run_files import CONFIG
from gcnbatch.training.targets import Scaling
from gcnbatch.training.trained import Trained, check_fit, model_folders, read_trained

Progress = Callable[[int], object]  # receives numbers of predicted graphs
Sources = Callable[..., BatchSource]  # ``sources(*form)`` returns the batches of the rows for a form
Float64 = NDArray[np.float64]
_UNTRAINED = TrainConfig()  # of tasks that only predict


def silent(graphs: int) -> None:
    """Receive the progress of work that nobody watches."""


@dataclass(frozen=True)
class Model(Trained):
    """A trained model that predicts."""

    @property
    def input_form(self) -> InputForm:
        """How it reads graphs."""
        return InputForm(self.adjacency, self.joins_graph_features)

    def outputs(
        self, choice: BackendChoice, source: BatchSource, batch_size: int = 0, progress: Progress = silent
    ) -> NDArray[np.floating]:
        """Return outputs (R, K) for all rows of `source`.

        They are probabilities, or values in the targets' unit; NaN in rows whose logits are not finite, and in tasks
        that training left out.
        """
        return outputs_of([self], choice, lambda *form: source, batch_size, progress)[0]

    def task(self, source: BatchSource) -> RunnerTask:
        """Return the task to predict all rows of `source`."""
        targets = no_targets(self.header, self.rows(source))
        return RunnerTask(self.model, self._loss, source, targets, _UNTRAINED, 0, self.weights)

    @cached_property
    def _loss(self) -> Loss:
        return Loss(self.header.target, uniform_weights(self.header))

    def rows(self, source: BatchSource) -> int:
        """Return the number of rows of `source` that have outputs."""
        return int(source.node_ptr[-1]) if self.header.level == "node" else source.n_graphs

    def of_logits(self, logits: NDArray[np.float32]) -> NDArray[np.floating]:
        """Return outputs for logits (R, K), as `outputs` does."""
        if self.header.target == "regression":
            outputs: NDArray[np.floating] = self.scaling.undo(logits)
        else:
            outputs = metrics.activate(self.header.target, logits)
        outputs[~np.isfinite(logits).all(axis=1)] = np.nan  # an infinite logit is no certainty
        return metrics.without_tasks(outputs, self.left_out)


def outputs_of(
    models: Sequence[Model], choice: BackendChoice, sources: Sources, batch_size: int = 0, progress: Progress = silent
) -> list[NDArray[np.floating]]:
    """Return what `Model.outputs` gives for each model.

    Those of one architecture predict together, as many as the backend takes.
    """
    found: dict[int, NDArray[np.floating]] = {}
    tasks = [model.task(sources(*model.input_form)) for model in models]
    for waiting in group(tasks):
        while waiting:
            together = [tasks[number] for number in waiting]
            with choice.predictor(together) as runner:
                here = waiting[: runner.size]
                del waiting[: runner.size]
                own = [models[number] for number in here]
                found |= zip(here, _outputs(own, runner, together[0].source, batch_size, progress), strict=True)
    return [found[number] for number in range(len(models))]


def _outputs(
    models: Sequence[Model], runner: Runner, source: BatchSource, batch_size: int, progress: Progress
) -> list[NDArray[np.floating]]:
    """Return the outputs of the models of a runner."""
    rows = [np.arange(models[0].rows(source), dtype=np.int64)] * len(models)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller reports outputs that are not finite
        logits = predict_rows(runner, source, rows, batch_size, progress)
        return [model.of_logits(own) for model, own in zip(models, logits, strict=True) if own is not None]


def input_header(members: Sequence[Model]) -> Header:
    """Return the header of the data that the members read, without graph features if none of them uses these."""
    for member in members:
        if member.joins_graph_features:
            return member.header
    return members[0].header.model_copy(update={"graph_feature_names": (), "graph_feature_counts": 0})


def load_models(folders: Sequence[Path], say: Callable[[str], object]) -> list[Model]:
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
        found = model_folders(folder)
        if not (folder / METRICS).is_file():
            so_far = f"{folder} is not finished: taking the best weights so far of {counted(len(found), 'model')}"
            go_on = f"; gcnbatch train --resume {shlex.quote(str(folder))} goes on"
            say(so_far + (go_on if (folder / CONFIG).is_file() else ""))
        places += found
    resolved = [place.resolve() for place in places]
    for i, place in enumerate(resolved):
        if place in resolved[:i]:
            raise InputError(str(places[i]), "given twice", "different runs", "A run with folds includes its folds.")
    members = [Model(**vars(read_trained(place))) for place in places]
    for other in members[1:]:
        check_fit(members[0], str(other.place), other.header, "Runs of an ensemble must be trained on alike data.")
    return members


class Found(NamedTuple):
    """Outputs (R, K), and their standard deviation (R, K) where several models or members gave them."""

    outputs: NDArray[np.floating]
    deviation: NDArray[np.floating] | None


def mean_and_deviation(single: Sequence[NDArray[np.floating]], left_out: NDArray[np.bool_], scaling: Scaling) -> Found:
    """Return mean and standard deviation (n - 1) over the members that have a task; NaN where too few have it.

    Parameters
    ----------
    single : sequence of (R, K)
        Outputs of each member.
    left_out : bool, (members, T)
        Tasks that a member has no outputs of; of classes, T is 1.
    scaling : Scaling
        Of the targets. It rounds values of regression, as those of each member are.
    """
    first = single[0]
    if len(single) == 1:
        return Found(first, None)
    exponent = 0
    is_regression = first.dtype == np.float64
    if is_regression:  # squares of large values overflow
        exponent = unit_of(*single)
        single = in_units(exponent, *single)
    if left_out.any():
        mean, deviation = _of_some(np.stack(single).astype(np.float64), left_out[:, None])
    else:
        mean = np.mean(single, axis=0, dtype=np.float64)
        deviation = np.std(single, axis=0, ddof=1, dtype=np.float64)
    if not is_regression:
        return Found(mean.astype(first.dtype), deviation.astype(first.dtype))
    return Found(*(scaling.rounded(np.ldexp(values, exponent)) for values in (mean, deviation)))


def _of_some(values: Float64, absent: NDArray[np.bool_]) -> tuple[Float64, Float64]:
    """Return mean and deviation of the members (members, R, K) that are not absent (members, 1, T)."""
    count = (~absent).sum(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0
        mean = np.where(absent, 0.0, values).sum(axis=0) / count
        squares = np.where(absent, 0.0, (values - mean) ** 2).sum(axis=0)
        return mean, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))


@dataclass(frozen=True)
class Whole:
    """What a run predicts as one.

    Parameters
    ----------
    place : Path
        The folder that has what training knows of their errors.
    models : list of Model
    mixed : Mixed or None
        The mixture that they are a member of.
    on_backend : OnBackend or None
        The other members of the mixture, if a backend computes what they give.
    """

    place: Path
    models: list[Model]
    mixed: Mixed | None = None
    on_backend: OnBackend | None = None

    def on(self, backend: Backend) -> Whole:
        """Return it with the other members of its mixture on a backend, unless the backend leaves them to the host."""
        members = None if self.mixed is None else self.mixed.mixture.members
        return self if members is None else replace(self, on_backend=OnBackend.of(members, backend))

    @property
    def files(self) -> list[Path]:
        """Its files."""
        return [*(model.place / BEST for model in self.models), *([self.place / mixed.FILE] if self.mixed else [])]

    @property
    def left_out(self) -> NDArray[np.bool_]:
        """Which tasks (T,) it has no outputs of."""
        absent = np.stack([model.left_out for model in self.models]).all(axis=0)
        return np.asarray(absent & self.mixed.left_out if self.mixed else absent)

    @property
    def needed(self) -> list[Model]:
        """The models whose outputs it reads: none where its mixture does not need them."""
        return self.models if self.mixed is None or self.mixed.needs_network else []

    @property
    def for_readers(self) -> Members | Preparation | None:
        """What processes that read molecules apply: the other members of its mixture, or the maps to what these read.

        None without a mixture.
        """
        if self.mixed is None:
            return None
        members = self.mixed.mixture.members
        return members if self.on_backend is None else members.preparation

    def features(self, sources: Sources) -> Molecules | None:
        """Return what the other members of its mixture read; None without a mixture."""
        if self.mixed is None:
            return None
        model = self.models[0]
        return mixed.molecules(model.header, sources(*model.input_form).feature_tables())

    def predicted(self, others: Molecules | OfMembers | None, choice: BackendChoice) -> Molecules | OfMembers | None:
        """Return what the other members give, or what they read if `outputs` computes it on the host."""
        if self.on_backend is None or not isinstance(others, Molecules | Prepared):
            return others
        if isinstance(others, Molecules) and choice.takes_on_host(len(others)):
            return others
        with span("predict with kernels and trees"):
            return self.on_backend.predict(others)

    def outputs(self, of_models: Sequence[NDArray[np.floating]], others: Molecules | OfMembers | None) -> Found:
        """Return what it gives, from the outputs of the models that it needs, and `others`.

        The deviation is that of the models; with a mixture, that of `Mixed.deviation`.

        Parameters
        ----------
        others : Molecules or mapping, or None
            What the other members of its mixture read, or what they give; None without a mixture.
        """
        found = self._networks(of_models)
        if self.mixed is None or others is None:
            return found
        if isinstance(others, Molecules):
            others = self.mixed.mixture.members.predict(others, cores())
        assert not isinstance(others, Prepared), "`predicted` has computed what they give"
        of_members: dict[str, NDArray[Any]] = dict(others)
        if self.mixed.needs_network:
            of_members[NETWORK] = found.outputs
        outputs = self.mixed.outputs(of_members)
        return Found(outputs, self.mixed.deviation(outputs, of_members, found.deviation))

    def _networks(self, of_models: Sequence[NDArray[np.floating]]) -> Found:
        if not of_models:
            return Found(np.zeros((0, 0)), None)
        return mean_and_deviation(
            of_models, np.stack([model.left_out for model in self.models]), self.models[0].scaling
        )


def begin(
    wholes: Sequence[Whole],
    choice: BackendChoice,
    sources: Sources,
    batch_size: int = 0,
    progress: Progress = silent,
    of_members: Sequence[OfMembers | None] = (),
) -> Callable[[], list[Found]]:
    """Predict with the networks of all together, and return a call that combines the outputs of each with its mixture.

    The call may run in another thread while the networks predict other graphs: it reads none. `of_members` has what the
    other members of each mixture give, if that is known.
    """
    with span("predict with the networks"):
        needed = [model for one in wholes for model in one.needed]
        of_models = iter(outputs_of(needed, choice, sources, batch_size, progress))
    for one in wholes:
        if not one.needed:
            progress(len(one.models) * sources(*one.models[0].input_form).n_graphs)
    others: Sequence[Molecules | OfMembers | None] = of_members or [one.features(sources) for one in wholes]
    others = [one.predicted(of, choice) for one, of in zip(wholes, others, strict=True)]
    parts = [(one, list(islice(of_models, len(one.needed))), of) for one, of in zip(wholes, others, strict=True)]

    def combine() -> list[Found]:
        with span("combine the models"):
            return [one.outputs(own, of) for one, own, of in parts]

    return combine


def found_together(wholes: Sequence[Whole], choice: BackendChoice, sources: Sources, batch_size: int = 0) -> Found:
    """Return what these give as an ensemble."""
    found = begin(wholes, choice, sources, batch_size)()
    if len(found) == 1:
        return found[0]
    left_out = np.stack([one.left_out for one in wholes])
    return mean_and_deviation([one.outputs for one in found], left_out, wholes[0].models[0].scaling)


def load_wholes(folders: Sequence[Path], say: Callable[[str], object]) -> list[Whole]:
    """Load these runs: a cross-fitted run is one, as each of its folds is, and so is each model of the others.

    Raises
    ------
    InputError
        As `load_models`, and for a damaged mixture.
    """
    models = load_models(folders, say)
    found: list[Whole] = []
    for folder in chain.from_iterable(map(block_folders, folders)):
        own = [model for model in models if folder in (model.place, model.place.parent)]
        metrics = {}
        if (folder / METRICS).is_file() and any(folder.glob("part*")):
            metrics = run_files.read_figures(folder / METRICS)
        if "parts" in metrics:  # a finished cross-fitted run
            found.append(Whole(folder, own, Mixed.load(folder, own[0].header) if "members" in metrics else None))
        else:
            found += [Whole(model.place, [model]) for model in own]
    return found


def network_shares(wholes: Sequence[Whole]) -> list[str]:
    """Return a line for each mixture: the share of its networks, which alone are explained."""
    found = []
    for one in wholes:
        if one.mixed is not None:
            mixture = one.mixed.mixture
            weights = dict(zip(mixture.names, mixture.weights.mean(axis=1).tolist(), strict=True))
            own = weights.pop(NETWORK, 0.0)
            others = ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())
            line = f"{one.place} is a mixture: its networks, of weight {own:.2f}, are explained ({others} are not)"
            found.append(line)
    return found
