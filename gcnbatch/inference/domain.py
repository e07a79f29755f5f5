"""The applicability domain: how near a molecule is to those that the model was trained on.

- Similarity: Tanimoto similarity of fingerprints to the nearest training molecule.
- Embedding distance: Euclidean distance to the nearest training graph in the values that enter the output layer, each
  divided by its standard deviation over the training graphs. The unit is the median distance of a training graph from
  its nearest neighbour, so 1 is typical and much more is far.

Training molecules are read from the data set of the run: a run folder holds no structures. `add_to_run` compares the
errors of a run's test rows with these distances.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, tables
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.schema import Header
from gcnbatch.data.similarity import KnownMolecules
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.figures import BLUE, GREY, ORANGE, panels, save
from gcnbatch.inference.models import Model, Sources, load_models
from gcnbatch.metrics import spearman
from gcnbatch.model.gcn import build
from gcnbatch.moments import moments
from gcnbatch.predictions import read_outputs
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.training import run_files
from gcnbatch.training.finished import DIGEST, RunData, read_split
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.reports import METRICS, PREDICTIONS
from gcnbatch.training.run import read_config
from gcnbatch.training.targets import Scaling

DISTANCE = "embedding_distance"
_CANDIDATES, _BLOCK = 8, 256  # points that may be the nearest of a query; queries of a block
_SAMPLE = 1000  # training graphs whose nearest neighbours give the unit
_PART = re.compile(r"[a-z]+\d+(-[a-z]+\d+)*")
Float32 = NDArray[np.float32]


def embedder(member: Model) -> Model:
    """Return the member with an output layer that returns its input, as values (R, E)."""
    width = member.weights["output.weight"].shape[0]
    header = member.header.model_copy(
        update={"target": "regression", "task_names": tuple(f"e{k}" for k in range(width)), "class_names": ()}
    )
    weights = member.weights | {
        "output.weight": np.eye(width, dtype=np.float32),
        "output.bias": np.zeros(width, dtype=np.float32),
    }
    about = member.about.model_copy(update={"header": header, "left_out": []})
    return replace(
        member, about=about, model=build(about.model, header), weights=weights, scaling=Scaling.identity(width)
    )


@dataclass(frozen=True)
class _Space:
    """Training graphs of a member in its embedding: scaled points, squared norms, scale of the columns, and unit."""

    member: Model
    points: Float32
    norms: Float32
    scale: Float32
    unit: float

    @classmethod
    def of(cls, member: Model, embedded: Float32) -> _Space:
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = embedded.std(axis=0)
        if not np.isfinite(deviation).all():
            raise InputError(str(member.place), "an embedding of its training graphs is not finite", "a trained model")
        scale = np.where(deviation > 0, deviation, 1).astype(np.float32)
        points = embedded / scale
        step = -(-len(points) // _SAMPLE)
        norms = np.einsum("pe,pe->p", points, points)
        unit = float(np.median(_distances(points, norms, points[::step], skip=1))) if len(points) > 1 else 0.0
        return cls(member, points, norms, scale, unit or 1.0)

    def distance(self, embedded: Float32) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore"):
            queries = embedded / self.scale
        finite = np.isfinite(queries).all(axis=1)
        found = np.full(len(queries), np.nan)
        found[finite] = _distances(self.points, self.norms, queries[finite]) / self.unit
        return found


class Neighbour(NamedTuple):
    """A training molecule: SMILES, id, similarity to another one, and its targets (K,), NaN or -1 where missing."""

    smiles: str
    id: str
    similarity: float
    targets: NDArray[Any]


class Domain:
    """The applicability domain of the members of an ensemble.

    Parameters
    ----------
    members : sequence of Model
        With their run folders and the data set of the run in place.
    choice : BackendChoice
    batch_size : int
        Graphs per batch; 0: chosen by the backend.

    Raises
    ------
    InputError
        For node-level models, and when the data set of a run is gone or has changed.
    """

    def __init__(self, members: Sequence[Model], choice: BackendChoice, batch_size: int = 0) -> None:
        self._choice, self._batch_size = choice, batch_size
        self._spaces: list[_Space] = []
        known: dict[str, tuple[str, NDArray[Any]]] = {}
        for member in members:
            with training_data(member) as dataset:
                rows = read_split(member.place / SPLITS, len(dataset.y)).train
                smiles = dataset.smiles()
                if smiles is not None:
                    measured = dataset.measured
                    for row in rows.tolist():
                        known.setdefault(smiles[row], (str(dataset.ids[row]), measured[row]))
                own = embedder(member)
                self._spaces.append(_Space.of(own, self._embed(own, BatchSource(dataset.read(rows), *own.input_form))))
        options = FeaturizerOptions.from_header(members[0].header.featurizer) if known else None
        self._molecules = KnownMolecules(list(known), options) if options else None
        self._known = [(text, *about) for text, about in known.items()]

    def columns(self, sources: Sources, smiles: Sequence[str] | None) -> dict[str, Float32]:
        """Return ``nearest_similarity`` (the nearest of all members) and ``embedding_distance`` (their mean), (M,).

        The similarity is left out where the
        training set or the molecules have no SMILES. The distance is NaN where an embedding is not finite.
        """
        found: dict[str, Float32] = {}
        if self._molecules is not None and smiles is not None:
            found["nearest_similarity"] = self._molecules.nearest(smiles)
        pairs = ((space, sources(*space.member.input_form)) for space in self._spaces)
        distances = [
            space.distance(self._embed(space.member, source)) if source.n_graphs else np.zeros(0)
            for space, source in pairs
        ]
        found[DISTANCE] = np.stack(distances).mean(axis=0).astype(np.float32)
        return found

    def neighbours(self, smiles: str, count: int) -> list[Neighbour]:
        """Return the training molecules that are most similar to one, the nearest first; none without SMILES."""
        found = [] if self._molecules is None else self._molecules.neighbours(smiles, count)
        known = ((self._known[place], similarity) for place, similarity in found)
        return [Neighbour(text, name, similarity, targets) for (text, name, targets), similarity in known]

    def _embed(self, member: Model, source: BatchSource) -> Float32:
        return member.outputs(self._choice, source, self._batch_size).astype(np.float32)


def training_data(member: Model) -> Dataset:
    """Open the data set that a member was trained on.

    Raises
    ------
    InputError
        See `Domain`.
    """
    if member.header.level == "node":
        raise InputError("--applicability", f"{member.place} predicts nodes", "a model of graphs")
    run = member.place
    while _PART.fullmatch(run.name) and not (run / DIGEST).is_file():
        run = run.parent
    return RunData.of(run).open()


def _distances(points: Float32, norms: Float32, queries: Float32, skip: int = 0) -> NDArray[np.float64]:
    """Return the distance (Q,) of each query from the nearest point, or from the nearest but `skip`.

    Squared distances from products, |p|² - 2 pq, which cancel, choose candidates, whose own distances are computed.

    Parameters
    ----------
    points : (P, E)
    norms : (P,)
        |p|²
    queries : (Q, E)
    """
    found, count = np.zeros(len(queries)), min(_CANDIDATES + skip, len(points))
    for first in range(0, len(queries), _BLOCK):
        block = queries[first : first + _BLOCK]
        apart = norms - 2 * (block @ points.T)
        nearest = np.argpartition(apart, count - 1, axis=1)[:, :count]
        difference = points[nearest].astype(np.float64) - block[:, None]
        squares = np.einsum("qce,qce->qc", difference, difference)
        found[first : first + _BLOCK] = np.sqrt(np.partition(squares, skip, axis=1)[:, skip])
    return found


TABLE, PICTURE = "applicability.csv", "applicability.png"
BINS = 5
LABELS = {
    "nearest_similarity": "similarity to the nearest training molecule",
    "embedding_distance": "embedding distance (dashed: median of training rows)",
}


def add_to_run(folder: Path, choice: BackendChoice, say: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Write ``applicability.csv`` and ``applicability.png`` of a finished run; return its metrics with their figures.

    ``metrics.json`` then has an entry ``applicability``: for each measure the rank correlation (Spearman) of error and
    measure, and the mean error in five bins of equal numbers of test rows.

    Raises
    ------
    InputError
        See `Domain`; also for a run without test rows.
    """
    members = load_models([folder], say)
    header = members[0].header
    # A cross-fitted run predicts its test rows as one model.
    places = [(folder, members)] if (folder / SPLITS).is_file() else [(one.place, [one]) for one in members]
    ids: list[str] = []
    measured: list[dict[str, NDArray[np.float32]]] = []
    for place, own in places:
        domain = Domain(own, choice)
        with training_data(own[0]) as dataset:
            rows = read_split(place / SPLITS, len(dataset.y)).test
            if not len(rows):
                raise InputError(str(place), "no test rows", "some", "Set split.test above 0.")
            smiles = dataset.smiles()
            texts = None if smiles is None else [smiles[row] for row in rows.tolist()]
            measures = domain.columns(partial(BatchSource, dataset.read(rows)), texts)
            outputs = read_outputs(place / PREDICTIONS, header, len(rows))
            measured.append({**measures, "error": errors_of(header, dataset.measured, rows, outputs)})
            ids += dataset.ids[rows].tolist()
    columns = {name: np.concatenate([part[name] for part in measured]) for name in measured[0]}
    config = read_config(folder)
    tables.write(folder / TABLE, {"id": ids, **columns}, config.parquet)
    _draw(columns, folder / PICTURE)
    metrics = run_files.read_figures(folder / METRICS)
    metrics["applicability"] = {name: summarise(columns[name], columns["error"]) for name in columns if name != "error"}
    fileio.write_json(folder / METRICS, metrics)
    return metrics


