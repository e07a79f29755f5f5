"""Integrated gradients (Sundararajan, Taly, Yan: "Axiomatic attribution for deep networks", ICML 2017).

The attribution of an input is its value times the mean gradient along a path from a baseline to the graph: graphs whose
features and bonds grow from zero to what they are. All attributions of a graph add up to f(graph) - f(baseline). With
finitely many positions they miss that difference by the completeness error, which decides how many are enough.

At position a of the path, the features are a x, and the values of edges between different nodes are a times the
model's (normalised) ones. Self-loops keep theirs. Features of whole graphs are a z, where z is scaled as the model
takes it: 0 is the mean of the training rows, or a count of 0. At a = 0 a graph is its nodes, without features and
bonds.

Dimensions: G graphs with N nodes, E edges and D features of whole graphs, S positions (steps), T explained outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_features import LIMIT, FeatureTable, GraphFeatures
from gcnbatch.data.graphs import GraphSet, Int64, concatenate
from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.schema import Header
from gcnbatch.data.sparse import ragged_rows
from gcnbatch.errors import InputError, closest
from gcnbatch.explanation.attributions import Attributions, Joined, segment_sums
from gcnbatch.fileio import StrPath
from gcnbatch.inference.ensemble import as_input
from gcnbatch.inference.inputs import open_input
from gcnbatch.inference.models import Model, load_wholes, network_shares
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.model.gcn import FEATURES
from gcnbatch.predictions import output_names
from gcnbatch.reference.join import join
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.runners.input_gradients import InputGradientRunner
from gcnbatch.text import listed, quoted

Float64 = NDArray[np.float64]


def midpoints(steps: int, known: int = 0) -> Float64:
    """Return the middles of so many equal parts of 0 … 1, but for those of `known` parts; `steps` is 3 times `known`.

    >>> midpoints(2).tolist(), midpoints(6, known=2).round(3).tolist()
    ([0.25, 0.75], [0.083, 0.417, 0.583, 0.917])
    """
    number = np.arange(steps)
    return ((number[number % 3 != 1] if known else number) + 0.5) / steps


@dataclass(frozen=True)
class GraphPath:
    """The path of some graphs.

    Parameters
    ----------
    graphs : GraphSet
    weight : float32, (E,)
        The edges' values in the model.
    joined : float32, (G, D), or None
        Features of whole graphs, scaled; None for a model without them.
    """

    graphs: GraphSet
    weight: NDArray[np.float32]
    joined: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, graphs: GraphSet, adjacency: str, joined: NDArray[np.float32] | None = None) -> GraphPath:
        """Return the path for a model with this `adjacency`; see `BatchSource`."""
        if adjacency == "symmetric" and not graphs.header.normalized:
            return cls(graphs, symmetric_weights(graphs), joined)
        return cls(graphs, np.ones(graphs.n_edges, np.float32) if graphs.weight is None else graphs.weight, joined)

    @cached_property
    def bonds(self) -> Int64:
        """Edges between different nodes, their positions among the E edges."""
        return np.flatnonzero(self.graphs.src != self.graphs.dst)

    @property
    def _counts(self) -> int:
        """How many of the joined features are counts: those of one fingerprint."""
        header = self.graphs.header
        return header.n_joined + header.graph_feature_counts - len(header.graph_feature_names)

    @cached_property
    def ends(self) -> tuple[Int64, Int64]:
        """Row (receiving node) and column (sending node times C, plus channel) of every bond in the adjacency."""
        graphs, bonds = self.graphs, self.bonds
        first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))[bonds]
        channels = graphs.header.n_channels
        return first + graphs.dst[bonds], (first + graphs.src[bonds]) * channels + graphs.channel[bonds]

    def at(self, alpha: Float64) -> BatchSource:
        """Return all graphs at each position (S,): graph g at position s is number s*G + g."""
        graphs, copies = self.graphs, len(alpha)
        weight = np.tile(self.weight, (copies, 1))
        weight[:, self.bonds] *= alpha[:, None].astype(np.float32)
        stepped = replace(
            graphs,
            node_ptr=_repeated(graphs.node_ptr, copies),
            edge_ptr=_repeated(graphs.edge_ptr, copies),
            src=np.tile(graphs.src, copies),
            dst=np.tile(graphs.dst, copies),
            channel=np.tile(graphs.channel, copies),
            weight=weight.ravel(),
            x=_times(graphs.x, alpha),
            y=np.tile(graphs.y, (copies, 1)),
            ids=np.tile(graphs.ids, copies),
            groups=None,
            splits={},
            smiles=None,
            graph_features=None if self.joined is None else FeatureTable.of(_times(self.joined, alpha), self._counts),
        )
        return BatchSource(stepped, "stored", graph_features=self.joined is not None)

    def pairs(self, copies: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return `ends` in so many copies of the graphs."""
        steps, channels = np.arange(copies)[:, None] * self.graphs.n_nodes, self.graphs.header.n_channels
        rows, columns = self.ends
        return (rows + steps).ravel().astype(np.int32), (columns + steps * channels).ravel().astype(np.int32)


