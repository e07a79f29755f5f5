"""Backend ``fused``: the operations of ``batched``, and engines that run whole training steps in a few kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused import forms
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort, upload_labels
from gcnbatch.backends.cuda.fused.shared.data import FusedSet
from gcnbatch.backends.cuda.fused.shared.form import Form
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, UpdateRule
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide.ranks_step import mailbox_bytes
from gcnbatch.backends.cuda.ranks.mailboxes import Mailboxes
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.config_sections import CudaConfig, TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.ranks.communicator import Communicator


class FusedBackend(CudaBackend):
    """`CudaBackend` with the engine for graph-level data sets."""

    def __init__(self, name: str, device: Device, options: CudaConfig) -> None:
        super().__init__(name, device, options)
        self._mailboxes: Mailboxes | None = None
        self._sets: WeakKeyDictionary[BatchSource, tuple[tuple[type[Form], ...], FusedSet]] = WeakKeyDictionary()

    def graphs_engine(
        self,
        stack: Stack,
        model: DeviceModel,
        rule: UpdateRule,
        source: BatchSource,
        labels: Sequence[tuple[NDArray[Any], NDArray[np.float64]]],
        ranks: Ranks | None = None,
    ) -> FusedEngine:
        """Return the engine of a cohort on a data set, for tasks that `gcnbatch.runners.fused_graphs.refuses` accepts.

        Parameters
        ----------
        model : DeviceModel
            Of the first member.
        labels : sequence of ((G, T), float64 (G,))
            Targets and label weights of each member.
        ranks : Ranks or None
            The ranks that train the only member together.
        """
        training = self._training_forms(stack, source, ranks.size if ranks else 0)
        held = self._set_of(source, training) if len(labels) > 1 else FusedSet(self.device, source, training[-1])
        device = self.device.for_cohorts() if len(labels) > 1 else self.device
        cohort = Cohort(device, stack, model, held, upload_labels(self.device, labels), rule.clips, ranks)
        predicting = forms.prediction_form(stack, self.device.compute_capability, self.options.precision)
        return FusedEngine(cohort, rule, training, predicting)

    def _set_of(self, source: BatchSource, training: tuple[type[Form], ...]) -> FusedSet:
        """Return the set on the device. It stays there as long as `source` lives: cohorts follow one another."""
        known = self._sets.get(source)
        if known is None or known[0] != training:
            known = self._sets[source] = training, FusedSet(self.device, source, training[-1])
        return known[1]

    def shares_launches(self, stack: Stack, source: BatchSource) -> bool:
        """Return whether several models of this architecture train in the same launches."""
        return all(form.shares_launches for form in self._training_forms(stack, source))

    def ranks(self, stack: Stack, communicator: Communicator, train: TrainConfig) -> Ranks:
        """Return the ranks of `communicator`, which train a model together and all call this, with mailboxes for it.

        Raises
        ------
        MachineError
            On all ranks alike, when one does not reach the memory of another.
        """
        sync, held = train.sync_batch_norm, self._mailboxes
        nbytes = mailbox_bytes(stack, sync, communicator.size)
        if held is None or held.nbytes < nbytes:
            if held is not None:
                held.close()
            held = self._mailboxes = Mailboxes(self.device, communicator, nbytes)
        held.settle()
        return Ranks(communicator.rank, communicator.size, sync, train.batch_size, held)

    def _training_forms(self, stack: Stack, source: BatchSource, ranks: int = 0) -> tuple[type[Form], ...]:
        on = self.device.compute_capability, self.options.precision, ranks
        return forms.training_forms(forms.setting_of(stack, source, *on))

    def limits(self) -> tuple[int, tuple[int, int], CudaConfig]:
        """Return the bytes of device memory for a data set, the device's compute capability, and the options."""
        return self.resident_budget, self.device.compute_capability, self.options
