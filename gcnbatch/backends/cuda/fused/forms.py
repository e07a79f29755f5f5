"""The forms of the fused step on graphs, and which of them a model takes on a data set and a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.fp16.form import Fp16
from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide.form import Wide, WideTf32
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import MAX_ENTRIES

if TYPE_CHECKING:
    from gcnbatch.config_sections import CudaConfig, TrainConfig

FORMS: tuple[type[Form], ...] = (Fp16, WideTf32, Wide, Narrow)  # the first that takes a model is preferred


def training_forms(setting: Setting) -> tuple[type[Form], ...]:
    """Return the forms that train a model: each epoch takes the first that its batches fit; the last one takes all.

    Empty: there is none.
    """
    chosen: list[type[Form]] = []
    for form in FORMS:
        if form.trains(setting):
            chosen.append(form)
            if form.fits_all:
                return tuple(chosen)
    return ()


def prediction_form(capability: tuple[int, int], precision: str) -> type[Form]:
    """Return the form that predicts."""
    return next(form for form in FORMS if form.predicts(capability, precision))


def most_nodes(stack: Stack) -> int:
    """Return the most nodes of a batch: 32-bit indices address its matrices, and grids cover its tiles."""
    return min(MAX_ENTRIES // stack.widest, *(form.most_rows for form in FORMS))


def setting_of(stack: Stack, source: BatchSource, capability: tuple[int, int], precision: str) -> Setting:
    """Return what the choice of a form depends on."""
    assert source.prepared is not None
    largest = int(np.diff(source.node_ptr).max(initial=0))
    return Setting(stack, capability, precision, source.prepared.channels, largest)


def refusal(
    source: BatchSource,
    targets: NDArray[Any],
    stack: Stack,
    train: TrainConfig,
    budget: int,
    capability: tuple[int, int],
    options: CudaConfig,
) -> str:
    """Return what of a set, a model and options no form takes, or nothing.

    Parameters
    ----------
    train : TrainConfig
        Only the sizes of batches matter.
    budget : int
        Bytes of device memory that the set may take.
    capability : (major, minor)
        Compute capability of the device.
    """
    if options.spmm != "auto" or options.resident == "off":
        return "another cuda.spmm or cuda.resident than auto and auto or on"
    chosen = training_forms(setting_of(stack, source, capability, options.precision))
    if not chosen:
        where = " or ".join(sorted({form.condition for form in FORMS if form.condition}))
        return f"cuda.precision {options.precision} but for {where} (--set cuda.precision=fp32 for it)"
    launches = [*stack.launches, *(launch for form in chosen for launch in form.launches(stack))]
    needed, limit = max(launch.shared for launch in launches), geometry.shared_limit(capability)
    if needed > limit:
        return f"layers that need {needed // 1024} of {limit // 1024} KiB of shared memory"
    size = _set_bytes(source, chosen) + targets.nbytes
    if size > budget:
        return f"a data set of {size / 2**20:,.0f} MiB where {budget / 2**20:,.0f} MiB may be taken"
    return _index_refusal(source, stack, train)


def _set_bytes(source: BatchSource, chosen: tuple[type[Form], ...]) -> int:
    prepared, n_in, nodes = source.prepared, source.header.n_features, int(source.node_ptr[-1])
    assert prepared is not None
    parts = [prepared.forward, *([] if prepared.symmetric else [prepared.transpose])]
    rows = sum(8 * len(part.indices) + 4 * len(part.row_length) for part in parts)
    features = 4 * chosen[-1].columns(n_in, prepared.channels) * nodes
    return features + rows + sum(form.feature_bytes(n_in, nodes) for form in chosen)


def _index_refusal(source: BatchSource, stack: Stack, train: TrainConfig) -> str:
    prepared, nodes = source.prepared, int(source.node_ptr[-1])
    assert prepared is not None
    if max(nodes * prepared.channels, len(prepared.forward.indices)) > MAX_ENTRIES:
        return "more nodes or edges than 32-bit indices reach"
    largest_first, most = np.sort(np.diff(source.node_ptr))[::-1], most_nodes(stack)
    for key in ("batch_size", "eval_batch_size"):
        graphs = getattr(train, key)
        needed = int(largest_first[:graphs].sum())
        if needed > most:
            return f"train.{key} {graphs:,}, up to {needed:,} nodes, but at most {most:,} with these layers"
    return ""
