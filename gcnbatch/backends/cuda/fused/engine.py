"""The fused step of one model on one data set: epochs, steps, predictions, gradients."""

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

EVAL_ELEMENTS = 2**28  # of a matrix on the nodes of a batch that is only predicted: 1 GiB
EVAL_GRAPHS = 16_384
FIRST_STEPS = 8  # of an epoch, in a graph of their own: it is started soon, and the device works while longer ones are
STEPS_OF_A_GRAPH = 64  # at most; steps in long graphs are faster: cuda_src/fused/FUSED_HISTORY.md
STEPS_LEFT_OVER = (8, 1)  # of graphs that run what waits when somebody wants the state in between


def shares(steps: int) -> list[int]:
    """Return how many steps each graph of an epoch takes: a few first, then as many as can be, in equal shares.

    >>> shares(126), shares(7), shares(0)
    ([8, 59, 59], [7], [])
    """
    first = min(steps, FIRST_STEPS)
    graphs = ceil_div(steps - first, STEPS_OF_A_GRAPH)
    return [first] * (first > 0) + [ceil_div(steps - first - number, graphs) for number in range(graphs)]


@dataclass(frozen=True)
class Ahead:
    """An epoch that is to begin, as far as it is known before: but for its number, learning rate and first step.

    Parameters
    ----------
    batches : list of int64
    plan : EpochPlan
    form : Form
        How it is trained.
    needed : Capacity
    weights : float32, (steps,)
        Of each batch's labels.
    at : Workspace or None
        Where it is expected to run, if there is one that has room.
    packed : int32
        What the device is sent there.
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
    """Arrays of training steps, their launches, and graphs of so many steps each."""

    at: Workspace
    calls: list[Call]
    graphs: dict[int, Graph] = field(default_factory=dict)

    def has_room(self, needed: Capacity, plan: EpochPlan) -> bool:
        """Return whether an epoch can be run there."""
        return self.at.capacity.holds(needed) and self.at.plan.holds(plan.n_batches, len(plan.graphs))

    def close(self) -> None:
        """Give back the graphs."""
        for graph in self.graphs.values():
            graph.close()
        self.graphs.clear()


class FusedEngine:
    """Runs training steps as replays of captured graphs, and everything else launch by launch.

    The form of an epoch depends on the model, the set, the batches and the device alone.

    Parameters
    ----------
    device : Device
    stack : Stack
    model : DeviceModel
    data : FusedSet
        Made for `training`.
    rule : UpdateRule
    seed : int
        Of dropout.
    training : sequence of Form
        An epoch takes the first that its batches fit; the last one takes all.
    predicting : Form
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
        self._packed: set[Form] = set()  # whose weights are up to date
        self._rule = rule
        self._training: dict[Form, Training] = {}
        self._now = self._forms[-1]  # trains this epoch
        self._single: dict[Form, Workspace] = {}
        self._left = self._waiting = 0  # steps of the epoch not asked for yet; asked for, but not started
        self._shares: list[int] = []  # of the graphs to come
        self._ahead: Ahead | None = None

    # -------------------------------------------------------------------------------------------- training

    def expect(self, batches: Sequence[Int64]) -> None:
        """Plan and pack an epoch that is to begin; it takes a while, and the device may still be at the one before."""
        (form, plan), weights = self._plan(batches), self._data.weights(batches)
        needed = form.capacity(plan, max(map(len, batches)))
        held = self._training.get(form)
        at = held.at if held and held.has_room(needed, plan) else None
        packed = at.packed(plan, weights) if at else np.zeros(0, np.int32)
        self._ahead = Ahead(batches, plan, form, needed, weights, at, packed)

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], rates: NDArray[np.float32], first: int) -> None:
        """Upload an epoch and stage its step `first`.

        Parameters
        ----------
        rates : float32, (steps, 3)
            Per step the learning rate and Adam's corrections 1 / (1 - beta^t) of both moments.
        """
        self.flush()
        if self._ahead is None or self._ahead.batches is not batches:
            self.expect(batches)
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        self._now = ahead.form
        at = self._prepared(ahead).at
        packed = ahead.packed if at is ahead.at else at.packed(ahead.plan, ahead.weights)
        at.begin_epoch(epoch, packed, rates, first)
        self._run([*self._packing(at, self._now), at.stage()])
        self._left, self._shares = len(batches) - first, shares(len(batches) - first)

    def about(self) -> dict[str, int]:
        """Return the numbers of the device on which the results of training depend."""
        return {name: value for form in self._forms for name, value in form.about().items()}

    def _plan(self, batches: Sequence[Int64]) -> tuple[Form, EpochPlan]:
        """Return the form that trains these batches, and where each graph goes."""
        plans = ((form, form.plan(batches)) for form in self._forms)
        return next((form, plan) for form, plan in plans if plan is not None)

    def _prepared(self, ahead: Ahead) -> Training:
        """Return arrays, launches and graphs for an epoch: new ones, unless those there are fit."""
        held = self._training.get(ahead.form)
        if held is not None and held.has_room(ahead.needed, ahead.plan):
            return held
        if held is not None:
            held.close()
            del self._training[ahead.form], held
        at = self._workspace(ahead.needed, ahead.plan.n_batches, len(ahead.plan.graphs), ahead.form)
        calls = [*at.forward(), *at.backward(), *at.update(self._rule)]
        self._training[ahead.form] = Training(at, calls)
        return self._training[ahead.form]

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
        """Run the next step of the epoch; several are started together."""
        if self._device.observer is not None:  # of single launches
            self.flush()
            self._packed &= {self._now}
            self._run(self._calls)
            return
        self._waiting, self._left = self._waiting + 1, self._left - 1
        if self._waiting == (self._shares[0] if self._shares else STEPS_OF_A_GRAPH):
            self._launch(self._waiting)
            self._shares = self._shares[1:]

    @property
    def _calls(self) -> list[Call]:
        """The launches of a step of this epoch."""
        return self._training[self._now].calls

    def flush(self) -> None:
        """Start the steps that wait for company."""
        if not self._waiting:
            return
        for steps in STEPS_LEFT_OVER:
            while self._waiting >= steps:
                self._launch(steps)
        self._shares = shares(max(self._left, 0))

    def _launch(self, steps: int) -> None:
        now = self._training[self._now]
        if steps not in now.graphs:
            now.graphs[steps] = self._recorder.record(now.calls, steps, now.at.same_carveout)
        now.graphs[steps].launch()
        self._packed &= {self._now}
        self._waiting -= steps

    # -------------------------------------------------------------------------------------------- one batch

    @property
    def eval_batch_size(self) -> int:
        """Graphs that are predicted at a time: many, as far as their matrices stay of a reasonable size."""
        nodes = max(self._data.capacity(1).rows, 1)
        most = min(EVAL_ELEMENTS // self._stack.widest, most_nodes(self._stack))
        return max(1, min(EVAL_GRAPHS, most // nodes))

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        """Return the logits of these graphs, (len(graphs), n_outputs), with running statistics."""
        self.flush()
        form = self._predicting
        at = self._staged(graphs, self._data.plan([graphs]), form)
        self._run([*self._packing(at, form), at.stage(), *at.forward()])
        return self._device.fetch(at.logits.view(0, (len(graphs), self._stack.n_outputs)))

    def gradients(self, graphs: Int64, totals: DeviceArray) -> None:
        """Write the gradients of one training step over these graphs into the model's; step 0 of epoch 0."""
        self.flush()
        form, plan = self._plan([graphs])
        at = self._staged(graphs, plan, form)
        calls = [*at.forward(), *at.backward(), at.gradients(self._rule, totals)]
        self._run([*self._packing(at, form), at.stage(), *calls])
        self._packed.discard(self._predicting)  # the step changed the running statistics

    def _staged(self, graphs: Int64, plan: EpochPlan, form: Form) -> Workspace:
        """Return arrays for one batch outside of an epoch, with its plan uploaded."""
        at = self._single.get(form)
        if at is None or at.capacity.graphs < len(graphs):
            at = self._single[form] = self._workspace(self._data.capacity(len(graphs)), 1, len(graphs), form)
        weights = self._data.weights([graphs]) if form.training else np.zeros(1, np.float32)
        at.begin_epoch(0, at.packed(plan, weights), np.zeros((1, 3), np.float32), 0)
        return at

    def parameters_changed(self) -> None:
        """Take note that parameters came from elsewhere than from a step."""
        self._packed.clear()

    def _packing(self, at: Workspace, form: Form) -> list[Call]:
        calls = [] if form in self._packed else at.pack()
        self._packed.add(form)
        return calls

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.start(self._device)

    def close(self) -> None:
        """Give back the captured graphs; what still waits is nobody's any more."""
        self._waiting = 0
        for training in self._training.values():
            training.close()