def errors_of(
    header: Header, y: NDArray[Any], rows: NDArray[np.int64], outputs: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return the error (n,) of these rows, the mean over their labelled tasks; NaN without labels.

    Binary: distance of probability and label; multiclass: one minus the probability of the class; regression: absolute
    error in standard deviations of the task's targets.
    """
    if header.target == "multiclass":
        labels = y[rows, 0]
        right = outputs[np.arange(len(rows)), np.maximum(labels, 0)]
        return np.where(labels >= 0, 1 - right, np.nan).astype(np.float32)
    error = np.abs(y[rows] - outputs).astype(np.float64)
    if header.target == "regression":
        _, deviation = moments(y)
        error /= np.where(deviation > 0, deviation, 1.0)
    known = ~np.isnan(error)
    total = np.where(known, error, 0.0).sum(axis=1)
    mean = np.divide(total, known.sum(axis=1), out=np.full(len(rows), np.nan), where=known.any(axis=1))
    return mean.astype(np.float32)


def summarise(measure: NDArray[np.float32], error: NDArray[np.float32]) -> dict[str, Any]:
    """Return rank correlation, and mean measure and mean error of bins of equal numbers of rows."""
    known = np.isfinite(measure) & np.isfinite(error)
    order = np.argsort(measure[known], kind="stable")
    x, y = measure[known][order].astype(np.float64), error[known][order].astype(np.float64)
    bins = [part for part in np.array_split(np.arange(len(x)), BINS) if len(part)]
    return {
        "spearman": spearman(x, y),
        "bins": [{"mean": float(x[part].mean()), "error": float(y[part].mean()), "rows": len(part)} for part in bins],
    }


def _draw(columns: dict[str, NDArray[np.float32]], path: Path) -> None:
    names = [name for name in columns if name != "error"]
    figure, axes = panels(1, len(names), width=4.6, height=3.8)
    area = float(np.clip(3000 / max(len(columns["error"]), 1), 5, 24))  # few are seen, many do not cover each other
    for ax, name in zip(axes, names, strict=True):
        found = summarise(columns[name], columns["error"])
        ax.scatter(columns[name], columns["error"], s=area, color=GREY, alpha=0.6, linewidths=0)
        ax.plot([one["mean"] for one in found["bins"]], [one["error"] for one in found["bins"]], "o-", color=BLUE)
        rank = "–" if found["spearman"] is None else f"{found['spearman']:+.2f}"
        ax.set_title(f"rank correlation {rank}; line: fifths of the rows", loc="left", fontsize=9)
        ax.set(xlabel=LABELS[name], ylabel="error of test rows")
        if name == "embedding_distance":
            ax.axvline(1.0, color=ORANGE, linewidth=1.0, linestyle="--")
    save(figure, path)