def _repeated(ptr: Int64, copies: int) -> Int64:
    """Return the pointer of so many copies of the segments."""
    shifted = ptr[1:] + np.arange(copies, dtype=np.int64)[:, None] * ptr[-1]
    return np.concatenate([ptr[:1], shifted.ravel()])


def _times(x: Any, alpha: Float64) -> Any:
    """Return alpha times the rows (N, F), float32 (S*N, F)."""
    sparse: bool = sp.issparse(x)
    if sparse:
        copies: Any = sp.vstack([x] * len(alpha), format="csr", dtype=np.float32)
        copies.data *= np.repeat(alpha, x.nnz).astype(np.float32)
        return copies
    return (alpha[:, None, None].astype(np.float32) * x.astype(np.float32)).reshape(-1, x.shape[1])


Float32 = NDArray[np.float32]

ROUNDS = [16, 48, 144, 432]  # positions; a round reuses those of the one before, a third of its own
TOLERANCE = 0.02  # largest completeness error at which a graph is done, times 1 + |f(graph) - f(baseline)|, of logits
BATCH_NODES = {"host": 8192, "device": 32768}  # nodes of a batch, over all copies of its graphs, by a backend's clock


class Explainer:
    """Integrated gradients of an ensemble's members.

    Parameters
    ----------
    members : sequence of Model
    choice : BackendChoice
    tasks : sequence of str
        Outputs to explain, as `gcnbatch.predictions.output_names` names them (a class also by its own name); none: all.
    steps : int
        Positions on the path; 0: as many of ROUNDS as the completeness error of a graph needs.
    batch_nodes : int
        Nodes per batch, over all copies of its graphs; 0: chosen by the backend.

    Raises
    ------
    InputError
        For node-level models and unknown tasks.
    """

    def __init__(
        self,
        members: Sequence[Model],
        choice: BackendChoice,
        tasks: Sequence[str] = (),
        steps: int = 0,
        batch_nodes: int = 0,
    ) -> None:
        self.header = members[0].header
        if self.header.level == "node":
            raise InputError("explain", f"{members[0].place} predicts nodes", "a model of graphs")
        self.places = _places(members, tasks)  # of the explained outputs among the K
        self.names = tuple(output_names(self.header)[place] for place in self.places)
        backend = choice.fastest
        self.backend = backend.name
        self.joins = any(member.joins_graph_features for member in members)  # features of whole graphs
        self._rounds = [steps] if steps else ROUNDS
        self._batch_nodes = batch_nodes or BATCH_NODES[backend.meter.clock]
        self._members = members
        self._runners = [
            InputGradientRunner(backend, member.model, member.weights, _heads(self.header)[self.places])
            for member in members
        ]
        self.kinds = {
            member.scaling.kinds[place] for member in members for place in self.places
        }  # transforms of outputs
        self._shares = _shares(members)[:, self.places]
        self._units = np.array([member.scaling.std[self.places] for member in members]) * self._shares
        self.unit: Float64 = self._units.sum(axis=0)  # of each explained output, in which the completeness error counts

    def explain(self, graphs: GraphSet, progress: Callable[[int], object] = lambda graphs: None) -> Attributions:
        """Return the attributions of all graphs.

        Parameters
        ----------
        graphs : GraphSet
            It fits the models; see `gcnbatch.training.trained.check_fit`.
        progress : callable
            Called with the number of graphs of each finished part, for every member.

        Raises
        ------
        InputError
            When a model's output or an attribution is not finite.
        """
        scaled = [_scaled(member, graphs) for member in self._members]
        own = _nonzero(scaled, graphs.n_graphs)
        made = zip(self._members, self._runners, scaled, strict=True)
        found = [
            self._fill(_Sums(runner, member.adjacency, graphs, len(self.names), own, joined), progress)
            for member, runner, joined in made
        ]
        offset = np.sum([member.scaling.mean[self.places] for member in self._members] * self._shares, axis=0)

        def mean(values: Sequence[Float64]) -> Float64:
            """Return the members' mean, in the unit of the outputs."""
            return np.sum([one * unit for one, unit in zip(values, self._units, strict=True)], axis=0)

        return Attributions(
            graphs,
            self.names,
            mean([one.outputs for one in found]) + offset,
            mean([one.baselines for one in found]) + offset,
            mean([one.mean_nodes() for one in found]),
            mean([one.mean_edges() for one in found]),
            Joined(*own, mean([one.mean_joined() for one in found])),
            np.max([one.steps for one in found], axis=0),
        )

    def _fill(self, sums: _Sums, progress: Callable[[int], object]) -> _Sums:
        """Return the sums with positions added until every graph has enough."""
        pending, known = np.arange(len(sums.steps)), 0
        for steps in self._rounds:
            left = [pending[:0]]
            for picked, copies in self._batches(sums.sizes, pending):
                sums.add(picked, midpoints(steps, known), copies)
                sums.steps[picked] = steps
                left.append(picked[sums.inexact(picked)] if steps != self._rounds[-1] else pending[:0])
                progress(len(picked) - len(left[-1]))
            pending, known = np.concatenate(left), steps
        return sums

    def _batches(self, sizes: Int64, pending: Int64) -> Iterator[tuple[Int64, int]]:
        """Yield the graphs of a batch, and the number of copies of them that it has room for."""
        most = self._batch_nodes // ROUNDS[0]
        while len(pending):
            ends = np.cumsum(sizes[pending])
            count = max(int(np.searchsorted(ends, most, side="right")), 1)
            yield pending[:count], max(self._batch_nodes // max(int(ends[count - 1]), 1), 1)
            pending = pending[count:]


class _Sums:
    """Sums over the path, of one model for all graphs of a set.

    Parameters
    ----------
    own : (int64 (M,), int64 (M,))
        Graph and column of each feature of a whole graph that gets an attribution.
    joined : float32, (G, D), or None
        These features, scaled; None if the model joins none.
    """

    def __init__(
        self,
        runner: InputGradientRunner,
        adjacency: str,
        graphs: GraphSet,
        n_outputs: int,
        own: tuple[Int64, Int64],
        joined: Float32 | None,
    ) -> None:
        self._runner, self._adjacency, self._graphs = runner, adjacency, graphs
        self._graph, self._feature, self._scaled = *own, joined
        self._own_ptr = np.searchsorted(self._graph, np.arange(graphs.n_graphs + 1))
        self.sizes = np.diff(graphs.node_ptr)
        self.outputs, self.baselines = np.zeros((2, graphs.n_graphs, n_outputs))
        self.steps = np.zeros(graphs.n_graphs, np.int64)
        self._nodes = np.zeros((graphs.n_nodes, n_outputs))
        self._edges = np.zeros((graphs.n_edges, n_outputs))
        self._joined = np.zeros((len(self._graph), n_outputs))

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, picked: Int64, alpha: Float64, copies: int) -> None:
        """Add these graphs at these positions, at most so many at once; at first, also compute both ends.

        Raises
        ------
        InputError
            When an output or an attribution is not finite.
        """
        graphs = self._graphs
        scaled = None if self._scaled is None else self._scaled[picked]
        path = GraphPath.of(graphs.take(picked), self._adjacency, scaled)
        nodes, edges = (ragged_rows(ptr, picked)[0] for ptr in (graphs.node_ptr, graphs.edge_ptr))
        own, own_ptr = ragged_rows(self._own_ptr, picked)
        rows, columns = np.repeat(np.arange(len(picked)), np.diff(own_ptr)), self._feature[own]
        if not self.steps[picked].any():
            ends = self._runner.outputs(path.at(np.array([0.0, 1.0]))).reshape(2, len(picked), -1)
            self._check_finite(picked, ends.swapaxes(0, 1))
            self.baselines[picked], self.outputs[picked] = ends
        bonds, weight = edges[path.bonds], path.weight[path.bonds][:, None]
        for first in range(0, len(alpha), copies):
            part = alpha[first : first + copies]
            sampled = (rows + np.arange(len(part))[:, None] * len(picked)).ravel(), np.tile(columns, len(part))
            found = self._runner.contributions(path.at(part), path.pairs(len(part)), sampled)
            of_nodes, of_edges, of_own = (one.reshape(len(part), -1, one.shape[1]) for one in found)
            self._nodes[nodes] += np.einsum("s,snt->nt", 1 / part, of_nodes)  # a x is the input there, x is here
            self._edges[bonds] += weight * of_edges.sum(axis=0, dtype=np.float64)
            if scaled is not None:
                self._joined[own] += scaled[rows, columns, None] * of_own.sum(axis=0, dtype=np.float64)
        self._check_finite(picked, self._nodes[nodes], self._edges[edges], self._joined[own])

    def _check_finite(self, picked: Int64, *values: NDArray[np.floating]) -> None:
        """Refuse values that are not finite; those of outputs have a row for each graph and name the first one."""
        if all(np.isfinite(one).all() for one in values):
            return
        finite = np.isfinite(values[0]).reshape(len(values[0]), -1).all(axis=1)
        index = int(np.argmin(finite)) if len(values) == 1 else 0
        what = "the model's output" if len(values) == 1 else "an attribution of this row or one of the next"
        row = f"row {quoted(self._graphs.ids[picked[index]])}"
        raise InputError(row, f"{what} is not a finite number", hint="Leave the row out.")

    def inexact(self, picked: Int64) -> NDArray[np.bool_]:
        """Return which graphs have a completeness error beyond the tolerance in an output."""
        of_nodes, node_ptr = ragged_rows(self._graphs.node_ptr, picked)
        of_edges, edge_ptr = ragged_rows(self._graphs.edge_ptr, picked)
        own, own_ptr = ragged_rows(self._own_ptr, picked)
        total = segment_sums(self._nodes[of_nodes], node_ptr) + segment_sums(self._edges[of_edges], edge_ptr)
        total += segment_sums(self._joined[own], own_ptr)
        wanted = self.outputs[picked] - self.baselines[picked]
        error = np.abs(total / self.steps[picked, None] - wanted)
        return np.asarray((error > TOLERANCE * (1 + np.abs(wanted))).any(axis=1))

    def mean_nodes(self) -> Float64:
        """Return the attributions of all nodes (N, T)."""
        return self._nodes / np.repeat(self.steps, np.diff(self._graphs.node_ptr))[:, None]

    def mean_edges(self) -> Float64:
        """Return the attributions of all edges (E, T)."""
        return self._edges / np.repeat(self.steps, np.diff(self._graphs.edge_ptr))[:, None]

    def mean_joined(self) -> Float64:
        """Return the attributions of the features of whole graphs (M, T)."""
        return self._joined / self.steps[self._graph, None]


