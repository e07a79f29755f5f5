"""What a run predicts as one: its only model, or the models of a cross-fitted run, with its mixture if it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.batches import BatchSource
from gcnbatch.inference.models import Model, load_models, mean_and_deviation, outputs_of
from gcnbatch.machine import cores
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.timeline import span
from gcnbatch.training import mixed, run_files
from gcnbatch.training.fit_files import BEST
from gcnbatch.training.mixed import NETWORK, Mixed
from gcnbatch.training.plan import block_folders
from gcnbatch.training.reports import METRICS


class Found(NamedTuple):
    """Outputs (R, K), their standard deviation (R, K) where several models or members gave them, and the backend."""

    outputs: NDArray[np.floating]
    deviation: NDArray[np.floating] | None
    backend: str


@dataclass(frozen=True)
class Whole:
    """Models that predict as one.

    Parameters
    ----------
    place : Path
        The folder that has what training knows of their errors.
    models : list of Model
    mixed : Mixed or None
        The mixture that they are a member of.
    """

    place: Path
    models: list[Model]
    mixed: Mixed | None = None

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

    def outputs(
        self, of_models: Sequence[tuple[NDArray[np.floating], str]], source_of: Callable[..., BatchSource], backend: str
    ) -> Found:
        """Return what it gives for the rows that ``source_of(*reading)`` has batches of.

        The deviation is that of the models; with a mixture, that of `Mixed.deviation`.

        Parameters
        ----------
        of_models
            What `outputs_of` gives for the models that it needs.
        backend : str
            Its name where it needs none.
        """
        found = self._networks(of_models, backend)
        if self.mixed is None:
            return found
        model = self.models[0]
        blocks = source_of(*model.reading).feature_blocks()
        features = mixed.molecules(model.header, blocks)
        of_members: dict[str, NDArray[Any]] = dict(self.mixed.mixture.members.predict(features, cores()))
        if self.mixed.needs_network:
            of_members[NETWORK] = found.outputs
        outputs = self.mixed.outputs(of_members)
        return Found(outputs, self.mixed.deviation(outputs, of_members, found.deviation), found.backend)

    def _networks(self, of_models: Sequence[tuple[NDArray[np.floating], str]], backend: str) -> Found:
        """Return mean and deviation of the networks."""
        if not of_models:
            return Found(np.zeros((0, 0)), None, backend)
        single, backend = [outputs for outputs, _ in of_models], of_models[-1][1]
        if len(single) == 1:
            return Found(single[0], None, backend)
        left_out = np.stack([model.left_out for model in self.models])
        return Found(*mean_and_deviation(single, left_out), backend)


def found_by(
    wholes: Sequence[Whole],
    choice: BackendChoice,
    source_of: Callable[..., BatchSource],
    batch_size: int = 0,
    progress: Callable[[int], object] = lambda graphs: None,
) -> list[Found]:
    """Return what each gives for the rows that ``source_of(*reading)`` has batches of; their networks run together."""
    with span("predict with the networks"):
        needed = [model for one in wholes for model in one.needed]
        of_models = iter(outputs_of(needed, choice, source_of, batch_size, progress))
    for one in wholes:
        if not one.needed:
            progress(len(one.models) * source_of(*one.models[0].reading).n_graphs)
    with span("combine the models"):
        fastest = choice.fastest.name
        return [one.outputs(list(islice(of_models, len(one.needed))), source_of, fastest) for one in wholes]


def load_wholes(folders: Sequence[Path], say: Callable[[str], object]) -> list[Whole]:
    """Load these runs: a cross-fitted run is one, as each of its folds is, and so is each model of the others.

    Raises
    ------
    InputError
        As `gcnbatch.inference.models.load_models`, and for a damaged mixture.
    """
    models = load_models(folders, say)
    found: list[Whole] = []
    for folder in chain.from_iterable(map(block_folders, folders)):
        own = [model for model in models if folder in (model.place, model.place.parent)]
        if (metrics := _cross_fitted(folder)) is not None:
            mixture = Mixed.load(folder, own[0].header) if "members" in metrics else None
            found.append(Whole(folder, own, mixture))
        else:
            found += [Whole(model.place, [model]) for model in own]
    return found


def network_shares(folders: Sequence[Path], models: Sequence[Model]) -> list[str]:
    """Return a line for each run with a mixture: the share of its networks, which alone are explained."""
    found = []
    for folder in chain.from_iterable(map(block_folders, folders)):
        if "members" in (_cross_fitted(folder) or {}):
            mixture = Mixed.load(folder, models[0].header).mixture
            weights = dict(zip(mixture.names, mixture.weights.mean(axis=1).tolist(), strict=True))
            own = weights.pop(NETWORK, 0.0)
            others = ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())
            found.append(f"{folder} is a mixture: its networks, of weight {own:.2f}, are explained ({others} are not)")
    return found


def _cross_fitted(folder: Path) -> dict[str, Any] | None:
    """Return the metrics of a finished cross-fitted run, None of other runs."""
    if not (folder / METRICS).is_file() or not any(folder.glob("part*")):
        return None
    metrics = run_files.read_figures(folder / METRICS)
    return metrics if "parts" in metrics else None
