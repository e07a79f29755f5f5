"""The engine that runs fused steps of a cohort on one data set: epochs, steps, predictions, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.forms import most_nodes
from gcnbatch.backends.cuda.fused.planned_epoch import (
    Batches,
    Epochs,
    PlannedEpoch,
    Upload,
    first_step,
    members_of,
    write_begin,
)
from gcnbatch.backends.cuda.fused.prediction_batches import PredictionBatches, upload_batches
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity
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
MOST_IDLE = 0.25  # share of the launched members that may be idle before launches are captured again without them


def graph_steps(steps: int) -> list[int]:
    """Return the number of steps in each CUDA graph of an epoch: a short graph, then long ones of nearly equal length.

    >>> graph_steps(126), graph_steps(7), graph_steps(0)
    ([8, 59, 59], [7], [])
    """
    first = min(steps, FIRST_GRAPH_STEPS)
    graphs = ceil_div(steps - first, MAX_GRAPH_STEPS)
    return [first] * (first > 0) + [ceil_div(steps - first - number, graphs) for number in range(graphs)]


@dataclass
class Training:
    """A form's workspace for training, the launches of one step, and the captured graphs by number of steps.

    Launches of different branches need not wait for each other.
    """

    device: Device
    workspace: Workspace
    rule: UpdateRule
    stage: Callable[[], None] = lambda: None  # launches the staging of the first batch of an epoch
    branches: list[list[Call]] = field(default_factory=list)
    graphs: dict[int, Graph] = field(default_factory=dict)

    def can_run(self, planned: PlannedEpoch) -> bool:
        """Return whether the workspace is large enough for an epoch."""
        return self.workspace.capacity.holds(planned.needed) and self.workspace.plan.holds(
            planned.steps, planned.graphs
        )

    def works_for(self, members: tuple[int, ...], rows: int) -> bool:
        """Return whether launches work for these members, with few idle ones, and for batches of so many nodes."""
        of_now, few = self.workspace.launched, (1 - MOST_IDLE) * len(self.workspace.launched)
        return bool(self.branches) and set(members) <= set(of_now) and len(members) > few and self.workspace.takes(rows)

    def launch_for(self, members: tuple[int, ...], rows: int) -> None:
        """Let launches work for these members and such batches, unless they already do."""
        if self.works_for(members, rows):
            return
        self.close()
        self.workspace.most_rows = rows
        self.workspace.launched = members
        self.branches = [self._step_of(group) for group in self.workspace.branches()]
        self.workspace.work_for(members)
        call = self.workspace.stage()
        self.stage = self.device.prepared(call.entry, call.launch, **call.arguments)

    def _step_of(self, members: tuple[int, ...]) -> list[Call]:
        """Return the launches of a step for some of the launched members."""
        self.workspace.work_for(members)
        return [*self.workspace.forward(), *self.workspace.backward(), *self.workspace.update(self.rule)]

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
        self._early: Epochs | None = None  # that epoch as it was guessed, if the device has begun it

    # -------------------------------------------------------------------------------------------- training

    def expect(self, batches: Batches, guess: Epochs | None = None) -> None:
        """Plan and pack the next epoch; the device may still run the current one.

        If no step of that one is still to be queued, the device receives the plan. If it is known how the next epoch
        probably begins (`guess`), the device stages its first batches, too, right after the last step.
        """
        form, plans = self._plan(batches)
        weights = [
            labels.weights(own) if own is not None else np.zeros(0, np.float32)
            for labels, own in zip(self._cohort.labels, batches, strict=True)
        ]
        running = [plan for plan in plans if plan]
        self._planned = planned = PlannedEpoch(
            batches,
            plans,
            form,
            needed=form.capacity(running, max(len(batch) for own in batches if own is not None for batch in own)),
            steps=max(plan.n_batches for plan in running),
            graphs=max(plan.capacity for plan in running),
            rows=max(int(plan.pointers["nodes"].max(initial=0)) for plan in running),
            weights=weights,
        )
        self._upload = self._early = None
        held = self._training.get(form)
        if not (held and held.can_run(planned)):
            return
        packed = planned.pack(held.workspace)
        if self._queued or self._remaining:  # later steps read the plan that it replaces
            self._upload = Upload(held.workspace, packed)
            return
        if guess and not self._cohort.ranks and held.works_for(members_of(guess), planned.rows):
            self._early = guess
            write_begin(held.workspace, packed, guess)
        self._upload = Upload(held.workspace, held.workspace.send_plan(packed))
        if self._early:
            held.stage()

    def begin_epoch(self, epochs: Epochs) -> None:
        """Upload the plans of an epoch of each member and stage the first batches; a member with None is idle."""
        self.flush()
        batches = [one.batches if one else None for one in epochs]
        if self._planned is None or any(
            known is not given for known, given in zip(self._planned.batches, batches, strict=True)
        ):
            self.expect(batches)
        assert self._planned is not None
        planned, upload, early = self._planned, self._upload, self._early
        self._planned = self._upload = self._early = None
        self._now = planned.form
        held, members = self._prepared(planned), members_of(epochs)
        has_begun = early is not None and all(
            one.begins_as(guessed) for one, guessed in zip(epochs, early, strict=True) if one and guessed
        )
        if not has_begun:
            packed = upload.packed if upload and upload.workspace is held.workspace else planned.pack(held.workspace)
            write_begin(held.workspace, packed, epochs, self._turn)
            held.launch_for(members, planned.rows)
            held.workspace.begin_epoch(packed)
        self._run(self._packing(held.workspace))
        if not has_begun:
            held.stage()
        self._remaining = planned.steps - first_step(epochs)
        self._graph_steps = graph_steps(self._remaining)

    def about(self) -> dict[str, int]:
        """Return the device properties that training results depend on, by name."""
        return {name: value for form in self._forms for name, value in form.about().items()}

    def _plan(self, batches: Batches) -> tuple[Form, list[EpochPlan | None]]:
        """Return the first form that fits these batches, and its plan of each member's."""
        running = {member: own for member, own in enumerate(batches) if own is not None}
        for form in self._forms:
            if all(plans := form.plans(list(running.values()))):
                of_members = dict(zip(running, plans, strict=True))
                return form, [of_members.get(member) for member in range(len(batches))]
        raise AssertionError("the last form fits all batches")

    def _prepared(self, planned: PlannedEpoch) -> Training:
        """Return the workspace, launches and graphs for an epoch; replace those of its form if they are too small."""
        held = self._training.get(planned.form)
        if held is not None and held.can_run(planned):
            return held
        if held is not None:
            held.close()
            self._packed.pop(held.workspace, None)
            del self._training[planned.form], held
        workspace = self._workspace(planned.needed, planned.steps, planned.graphs, planned.form)
        self._training[planned.form] = Training(self._device, workspace, self._rule)
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
            now.graphs[steps] = self._recorder.record(now.branches, steps, now.workspace.same_carveout)
        now.graphs[steps].launch()
        self._keep_packed()
        self._queued -= steps

    def _keep_packed(self) -> None:
        """Note that a step changed the weights of all launched members, and packed them for its own workspace."""
        now = self._training[self._now].workspace
        for workspace, members in self._packed.items():
            if workspace is not now:
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
        self._run(self._packing(predictions.workspace))
        predictions.stage(rows, lambda graphs: self._data.plan([graphs]))
        return predictions.logits(rows)

    def _predictions(self, graphs: int) -> PredictionBatches:
        """Return the workspace of predictions for batches of so many graphs; replace it if it is too small."""
        held = self._predicted
        if held is None or held.workspace.capacity.graphs < graphs:
            if held is not None:
                self._packed.pop(held.workspace, None)
            self._predicted = held = None  # before the next is allocated
            workspace = self._workspace(self._data.capacity(graphs), 1, graphs, self._predicting)
            self._predicted = held = PredictionBatches(self._device, workspace)
        return held

    def gradients(self, graphs: Int64, totals: DeviceArray) -> None:
        """Write the gradients of a training step on these graphs to the only member; dropout of step 0, epoch 0."""
        self.flush()
        form, plans = self._plan([[graphs]])
        workspace = self._single.get(form)
        if workspace is None or workspace.capacity.graphs < len(graphs):
            if workspace is not None:
                self._packed.pop(self._single.pop(form), None)
            del workspace
            workspace = self._single[form] = self._workspace(self._data.capacity(len(graphs)), 1, len(graphs), form)
        weights_of = self._cohort.labels[0].weights
        upload_batches(workspace, [graphs], plans, lambda _, own: weights_of([own]), self._turn(0))
        self._take_turn()
        calls = [*workspace.forward(), *workspace.backward(), workspace.gradients(self._rule, totals)]
        self._run([*self._packing(workspace), workspace.stage(), *calls])
        if self._predicted is not None:  # its weights contain running statistics, which the step changed
            self._packed.pop(self._predicted.workspace, None)

    def parameters_changed(self, member: int = 0) -> None:
        """Mark a member's packed weights as out of date: something other than a step wrote its parameters."""
        for members in self._packed.values():
            members.discard(member)
        self._early = None  # as below
        if self._predicted is not None:
            self._predicted.forget()  # the scaling of features of graphs

    def _packing(self, workspace: Workspace) -> list[Call]:
        """Return the launches that pack weights, if those of a launched member are out of date."""
        packed = self._packed.setdefault(workspace, set())
        if packed >= set(workspace.launched):
            return []
        packed.update(workspace.launched)
        return workspace.pack()

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.start(self._device)

    def close(self) -> None:
        """Destroy the captured graphs and drop the queued steps."""
        self._queued = 0
        for training in self._training.values():
            training.close()