def _scaled(member: Model, graphs: GraphSet) -> Float32 | None:
    """Return the features of whole graphs as a model takes them, (G, D); None if it joins none."""
    if not member.joins_graph_features:
        return None
    assert graphs.graph_features is not None
    table = graphs.graph_features.first(graphs.header.n_joined)
    features = GraphFeatures(table.dense(), np.arange(graphs.n_graphs))
    mean, scale = (member.weights[f"{FEATURES}.{part}"] for part in ("mean", "scale"))
    nothing = np.zeros((graphs.n_graphs, 0), np.float32)
    return np.asarray(join(nothing, features, mean, scale, LIMIT), np.float32)


def _nonzero(scaled: Sequence[Float32 | None], n_graphs: int) -> tuple[Int64, Int64]:
    """Return graph and column of each feature that is not 0 for every model."""
    some: NDArray[np.bool_] = np.zeros((n_graphs, 0), np.bool_)
    for one in scaled:
        if one is not None:
            some = one != 0 if not some.size else some | (one != 0)
    graph, feature = np.nonzero(some)
    return graph.astype(np.int64), feature.astype(np.int64)


def _places(members: Sequence[Model], tasks: Sequence[str]) -> list[int]:
    """Return the outputs that the names mean, in the order of the model's; none of tasks that no member has learned."""
    header, known = members[0].header, output_names(members[0].header)
    names = {name: index for index, name in enumerate(known)} | {
        name: index for index, name in enumerate(header.class_names)
    }
    is_learned = _shares(members).sum(axis=0) > 0
    for task in tasks:
        if task not in names:
            raise InputError("--task", f"no output {quoted(task)}", listed(known), closest(task, names))
        if not is_learned[names[task]]:
            raise InputError("--task", f"{quoted(task)} was left out of training", "a task that the model has learned")
    return sorted({names[task] for task in tasks}) or np.flatnonzero(is_learned).tolist()


