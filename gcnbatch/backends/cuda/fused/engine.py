"""The engine that runs fused steps of one model on one data set: epochs, steps, predictions, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.forms import most_nodes
from gcnbatch.backends.cuda.fused.shared.data import Capacity, FusedSet
from gcnbatch.backends.cuda.fused.shared.form import Form
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, UpdateRule
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.shared.step import Workspace
from gcnbatch.backends.cuda.runtime.graph import Call, Graph, Recorder
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

EVAL_ELEMENTS = 2**28  # most elements of a node matrix in a prediction: 1 GiB
EVAL_GRAPHS = 16_384
# Steps of a CUDA graph. Steps in long graphs are faster (cuda_src/fused/FUSED_HISTORY.md), but a graph starts only when
# all its steps were queued.
FIRST_GRAPH_STEPS = 8  # of an epoch's first graph: short, so that the device starts early
MAX_GRAPH_STEPS = 64
FLUSH_GRAPH_STEPS = (8, 1)  # of the graphs that run queued steps when the state is needed early


def graph_steps(steps: int) -> list[int]:
    """Return the number of steps in each CUDA graph of an epoch: a short graph, then long ones of nearly equal length.

    >>> graph_steps(126), graph_steps(7), graph_steps(0)
    ([8, 59, 59], [7], [])
    """
    first = min(steps, FIRST_GRAPH_STEPS)
    graphs = ceil_div(steps - first, MAX_GRAPH_STEPS)
    return [first] * (first > 0) + [ceil_div(steps - first - number, graphs) for number in range(graphs)]


@dataclass(frozen=True)
class PlannedEpoch:
    """The next epoch, planned while the device still runs the current one.

    Epoch number, learning rates and first step are not known yet.

    Parameters
    ----------
    batches : list of int64
    plan : EpochPlan
    form : Form
        The form that trains the epoch.
    needed : Capacity
        The capacity that its largest batch needs.
    weights : float32, (steps,)
        Weight of each batch's labels.
    at : Workspace or None
        The workspace that `packed` was made for; None if none is large enough yet.
    packed : int32
        The plan as it is uploaded to that workspace.
    """

    batches: Sequence[Int64]
    plan: EpochPlan
    form: Form
    needed: Capacity
    weights: NDArray[np.float32]
    at: Workspace | None
    packed: NDArray[np.int32]


@dataclass
class Training:
    """A form's workspace for training, the launches of one step, and the captured graphs by number of steps."""

    at: Workspace
    calls: list[Call]
    graphs: dict[int, Graph] = field(default_factory=dict)

    def can_run(self, needed: Capacity, plan: EpochPlan) -> bool:
        """Return whether the workspace is large enough for an epoch."""
        return self.at.capacity.holds(needed) and self.at.plan.holds(plan.n_batches, len(plan.graphs))

    def close(self) -> None:
        """Destroy the captured graphs."""
        for graph in self.graphs.values():
            graph.close()
        self.graphs.clear()


