"""The fused step of one model on one data set: epochs, steps, predictions, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batch import Int64
from gcnbatch.backends.cuda.fused.data import Capacity, FusedSet
from gcnbatch.backends.cuda.fused.graph import Graph, Recorder
from gcnbatch.backends.cuda.fused.stack import Stack
from gcnbatch.backends.cuda.fused.step import Call, Model, Optimizer, Plan, Workspace
from gcnbatch.backends.cuda.fused.wide import WideWorkspace, packed_weights
from gcnbatch.backends.cuda.geometry_fused import columns_of
from gcnbatch.backends.cuda.launch import ceil_div
from gcnbatch.backends.cuda.memory import DeviceArray
from gcnbatch.data.sparse import MAX_ENTRIES
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device

EVAL_ELEMENTS = 2**28  # of a matrix on the nodes of a batch that is only predicted: 1 GiB
EVAL_GRAPHS = 16_384
FIRST_STEPS = 8  # of an epoch, in a graph of their own: it is started soon, and the device works while longer ones are
STEPS_OF_A_GRAPH = 64  # at most; steps in long graphs are faster: cuda_src/FUSED.md
STEPS_LEFT_OVER = (8, 1)  # of graphs that run what waits when somebody wants the state in between


def shares(steps: int) -> list[int]:
    """Return how many steps each graph of an epoch takes: a few first, then as many as can be, in equal shares.

    >>> shares(126), shares(7), shares(0)
    ([8, 59, 59], [7], [])
    """
    first = min(steps, FIRST_STEPS)
    graphs = ceil_div(steps - first, STEPS_OF_A_GRAPH)
    return [first] * (first > 0) + [ceil_div(steps - first - number, graphs) for number in range(graphs)]


class FusedEngine:
    """Runs training steps as replays of captured graphs, and everything else launch by launch.

    Parameters
    ----------
    device : Device
    stack : Stack
    model : Model
    data : FusedSet
    rule : Optimizer
    seed : int
        Of dropout.
    """

    def __init__(
        self,
        device: Device,
        stack: Stack,
        model: Model,
        data: FusedSet,
        rule: Optimizer,
        seed: int,
    ) -> None:
        if model.products:
            packed = packed_weights(device, stack)
        else:
            packed = tuple(device.zeros((layer.k, columns_of(layer.n_out))) for layer in stack.nodes)
        self._device, self._stack, self._data = device, stack, data
        self._model = replace(model, packed=packed)
        self._is_packed = False
        self._rule, self._seed = rule, seed
        self._training: Workspace | None = None
        self._recorder = Recorder(device)
        self._graphs: dict[int, Graph] = {}
        self._calls: list[Call] = []
        self._single: dict[bool, Workspace] = {}
        self._left = self._waiting = 0  # steps of the epoch not asked for yet; asked for, but not started
        self._shares: list[int] = []  # of the graphs to come

    # -------------------------------------------------------------------------------------------- training

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], rates: NDArray[np.float32], first: int) -> None:
        """Upload an epoch and stage its step `first`.

        Parameters
        ----------
        rates : float32, (steps, 3)
            Per step the learning rate and Adam's corrections 1 / (1 - beta^t) of both moments.
        """
        self.flush()
        plan = self._data.plan(batches)
        graphs = max(map(len, batches))
        fitted = bool(self._model.products)  # what narrow layers find depends on the number of their blocks
        needed = self._data.capacity_of(plan, graphs) if fitted else self._data.capacity(graphs)
        self._prepare(len(batches), len(plan.graphs), needed)
        assert self._training is not None
        weights = self._data.weights(batches)
        self._training.begin_epoch(epoch, plan, np.column_stack([rates, weights]).astype(np.float32), first)
        self._run([*self._packing(self._training), self._training.stage()])
        self._left, self._shares = len(batches) - first, shares(len(batches) - first)

    def _prepare(self, steps: int, graphs: int, needed: Capacity) -> None:
        """Make plan, arrays and launches, unless those there are fit."""
        held = self._training
        if held is not None and held.capacity.holds(needed) and held.plan.holds(steps, graphs):
            return
        self._forget_graphs()
        self._training = self._workspace(needed, Plan(self._device, steps, graphs), training=True)
        self._calls = [*self._training.forward(), *self._training.backward(), *self._training.update(self._rule)]

    def _workspace(self, capacity: Capacity, plan: Plan, training: bool) -> Workspace:
        if capacity.rows * self._stack.widest > MAX_ENTRIES:
            raise InputError(
                "backend fused",
                f"up to {capacity.rows:,} nodes in a batch of {capacity.graphs:,} graphs",
                f"at most {MAX_ENTRIES // self._stack.widest:,} with layers as wide as these",
                "Lower train.batch_size or train.eval_batch_size.",
            )
        form = WideWorkspace if self._model.products else Workspace
        return form(self._device, self._stack, self._model, self._data, capacity, plan, self._seed, training)

    def step(self) -> None:
        """Run the next step of the epoch; several are started together."""
        if self._device.observer is not None:  # of single launches
            self.flush()
            self._run(self._calls)
            return
        self._waiting, self._left = self._waiting + 1, self._left - 1
        if self._waiting == (self._shares[0] if self._shares else STEPS_OF_A_GRAPH):
            self._launch(self._waiting)
            self._shares = self._shares[1:]

    def flush(self) -> None:
        """Start the steps that wait for company."""
        if not self._waiting:
            return
        for steps in STEPS_LEFT_OVER:
            while self._waiting >= steps:
                self._launch(steps)
        self._shares = shares(max(self._left, 0))

    def _launch(self, steps: int) -> None:
        if steps not in self._graphs:
            self._graphs[steps] = self._recorder.record(self._calls, steps)
        self._graphs[steps].launch()
        self._waiting -= steps

    def _forget_graphs(self) -> None:
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    # -------------------------------------------------------------------------------------------- one batch

    @property
    def eval_batch_size(self) -> int:
        """Graphs that are predicted at a time: many, as far as their matrices stay of a reasonable size."""
        nodes = self._data.capacity(1).rows * self._stack.widest
        return max(1, min(EVAL_GRAPHS, EVAL_ELEMENTS // max(nodes, 1)))

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        """Return the logits of these graphs, (len(graphs), n_outputs), with running statistics."""
        self.flush()
        at = self._staged(graphs, training=False)
        self._run([*self._packing(at), at.stage(), *at.running_stats(), *at.forward()])
        return self._device.download(at.logits.view(0, (len(graphs), self._stack.n_outputs)))

    def gradients(self, graphs: Int64, totals: DeviceArray) -> None:
        """Write the gradients of one training pass over these graphs into the model's; step 0 of epoch 0."""
        self.flush()
        at = self._staged(graphs, training=True)
        calls = [*at.forward(), *at.backward(), at.gradients(self._rule, totals)]
        self._run([*self._packing(at), at.stage(), *calls])

    def _staged(self, graphs: Int64, training: bool) -> Workspace:
        """Return arrays for one batch outside of an epoch, with its plan uploaded."""
        at = self._single.get(training)
        if at is None or at.capacity.graphs < len(graphs):
            plan = Plan(self._device, 1, len(graphs))
            at = self._single[training] = self._workspace(self._data.capacity(len(graphs)), plan, training)
        rates = np.zeros((1, 4), np.float32)
        if training:
            rates[:, 3] = self._data.weights([graphs])
        at.begin_epoch(0, self._data.plan([graphs]), rates, 0)
        return at

    def parameters_changed(self) -> None:
        """Take note that parameters came from elsewhere than from a step."""
        self._is_packed = False

    def _packing(self, at: Workspace) -> list[Call]:
        calls = [] if self._is_packed else at.pack()
        self._is_packed = True
        return calls

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._device.launch(call.entry, call.launch, *call.arguments)

    def close(self) -> None:
        """Give back the captured graphs; what still waits is nobody's any more."""
        self._waiting = 0
        self._forget_graphs()