def _shares(members: Sequence[Model]) -> Float64:
    """Return the share of each member in the mean of each output, (members, K): 0 in tasks that it has not learned."""
    has_task = np.array([np.broadcast_to(~member.left_out, member.header.n_outputs) for member in members])
    return has_task / np.maximum(has_task.sum(axis=0), 1)


def _heads(header: Header) -> NDArray[np.float32]:
    """Return every output as a combination of the logits, (K, K): log-odds, centred logits, or scaled values."""
    centre = 1 / header.n_outputs if header.target == "multiclass" else 0.0
    return np.eye(header.n_outputs, dtype=np.float32) - np.float32(centre)


def attribute(
    runs: Sequence[Path],
    data: StrPath | GraphSet | Iterable[str],
    *,
    tasks: Sequence[str] = (),
    steps: int = 0,
    backend: str = "auto",
    device: int = 0,
    cuda: CudaConfig | None = None,
    processes: int = 0,
    say: Callable[[str], object] = lambda line: None,
) -> Attributions:
    """Return the attributions of data in memory, by the models of these run folders.

    Parameters
    ----------
    runs : sequence of Path
        A run with folds counts as all its folds; of several models, attributions are the means. Of a mixture, the
        networks are explained.
    data : path, GraphSet or iterable of SMILES
        Molecules that cannot be read are left out; `Attributions.graphs` has the ids of the others.
    tasks, steps
        As for `Explainer`.
    backend, device, cuda
        Backend, GPU and CUDA options.
    processes : int
        Processes that read SMILES; 0: one per processor.
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        When runs and data do not fit, and as `Explainer`.
    """
    wholes = load_wholes(runs, say)
    members = [model for one in wholes for model in one.models]
    for line in network_shares(wholes):
        say(line)
    explainer = Explainer(members, BackendChoice(backend, device, cuda, say), tasks, steps)
    with open_input(as_input(data), members, CsvOptions(processes=processes)) as source:
        return explainer.explain(concatenate([part.graphs() for part in source.parts]))
