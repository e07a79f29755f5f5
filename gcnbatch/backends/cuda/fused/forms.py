"""The forms of the fused step on graphs, and the choice among them for a model, a data set and a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.fp16.form import Fp16
from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide import ranks_form
from gcnbatch.backends.cuda.fused.wide.form import Wide, WideTf32
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import MAX_ENTRIES

if TYPE_CHECKING:
    from gcnbatch.config_sections import CudaConfig, TrainConfig

FORMS: tuple[type[Form], ...] = (Fp16, WideTf32, Wide, Narrow, *ranks_form.OVER_RANKS)  # in order of preference


def training_forms(setting: Setting) -> tuple[type[Form], ...]:
    """Return the forms that train a model, in order of preference; empty if there is none.

    An epoch runs in the first form that all its batches fit. The last form fits all batches.
    """
    chosen: list[type[Form]] = []
    for form in FORMS:
        if form.over_ranks == (setting.ranks > 0) and form.trains(setting):
            chosen.append(form)
            if form.fits_all:
                return tuple(chosen)
    return ()


def prediction_form(stack: Stack, capability: tuple[int, int], precision: str) -> type[Form]:
    """Return the form for predictions."""
    return next(form for form in FORMS if form.predicts(stack, capability, precision))


def most_nodes(stack: Stack) -> int:
    """Return the maximum number of nodes in a batch: 32-bit indices and grid sizes limit it."""
    return min(MAX_ENTRIES // stack.widest, *(form.most_rows for form in FORMS))


def setting_of(
    stack: Stack, source: BatchSource, capability: tuple[int, int], precision: str, ranks: int = 0
) -> Setting:
    """Return the properties on which the choice of a form depends."""
    assert source.prepared is not None
    largest = int(np.diff(source.node_ptr).max(initial=0))
    return Setting(stack, capability, precision, source.prepared.channels, largest, ranks)


def refusal(
    source: BatchSource,
    targets: NDArray[Any],
    stack: Stack,
    train: TrainConfig,
    budget: int,
    capability: tuple[int, int],
    options: CudaConfig,
    ranks: int = 0,
) -> str:
    """Return the property of a data set, a model or options that no form supports, or "".

    Parameters
    ----------
    train : TrainConfig
        Only its batch sizes are read.
    budget : int
        Bytes of device memory for the set.
    capability : (major, minor)
        Compute capability of the device.
    ranks : int
        Ranks that train the model together; 0: it trains alone.
    """
    if options.spmm != "auto" or options.resident == "off":
        return "cuda.spmm other than auto, or cuda.resident off"
    setting = setting_of(stack, source, capability, options.precision, ranks)
    chosen = training_forms(setting)
    if not chosen and ranks:
        return ranks_form.refusal(setting)
    if not chosen:
        where = " or ".join(sorted({form.condition for form in FORMS if form.condition}))
        return f"cuda.precision {options.precision} except for {where} (--set cuda.precision=fp32)"
    launches = [*stack.launches, *(launch for form in chosen for launch in form.launches(stack))]
    needed, limit = max(launch.shared for launch in launches), geometry.shared_limit(capability)
    if needed > limit:
        return f"layers that need {needed // 1024} of {limit // 1024} KiB of shared memory"
    size = _set_bytes(source, chosen) + targets.nbytes
    if size > budget:
        return f"a data set of {size / 2**20:,.0f} MiB with {budget / 2**20:,.0f} MiB of device memory for it"
    return _index_refusal(source, stack, train)


def _set_bytes(source: BatchSource, chosen: tuple[type[Form], ...]) -> int:
    prepared, n_in, nodes = source.prepared, source.header.n_features, int(source.node_ptr[-1])
    assert prepared is not None
    parts = [prepared.forward, *([] if prepared.symmetric else [prepared.transpose])]
    rows = sum(8 * len(part.indices) + 4 * len(part.row_length) for part in parts)
    features = 4 * chosen[-1].columns(n_in, prepared.channels) * nodes
    joined = 0 if prepared.joined_features is None else prepared.joined_features.dense_bytes
    return features + joined + rows + sum(form.feature_bytes(n_in, nodes) for form in chosen)


def _index_refusal(source: BatchSource, stack: Stack, train: TrainConfig) -> str:
    prepared, nodes = source.prepared, int(source.node_ptr[-1])
    assert prepared is not None
    if max(nodes * prepared.channels, len(prepared.forward.indices)) > MAX_ENTRIES:
        return "more nodes or edges than 32-bit indices can address"
    largest_first, most = np.sort(np.diff(source.node_ptr))[::-1], most_nodes(stack)
    widest = max(stack.widest, *(layer.n_out for layer in stack.graphs))
    for key in ("batch_size", "eval_batch_size"):
        graphs = getattr(train, key)
        if min(graphs, source.n_graphs) * widest > MAX_ENTRIES:  # graphs without nodes count here, too
            return f"train.{key} {graphs:,} with layers of {widest:,} columns: more than 32-bit indices can address"
        needed = int(largest_first[:graphs].sum())
        if needed > most:
            return f"train.{key} {graphs:,} with up to {needed:,} nodes a batch, more than {most:,} with these layers"
    return ""
