"""Integrated gradients (Sundararajan, Taly, Yan: "Axiomatic attribution for deep networks", ICML 2017).

The attribution of an input is its value times the mean gradient along the path from the baseline to the graph; the
path is that of `gcnbatch.explanation.path`. Attributions of all atoms and bonds add up to f(graph) - f(baseline). With
finitely many positions they miss that difference by the completeness error, which decides how many are enough.

Dimensions: G graphs with N nodes and E edges, S positions (steps), T explained outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.graphs import GraphSet, Int64, concatenate, ragged_rows
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, nearest
from gcnbatch.explanation.path import GraphPath, midpoints
from gcnbatch.fileio import StrPath
from gcnbatch.inference.in_memory import as_input
from gcnbatch.inference.inputs import CsvOptions, open_input
from gcnbatch.inference.members import Member, load_members
from gcnbatch.predictions import output_names
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.runners.input_gradients import InputGradientRunner
from gcnbatch.text import listed, quoted

Float64 = NDArray[np.float64]

ROUNDS = [16, 48, 144, 432]  # positions; a round reuses those of the one before, a third of its own
TOLERANCE = 0.02  # largest completeness error at which a graph is done, times 1 + |f(graph) - f(baseline)|
BATCH_NODES = {"host": 8192, "device": 32768}  # nodes of a batch, over all copies of its graphs, by a backend's clock


class Bonds(NamedTuple):
    """Edges of both directions between two nodes in a channel, as one.

    Parameters
    ----------
    graph : int64, (M,)
    begin, end : int64, (M,)
        Node numbers within the graph; begin < end.
    channel : int64, (M,)
    values : float64, (M, T)
        Sums of the edges' attributions.
    """

    graph: Int64
    begin: Int64
    end: Int64
    channel: Int64
    values: Float64


@dataclass(frozen=True)
class Attributions:
    """What nodes and edges add to the outputs, for one model or as the mean of an ensemble.

    Parameters
    ----------
    graphs : GraphSet
        The explained graphs.
    names : tuple of T str
    outputs, baselines : float64, (G, T)
        f(graph) and f(baseline): log-odds (binary), log-probabilities up to a constant whose mean over the classes is 0
        (multiclass), or values in the target's unit.
    nodes : float64, (N, T)
    edges : float64, (E, T)
        Of every stored edge; 0 for self-loops.
    steps : int64, (G,)
    """

    graphs: GraphSet
    names: tuple[str, ...]
    outputs: Float64
    baselines: Float64
    nodes: Float64
    edges: Float64
    steps: Int64

    @property
    def sums(self) -> Float64:
        """Sum of all attributions of each graph, (G, T)."""
        graphs = self.graphs
        return segment_sums(self.nodes, graphs.node_ptr) + segment_sums(self.edges, graphs.edge_ptr)

    @property
    def errors(self) -> Float64:
        """Completeness errors (G, T): `sums` less the difference of `outputs` and `baselines`."""
        return self.sums - (self.outputs - self.baselines)

    def with_bonds(self) -> Float64:
        """Return attributions of nodes with half of each of their edges, (N, T); they add up to `sums`."""
        graphs, found = self.graphs, self.nodes.copy()
        first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
        for ends in (graphs.src, graphs.dst):
            np.add.at(found, first + ends, self.edges / 2)
        return found

    def bonds(self) -> Bonds:
        """Return the bonds of all graphs, by graph, begin, end and channel."""
        graphs = self.graphs
        graph = np.repeat(np.arange(graphs.n_graphs), np.diff(graphs.edge_ptr))
        ends = np.sort(np.stack([graphs.src, graphs.dst]), axis=0).astype(np.int64)
        keys = np.stack([graph, *ends, graphs.channel.astype(np.int64)])
        different = ends[0] != ends[1]
        unique, place = np.unique(keys[:, different], axis=1, return_inverse=True)
        values = np.zeros((unique.shape[1], len(self.names)))
        np.add.at(values, place.reshape(-1), self.edges[different])
        of_graph, begin, end, channel = unique
        return Bonds(of_graph, begin, end, channel, values)


class Explainer:
    """Integrated gradients of an ensemble's members.

    Parameters
    ----------
    members : sequence of Member
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
        For node-level models, unknown tasks, and a backend that has no gradients by inputs.
    """

    def __init__(
        self,
        members: Sequence[Member],
        choice: BackendChoice,
        tasks: Sequence[str] = (),
        steps: int = 0,
        batch_nodes: int = 0,
    ) -> None:
        self.header = members[0].header
        if self.header.level == "node":
            raise InputError("explain", f"{members[0].place} predicts nodes", "a model of graphs")
        self.places = _places(self.header, tasks)  # of the explained outputs among the K
        self.names = tuple(output_names(self.header)[at] for at in self.places)
        backend = choice.backend_with_operations("explanations")
        self.backend = backend.name
        self._rounds = [steps] if steps else ROUNDS
        self._batch_nodes = batch_nodes or BATCH_NODES[backend.meter.clock]
        self._members = members
        self._runners = [
            InputGradientRunner(backend, member.model, member.weights, _heads(member)[self.places])
            for member in members
        ]

    def explain(self, graphs: GraphSet, progress: Callable[[int], object] = lambda graphs: None) -> Attributions:
        """Return the attributions of all graphs.

        Parameters
        ----------
        graphs : GraphSet
            It fits the models; see `gcnbatch.training.trained.check_fit`.
        progress : callable
            Called with the number of graphs of each finished part, for every member.
        """
        found = [self._of_member(*pair, graphs, progress) for pair in zip(self._members, self._runners, strict=True)]
        offset = np.mean([_offset(member)[self.places] for member in self._members], axis=0)
        return Attributions(
            graphs,
            self.names,
            np.mean([one.outputs for one in found], axis=0) + offset,
            np.mean([one.baselines for one in found], axis=0) + offset,
            np.mean([one.mean_nodes() for one in found], axis=0),
            np.mean([one.mean_edges() for one in found], axis=0),
            np.max([one.steps for one in found], axis=0),
        )

    def _of_member(
        self, member: Member, runner: InputGradientRunner, graphs: GraphSet, progress: Callable[[int], object]
    ) -> _Sums:
        sums = _Sums(runner, member.adjacency, graphs, len(self.names))
        pending, known = np.arange(graphs.n_graphs), 0
        for steps in self._rounds:
            left = [pending[:0]]
            for picked, copies in self._batches(np.diff(graphs.node_ptr), pending):
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
    """Sums over the path, of one model for all graphs of a set."""

    def __init__(self, runner: InputGradientRunner, adjacency: str, graphs: GraphSet, n_outputs: int) -> None:
        self._runner, self._adjacency, self._graphs = runner, adjacency, graphs
        self.outputs, self.baselines = np.zeros((2, graphs.n_graphs, n_outputs))
        self.steps = np.zeros(graphs.n_graphs, np.int64)
        self._nodes = np.zeros((graphs.n_nodes, n_outputs))
        self._edges = np.zeros((graphs.n_edges, n_outputs))

    def add(self, picked: Int64, alpha: Float64, copies: int) -> None:
        """Add these graphs at these positions, at most so many at once; at first, also compute both ends."""
        graphs = self._graphs
        path = GraphPath.of(graphs.take(picked), self._adjacency)
        nodes, edges = (ragged_rows(ptr, picked)[0] for ptr in (graphs.node_ptr, graphs.edge_ptr))
        if not self.steps[picked].any():
            ends = self._runner.outputs(path.at(np.array([0.0, 1.0]))).reshape(2, len(picked), -1)
            self.baselines[picked], self.outputs[picked] = ends
        bonds, weight = edges[path.bonds], path.weight[path.bonds][:, None]
        for first in range(0, len(alpha), copies):
            part = alpha[first : first + copies]
            found = self._runner.contributions(path.at(part), *path.pairs(len(part)))
            of_nodes, of_edges = (one.reshape(len(part), -1, one.shape[1]) for one in found)
            self._nodes[nodes] += np.einsum("s,snt->nt", 1 / part, of_nodes)  # a x is the input there, x is here
            self._edges[bonds] += weight * of_edges.sum(axis=0, dtype=np.float64)

    def inexact(self, picked: Int64) -> NDArray[np.bool_]:
        """Return which graphs have a completeness error beyond the tolerance in an output."""
        of_nodes, node_ptr = ragged_rows(self._graphs.node_ptr, picked)
        of_edges, edge_ptr = ragged_rows(self._graphs.edge_ptr, picked)
        total = segment_sums(self._nodes[of_nodes], node_ptr) + segment_sums(self._edges[of_edges], edge_ptr)
        wanted = self.outputs[picked] - self.baselines[picked]
        error = np.abs(total / self.steps[picked, None] - wanted)
        return np.asarray((error > TOLERANCE * (1 + np.abs(wanted))).any(axis=1))

    def mean_nodes(self) -> Float64:
        """Return the attributions of all nodes (N, T)."""
        return self._nodes / np.repeat(self.steps, np.diff(self._graphs.node_ptr))[:, None]

    def mean_edges(self) -> Float64:
        """Return the attributions of all edges (E, T)."""
        return self._edges / np.repeat(self.steps, np.diff(self._graphs.edge_ptr))[:, None]


def segment_sums(values: Float64, ptr: Int64) -> Float64:
    """Return the sums of the rows of each segment of `ptr`; 0 for an empty one."""
    ends = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    return ends[ptr[1:]] - ends[ptr[:-1]]


def _places(header: Header, tasks: Sequence[str]) -> list[int]:
    """Return the outputs that the names mean, in the order of the model's."""
    known = output_names(header)
    names = {name: at for at, name in enumerate(known)} | {name: at for at, name in enumerate(header.class_names)}
    for task in tasks:
        if task not in names:
            raise InputError("--task", f"no output {quoted(task)}", listed(known), nearest(task, names))
    return sorted({names[task] for task in tasks}) or list(range(len(known)))


def _heads(member: Member) -> NDArray[np.float32]:
    """Return every output as a combination of the logits, (K, K): log-odds, centred logits, or target units."""
    header, count = member.header, member.header.n_outputs
    if header.target == "regression":
        return np.diag(member.about.scaling.std).astype(np.float32)
    centre = 1 / count if header.target == "multiclass" else 0.0
    return np.eye(count, dtype=np.float32) - np.float32(centre)


def _offset(member: Member) -> Float64:
    """Return what to add to the combinations of logits, (K,)."""
    regression = member.header.target == "regression"
    return np.array(member.about.scaling.mean) if regression else np.zeros(member.header.n_outputs)


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
        A run with folds counts as all its folds; of several models, attributions are the means.
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
    members = load_members(runs, say)
    explainer = Explainer(members, BackendChoice(backend, device, cuda, say), tasks, steps)
    with open_input(as_input(data), members, CsvOptions(processes=processes), 0) as source:
        parts = [part.data if isinstance(part.data, GraphSet) else part.data.load() for part in source.parts]
        return explainer.explain(concatenate(parts))