class FusedEngine:
    """Runs training steps as replays of captured graphs, and everything else launch by launch.

    The model, the set, the batches and the device determine the form of an epoch; nothing else does.

    Parameters
    ----------
    device : Device
    stack : Stack
    model : DeviceModel
    data : FusedSet
        The set with the arrays that the forms in `training` read.
    rule : UpdateRule
    seed : int
        Seed of dropout.
    training : sequence of Form
        Forms for training. An epoch runs in the first form that all its batches fit; the last form fits all.
    predicting : Form
        The form for predictions.
    """

    def __init__(
        self,
        device: Device,
        stack: Stack,
        model: DeviceModel,
        data: FusedSet,
        rule: UpdateRule,
        seed: int,
        training: Sequence[type[Form]],
        predicting: type[Form],
    ) -> None:
        self._device, self._stack, self._data = device, stack, data
        self._recorder = Recorder(device)
        of = (device, stack, model, data, seed, self._recorder)
        self._forms = [form(*of, training=True) for form in training]
        self._predicting = predicting(*of, training=False)
        self._packed: set[Form] = set()  # forms whose packed weights are up to date
        self._rule = rule
        self._training: dict[Form, Training] = {}
        self._now = self._forms[-1]  # the form of the current epoch
        self._single: dict[Form, Workspace] = {}
        self._remaining = 0  # steps of the epoch that `step` was not called for yet
        self._queued = 0  # steps that wait for their CUDA graph to be launched
        self._graph_steps: list[int] = []  # of the epoch's graphs not yet launched
        self._planned: PlannedEpoch | None = None

    # -------------------------------------------------------------------------------------------- training

    def expect(self, batches: Sequence[Int64]) -> None:
        """Plan and pack the next epoch; the device may still run the current one."""
        (form, plan), weights = self._plan(batches), self._data.weights(batches)
        needed = form.capacity(plan, max(map(len, batches)))
        held = self._training.get(form)
        at = held.at if held and held.can_run(needed, plan) else None
        packed = at.packed(plan, weights) if at else np.zeros(0, np.int32)
        self._planned = PlannedEpoch(batches, plan, form, needed, weights, at, packed)

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], rates: NDArray[np.float32], first: int) -> None:
        """Upload the plan of an epoch and stage the batch of step `first`.

        Parameters
        ----------
        rates : float32, (steps, 3)
            Each step's learning rate, and Adam's corrections 1 / (1 - beta^t) of both moments.
        """
        self.flush()
        if self._planned is None or self._planned.batches is not batches:
            self.expect(batches)
        assert self._planned is not None
        planned, self._planned = self._planned, None
        self._now = planned.form
        at = self._prepared(planned).at
        packed = planned.packed if at is planned.at else at.packed(planned.plan, planned.weights)
        at.begin_epoch(epoch, packed, rates, first)
        self._run([*self._packing(at, self._now), at.stage()])
        self._remaining = len(batches) - first
        self._graph_steps = graph_steps(self._remaining)

    def about(self) -> dict[str, int]:
        """Return the device properties that training results depend on, by name."""
        return {name: value for form in self._forms for name, value in form.about().items()}

    def _plan(self, batches: Sequence[Int64]) -> tuple[Form, EpochPlan]:
        """Return the first form that fits these batches, and its plan of them."""
        plans = ((form, form.plan(batches)) for form in self._forms)
        return next((form, plan) for form, plan in plans if plan is not None)

    def _prepared(self, planned: PlannedEpoch) -> Training:
        """Return the workspace, launches and graphs for an epoch; replace those of its form if they are too small."""
        held = self._training.get(planned.form)
        if held is not None and held.can_run(planned.needed, planned.plan):
            return held
        if held is not None:
            held.close()
            del self._training[planned.form], held
        at = self._workspace(planned.needed, planned.plan.n_batches, len(planned.plan.graphs), planned.form)
        calls = [*at.forward(), *at.backward(), *at.update(self._rule)]
        self._training[planned.form] = Training(at, calls)
        return self._training[planned.form]

    def _workspace(self, capacity: Capacity, steps: int, graphs: int, form: Form) -> Workspace:
        if form.fits_all and capacity.rows > most_nodes(self._stack):
            raise InputError(
                "backend fused",
                f"up to {capacity.rows:,} nodes in a batch of {capacity.graphs:,} graphs",
                f"at most {most_nodes(self._stack):,} with these layers",
                "Give smaller batches, or --backend batched.",
            )
        return form.workspace(capacity, steps, graphs)

    def step(self) -> None:
        """Queue the next step of the epoch; the step that completes a graph launches it."""
        if self._device.observer is not None:  # a profiler sees single launches, not those inside a graph
            self.flush()
            self._packed &= {self._now}
            self._run(self._calls)
            return
        self._queued, self._remaining = self._queued + 1, self._remaining - 1
        if self._queued == (self._graph_steps[0] if self._graph_steps else MAX_GRAPH_STEPS):
            self._launch(self._queued)
            self._graph_steps = self._graph_steps[1:]

    @property
    def _calls(self) -> list[Call]:
        """The launches of one step of the current epoch."""
        return self._training[self._now].calls

    def flush(self) -> None:
        """Launch all queued steps, in short graphs."""
        if not self._queued:
            return
        for steps in FLUSH_GRAPH_STEPS:
            while self._queued >= steps:
                self._launch(steps)
        self._graph_steps = graph_steps(max(self._remaining, 0))

    def _launch(self, steps: int) -> None:
        now = self._training[self._now]
        if steps not in now.graphs:
            now.graphs[steps] = self._recorder.record(now.calls, steps, now.at.same_carveout)
        now.graphs[steps].launch()
        self._packed &= {self._now}
        self._queued -= steps

    # -------------------------------------------------------------------------------------------- one batch

    @property
    def eval_batch_size(self) -> int:
        """Graphs of a prediction batch: as many as `EVAL_GRAPHS` and `EVAL_ELEMENTS` allow."""
        nodes = max(self._data.capacity(1).rows, 1)
        most = min(EVAL_ELEMENTS // self._stack.widest, most_nodes(self._stack))
        return max(1, min(EVAL_GRAPHS, most // nodes))

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        """Return the logits of these graphs, (len(graphs), n_outputs); batch norm uses its running statistics."""
        self.flush()
        form = self._predicting
        at = self._staged(graphs, self._data.plan([graphs]), form)
        self._run([*self._packing(at, form), at.stage(), *at.forward()])
        return self._device.fetch(at.logits.view(0, (len(graphs), self._stack.n_outputs)))

    def gradients(self, graphs: Int64, totals: DeviceArray) -> None:
        """Write the gradients of one training step on these graphs to the model; dropout is that of step 0, epoch 0."""
        self.flush()
        form, plan = self._plan([graphs])
        at = self._staged(graphs, plan, form)
        calls = [*at.forward(), *at.backward(), at.gradients(self._rule, totals)]
        self._run([*self._packing(at, form), at.stage(), *calls])
        self._packed.discard(self._predicting)  # its weights contain the running statistics, which the step changed

    def _staged(self, graphs: Int64, plan: EpochPlan, form: Form) -> Workspace:
        """Return a workspace for one batch outside of an epoch, with the batch's plan uploaded."""
        at = self._single.get(form)
        if at is None or at.capacity.graphs < len(graphs):
            at = self._single[form] = self._workspace(self._data.capacity(len(graphs)), 1, len(graphs), form)
        weights = self._data.weights([graphs]) if form.training else np.zeros(1, np.float32)
        at.begin_epoch(0, at.packed(plan, weights), np.zeros((1, 3), np.float32), 0)
        return at

    def parameters_changed(self) -> None:
        """Mark all packed weights as out of date: something other than a step wrote the parameters."""
        self._packed.clear()

    def _packing(self, at: Workspace, form: Form) -> list[Call]:
        calls = [] if form in self._packed else at.pack()
        self._packed.add(form)
        return calls

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.start(self._device)

    def close(self) -> None:
        """Destroy the captured graphs and drop the queued steps."""
        self._queued = 0
        for training in self._training.values():
            training.close()
