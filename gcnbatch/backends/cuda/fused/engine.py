"""The engine that runs fused steps of a cohort on one data set: epochs, steps, predictions, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.forms import most_nodes
from gcnbatch.backends.cuda.fused.prediction_batches import PredictionBatches, upload_batches
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import BegunEpoch, Rates
from gcnbatch.backends.cuda.fused.shared.form import Form
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.fused.shared.step import Workspace
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.graph import Call, Graph, Recorder
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.errors import InputError

EVAL_ELEMENTS = 2**28  # most elements of a node matrix in a prediction: 1 GiB
EVAL_GRAPHS = 16_384
# Steps of a CUDA graph. Steps in long graphs are faster (cuda_src/fused/FUSED_HISTORY.md), but a graph starts only when
# all its steps were queued.
FIRST_GRAPH_STEPS = 8  # of an epoch's first graph: short, so that the device starts early
MAX_GRAPH_STEPS = 64
FLUSH_GRAPH_STEPS = (8, 1)  # of the graphs that run queued steps when the state is needed early
MOST_RESTING = 0.25  # share of the launched members that may rest before launches are captured again without them


def graph_steps(steps: int) -> list[int]:
    """Return the number of steps in each CUDA graph of an epoch: a short graph, then long ones of nearly equal length.

    >>> graph_steps(126), graph_steps(7), graph_steps(0)
    ([8, 59, 59], [7], [])
    """
    first = min(steps, FIRST_GRAPH_STEPS)
    graphs = ceil_div(steps - first, MAX_GRAPH_STEPS)
    return [first] * (first > 0) + [ceil_div(steps - first - number, graphs) for number in range(graphs)]


class EngineEpoch(NamedTuple):
    """A member's epoch.

    Parameters
    ----------
    epoch : int
        Its number, which keys dropout.
    batches : list of int64
    rates : Rates
    first : int
        The first step to run.
    """

    epoch: int
    batches: Sequence[Int64]
    rates: Rates
    first: int


Batches = Sequence[Sequence[Int64] | None]  # of an epoch, by member; None: the member rests


@dataclass(frozen=True)
class PlannedEpoch:
    """The next epoch, planned while the device still runs the current one.

    Epoch numbers, learning rates and first steps are not known yet.

    Parameters
    ----------
    batches : list of (list of int64, or None)
    plans : list of (EpochPlan or None)
    form : Form
        The form that trains the epoch.
    needed : Capacity
        The capacity that its largest batch needs.
    steps, graphs : int
        Those of the members with the most.
    rows : int
        Nodes of the largest batch.
    weights : list of float32, (steps,)
        Weights of the labels of each member's batches.
    """

    batches: Batches
    plans: Sequence[EpochPlan | None]
    form: Form
    needed: Capacity
    steps: int
    graphs: int
    rows: int
    weights: Sequence[NDArray[np.float32]]

    def pack(self, at: Workspace) -> NDArray[np.int32]:
        """Return the upload to a workspace, (members, …), without what `begin_epoch` fills in."""
        packed = np.zeros((len(self.plans), *at.plan.array.shape), np.int32)
        for row, plan, weights in zip(packed, self.plans, self.weights, strict=True):
            if plan:
                at.pack_plan(row, plan, weights)
        return packed


class Upload(NamedTuple):
    """A planned epoch, packed for a workspace: (members, …); only the front if the rest is sent."""

    at: Workspace
    packed: NDArray[np.int32]


@dataclass
class Training:
    """A form's workspace for training, the launches of one step, and the captured graphs by number of steps.

    Launches of different branches need not wait for each other.
    """

    device: Device
    at: Workspace
    rule: UpdateRule
    stage: Callable[[], None] = lambda: None  # launches the staging of the first batch of an epoch
    branches: list[list[Call]] = field(default_factory=list)
    graphs: dict[int, Graph] = field(default_factory=dict)

    def can_run(self, planned: PlannedEpoch) -> bool:
        """Return whether the workspace is large enough for an epoch."""
        return self.at.capacity.holds(planned.needed) and self.at.plan.holds(planned.steps, planned.graphs)

    def launch_for(self, members: tuple[int, ...], rows: int) -> None:
        """Let launches work for these members, unless they already do, with few that rest, and for such batches."""
        of_now, few = self.at.launched, (1 - MOST_RESTING) * len(self.at.launched)
        if self.branches and set(members) <= set(of_now) and len(members) > few and self.at.takes(rows):
            return
        self.close()
        self.at.most_rows = rows
        self.at.launched = members
        self.branches = [self._step_of(group) for group in self.at.branches()]
        self.at.work_for(members)
        call = self.at.stage()
        self.stage = self.device.prepared(call.entry, call.launch, **call.arguments)

    def _step_of(self, members: tuple[int, ...]) -> list[Call]:
        """Return the launches of a step for some of the launched members."""
        self.at.work_for(members)
        return [*self.at.forward(), *self.at.backward(), *self.at.update(self.rule)]

    def close(self) -> None:
        """Destroy the captured graphs."""
        for graph in self.graphs.values():
            graph.close()
        self.graphs.clear()


class FusedEngine:
    """Runs training steps as replays of captured graphs, and everything else launch by launch.

    The models, the set, the batches and the device determine the form of an epoch; nothing else does.

    Parameters
    ----------
    cohort : Cohort
        The models, and the set with the arrays that the forms in `training` read.
    rule : UpdateRule
    training : sequence of Form
        Forms for training. An epoch runs in the first form that all its batches fit; the last form fits all.
    predicting : Form
        The form for predictions.
    """

    def __init__(
        self, cohort: Cohort, rule: UpdateRule, training: Sequence[type[Form]], predicting: type[Form]
    ) -> None:
        self._cohort, self._device, self._stack, self._data = cohort, cohort.device, cohort.stack, cohort.data
        self._recorder = Recorder(self._device)
        self._forms = [form(cohort, self._recorder, training=True) for form in training]
        self._predicting = predicting(cohort, self._recorder, training=False)
        self._packed: dict[Workspace, set[int]] = {}  # the members whose packed weights are up to date
        self._rule = rule
        self._training: dict[Form, Training] = {}
        self._now = self._forms[-1]  # the form of the current epoch
        self._single: dict[Form, Workspace] = {}  # for gradients
        self._predicted: PredictionBatches | None = None
        self._remaining = 0  # steps of the epoch that `step` was not called for yet
        self._queued = 0  # steps that wait for their CUDA graph to be launched
        self._graph_steps: list[int] = []  # of the epoch's graphs not yet launched
        self._planned: PlannedEpoch | None = None
        self._upload: Upload | None = None  # of the planned epoch

    # -------------------------------------------------------------------------------------------- training

    def expect(self, batches: Batches) -> None:
        """Plan and pack the next epoch; the device may still run the current one."""
        form, plans = self._plan(batches)
        weights = [
            labels.weights(own) if own is not None else np.zeros(0, np.float32)
            for labels, own in zip(self._cohort.labels, batches, strict=True)
        ]
        running = [plan for plan in plans if plan]
        self._planned = PlannedEpoch(
            batches,
            plans,
            form,
            needed=form.capacity(running, max(len(batch) for own in batches if own is not None for batch in own)),
            steps=max(plan.n_batches for plan in running),
            graphs=max(plan.room for plan in running),
            rows=max(int(plan.pointers["nodes"].max(initial=0)) for plan in running),
            weights=weights,
        )
        self._upload = None
        held = self._training.get(form)
        if held and held.can_run(self._planned):
            packed = self._planned.pack(held.at)
            if not (self._queued or self._remaining):  # no later step reads the plan that it replaces
                packed = held.at.send_plan(packed)
            self._upload = Upload(held.at, packed)

    def begin_epoch(self, epochs: Sequence[EngineEpoch | None]) -> None:
        """Upload the plans of an epoch of each member and stage the first batches; a member with None rests."""
        self.flush()
        batches = [one.batches if one else None for one in epochs]
        if self._planned is None or any(
            known is not given for known, given in zip(self._planned.batches, batches, strict=True)
        ):
            self.expect(batches)
        assert self._planned is not None
        planned, upload, self._planned, self._upload = self._planned, self._upload, None, None
        self._now = planned.form
        held = self._prepared(planned)
        packed = upload.packed if upload and upload.at is held.at else planned.pack(held.at)
        running = [(member, one) for member, one in enumerate(epochs) if one]
        now = min(one.first for _, one in running)
        begun = {
            member: BegunEpoch(one.first, len(one.batches), one.epoch, one.rates, self._turn(one.first))
            for member, one in running
        }
        held.at.plan.begin(packed, now, begun)
        held.launch_for(tuple(member for member, _ in running), planned.rows)
        held.at.begin_epoch(packed)
        self._run(self._packing(held.at))
        held.stage()
        self._remaining = planned.steps - now
        self._graph_steps = graph_steps(self._remaining)

    def about(self) -> dict[str, int]:
        """Return the device properties that training results depend on, by name."""
        return {name: value for form in self._forms for name, value in form.about().items()}

    def _plan(self, batches: Batches) -> tuple[Form, list[EpochPlan | None]]:
        """Return the first form that fits these batches, and its plan of each member's."""
        for form in self._forms:
            plans = [None if own is None else form.plan(own) for own in batches]
            if all(plan or own is None for plan, own in zip(plans, batches, strict=True)):
                return form, plans
        raise AssertionError("the last form fits all batches")

    def _prepared(self, planned: PlannedEpoch) -> Training:
        """Return the workspace, launches and graphs for an epoch; replace those of its form if they are too small."""
        held = self._training.get(planned.form)
        if held is not None and held.can_run(planned):
            return held
        if held is not None:
            held.close()
            self._packed.pop(held.at, None)
            del self._training[planned.form], held
        at = self._workspace(planned.needed, planned.steps, planned.graphs, planned.form)
        self._training[planned.form] = Training(self._device, at, self._rule)
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

    def _turn(self, first: int) -> int:
        """Return the number of step 0 of an epoch that begins now with step `first`, among the turns of all ranks."""
        ranks = self._cohort.ranks
        return 1 + ranks.mailboxes.turns - first if ranks else 0

    def _take_turn(self) -> None:
        """Count a step."""
        if self._cohort.ranks:
            self._cohort.ranks.mailboxes.turns += 1

    def step(self) -> None:
        """Queue the next step of the epoch; the step that completes a graph launches it."""
        self._take_turn()
        if self._device.observer is not None:  # a profiler sees single launches, not those inside a graph
            self.flush()
            self._keep_packed()
            for calls in self._training[self._now].branches:
                self._run(calls)
            return
        self._queued, self._remaining = self._queued + 1, self._remaining - 1
        if self._queued == (self._graph_steps[0] if self._graph_steps else MAX_GRAPH_STEPS):
            self._launch(self._queued)
            self._graph_steps = self._graph_steps[1:]

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
            now.graphs[steps] = self._recorder.record(now.branches, steps, now.at.same_carveout)
        now.graphs[steps].launch()
        self._keep_packed()
        self._queued -= steps

    def _keep_packed(self) -> None:
        """Note that a step changed the weights of all launched members, and packed them for its own workspace."""
        now = self._training[self._now].at
        for at, members in self._packed.items():
            if at is not now:
                members.difference_update(now.launched)

    # -------------------------------------------------------------------------------------------- one batch

    @property
    def eval_batch_size(self) -> int:
        """Graphs of a member's prediction batch: as many as `EVAL_GRAPHS` and `EVAL_ELEMENTS` allow for all members."""
        nodes = max(self._data.capacity(1).rows, 1) * self._cohort.members
        most = min(EVAL_ELEMENTS // self._stack.widest, most_nodes(self._stack))
        return max(1, min(EVAL_GRAPHS, most // nodes))

    def predict(self, rows: Sequence[Int64 | None]) -> list[NDArray[np.float32] | None]:
        """Return each member's logits of its graphs, (graphs, n_outputs); batch norm uses its running statistics."""
        self.flush()
        asked = tuple(member for member, own in enumerate(rows) if own is not None)
        if not asked:
            return [None for _ in rows]
        predictions = self._predictions(max(len(own) for own in rows if own is not None))
        predictions.work_for(asked)
        self._run(self._packing(predictions.at))
        predictions.stage(rows, lambda graphs: self._data.plan([graphs]))
        return predictions.logits(rows)

    def _predictions(self, graphs: int) -> PredictionBatches:
        """Return the workspace of predictions for batches of so many graphs; replace it if it is too small."""
        held = self._predicted
        if held is None or held.at.capacity.graphs < graphs:
            if held is not None:
                self._packed.pop(held.at, None)
            self._predicted = held = None  # before the next is allocated
            at = self._workspace(self._data.capacity(graphs), 1, graphs, self._predicting)
            self._predicted = held = PredictionBatches(self._device, at)
        return held

    def gradients(self, graphs: Int64, totals: DeviceArray) -> None:
        """Write the gradients of a training step on these graphs to the only member; dropout of step 0, epoch 0."""
        self.flush()
        form, plans = self._plan([[graphs]])
        at = self._single.get(form)
        if at is None or at.capacity.graphs < len(graphs):
            if at is not None:
                self._packed.pop(self._single.pop(form), None)
            del at
            at = self._single[form] = self._workspace(self._data.capacity(len(graphs)), 1, len(graphs), form)
        weights_of = self._cohort.labels[0].weights
        upload_batches(at, [graphs], plans, lambda _, own: weights_of([own]), self._turn(0))
        self._take_turn()
        calls = [*at.forward(), *at.backward(), at.gradients(self._rule, totals)]
        self._run([*self._packing(at), at.stage(), *calls])
        if self._predicted is not None:  # its weights contain running statistics, which the step changed
            self._packed.pop(self._predicted.at, None)

    def parameters_changed(self, member: int = 0) -> None:
        """Mark a member's packed weights as out of date: something other than a step wrote its parameters."""
        for members in self._packed.values():
            members.discard(member)
        if self._predicted is not None:
            self._predicted.forget()  # the scaling of features of graphs

    def _packing(self, at: Workspace) -> list[Call]:
        """Return the launches that pack weights, if those of a launched member are out of date."""
        packed = self._packed.setdefault(at, set())
        if packed >= set(at.launched):
            return []
        packed.update(at.launched)
        return at.pack()

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.start(self._device)

    def close(self) -> None:
        """Destroy the captured graphs and drop the queued steps."""
        self._queued = 0
        for training in self._training.values():
            training.close()
