"""The applicability domain: how near a molecule is to those that the model was trained on.

- Similarity: Tanimoto similarity of fingerprints to the nearest training molecule.
- Embedding distance: Euclidean distance to the nearest training graph in the values that enter the output layer, each
  divided by its standard deviation over the training graphs. The unit is the median distance of a training graph from
  its nearest neighbour, so 1 is usual and much more is far.

Training molecules are read from the data set of the run: a run folder holds no structures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.similarity import KnownMolecules
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.inference.members import Member
from gcnbatch.model.gcn import build
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.training.digest import DIGEST
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.fitted import read_split
from gcnbatch.training.run_data import RunData
from gcnbatch.training.trained import Scale

DISTANCE = "embedding_distance"
_SAMPLE = 1000  # training graphs whose nearest neighbours give the unit
_PART = re.compile(r"[a-z]+\d+(-[a-z]+\d+)*")
Float32 = NDArray[np.float32]


def embedder(member: Member) -> Member:
    """Return the member with an output layer that returns its input, as values (R, E)."""
    width = member.weights["output.weight"].shape[0]
    header = member.header.model_copy(
        update={"target": "regression", "task_names": tuple(f"e{k}" for k in range(width)), "class_names": ()}
    )
    scaling = Scale(mean=[0.0] * width, std=[1.0] * width)
    weights = member.weights | {
        "output.weight": np.eye(width, dtype=np.float32),
        "output.bias": np.zeros(width, dtype=np.float32),
    }
    about = member.about.model_copy(update={"header": header, "scaling": scaling, "left_out": []})
    return replace(member, about=about, model=build(about.model, header), weights=weights)


@dataclass(frozen=True)
class _Space:
    """Training graphs of a member in its embedding: scaled points, scale of the columns, and the unit of distance."""

    member: Member
    points: Float32
    scale: Float32
    unit: float

    @classmethod
    def of(cls, member: Member, embedded: Float32) -> _Space:
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = embedded.std(axis=0)
        if not np.isfinite(deviation).all():
            raise InputError(str(member.place), "an embedding of its training graphs is not finite", "a trained model")
        scale = np.where(deviation > 0, deviation, 1).astype(np.float32)
        points = embedded / scale
        step = -(-len(points) // _SAMPLE)
        unit = float(np.median(_distances(points, points[::step], skip=1))) if len(points) > 1 else 0.0
        return cls(member, points, scale, unit or 1.0)

    def distance(self, embedded: Float32) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore"):
            queries = embedded / self.scale
        finite = np.isfinite(queries).all(axis=1)
        found = np.full(len(queries), np.nan)
        found[finite] = _distances(self.points, queries[finite]) / self.unit
        return found


class Domain:
    """The applicability domain of the members of an ensemble.

    Parameters
    ----------
    members : sequence of Member
        With their run folders and the data set of the run in place.
    choice : BackendChoice
    batch_size : int
        Graphs per batch; 0: chosen by the backend.

    Raises
    ------
    InputError
        For node-level models, and when the data set of a run is gone or has changed.
    """

    def __init__(self, members: Sequence[Member], choice: BackendChoice, batch_size: int = 0) -> None:
        self._choice, self._batch_size = choice, batch_size
        self._spaces: list[_Space] = []
        known: dict[str, None] = {}
        for member in members:
            with training_data(member) as dataset:
                rows = read_split(member.place / SPLITS, len(dataset.y)).train
                smiles = dataset.smiles()
                known |= dict.fromkeys([smiles[row] for row in rows.tolist()] if smiles is not None else [])
                own = embedder(member)
                self._spaces.append(_Space.of(own, self._embed(own, BatchSource(dataset.read(rows), *own.reading))))
        options = FeaturizerOptions.from_header(members[0].header.featurizer) if known else None
        self._molecules = KnownMolecules(list(known), options) if options else None

    def columns(self, source_of: Callable[..., BatchSource], smiles: Sequence[str] | None) -> dict[str, Float32]:
        """Return ``nearest_similarity`` (the nearest of all members) and ``embedding_distance`` (their mean), (M,).

        ``source_of(*reading)`` returns the batches of the rows for a reading. The similarity is left out where the
        training set or the molecules have no SMILES. The distance is NaN where an embedding is not finite.
        """
        found: dict[str, Float32] = {}
        if self._molecules is not None and smiles is not None:
            found["nearest_similarity"] = self._molecules.nearest(smiles)
        pairs = ((space, source_of(*space.member.reading)) for space in self._spaces)
        distances = [space.distance(self._embed(space.member, source)) for space, source in pairs]
        found[DISTANCE] = np.stack(distances).mean(axis=0).astype(np.float32)
        return found

    def _embed(self, member: Member, source: BatchSource) -> Float32:
        progress: Callable[[int], object] = lambda graphs: None  # noqa: E731
        return member.outputs(self._choice, source, self._batch_size, progress)[0].astype(np.float32)


def training_data(member: Member) -> Dataset:
    """Open the data set that a member was trained on.

    Raises
    ------
    InputError
        See `Domain`.
    """
    if member.header.level == "node":
        raise InputError("--applicability", f"{member.place} predicts nodes", "a model of graphs")
    run = member.place.parent if _PART.fullmatch(member.place.name) and not _recorded(member.place) else member.place
    return RunData.of(run).open()


def _recorded(folder: Path) -> bool:
    return (folder / DIGEST).is_file()


def _distances(points: Float32, queries: Float32, skip: int = 0) -> NDArray[np.float64]:
    """Return the distance (Q,) of each query from the nearest point, or from the nearest but `skip`."""
    from sklearn.neighbors import NearestNeighbors

    if not len(queries):
        return np.zeros(0)
    found = NearestNeighbors(n_neighbors=1 + skip, algorithm="brute").fit(points)
    return np.asarray(found.kneighbors(queries)[0][:, skip])
