"""The launches of a step with wide layers for a model on several ranks: those of one rank, with exchanges inside.

`cuda_src/fused/wide/ranks.cuh` has the exchange. A step has as many launches as on one rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from gcnbatch.backends.cuda.fused.shared.model import APPLY, UpdateRule
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import NodeLayer, Stack
from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.fused.wide.jobs import chunks_of, vector_shape
from gcnbatch.backends.cuda.fused.wide.step import WideWorkspace
from gcnbatch.backends.cuda.ranks.mailboxes import MAX_RANKS
from gcnbatch.backends.cuda.runtime.copies import aligned
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared

_RANKS = declared("fused/wide/ranks.cuh")
LINE_BYTES, CHUNK_BYTES, FLAG_BYTES = (_RANKS.constant(f"{name}_BYTES") for name in ("LINE", "CHUNK", "FLAG"))
LINES_OF_COLUMN = 2  # its moments forward, its sums backward


class Box(NamedTuple):
    """What a rank writes to a mailbox in a turn: lines of columns, and chunks of gradients."""

    lines: int
    chunks: int

    @property
    def nbytes(self) -> int:
        """Bytes of a box."""
        return aligned(LINE_BYTES * self.lines + (CHUNK_BYTES + FLAG_BYTES) * self.chunks)


def box_of(stack: Stack, sync: bool) -> Box:
    """Return the box of a model. With `sync`, the gradients of batch norm are sums over all ranks already."""
    normed = [layer.n_out for layer in stack.nodes if layer.norm]
    shapes = [(layer.channels * (layer.n_in + 1), layer.n_out) for layer in stack.nodes]
    shapes += [(layer.n_in + 1, layer.n_out) for layer in stack.graphs]
    shapes += [] if sync else 2 * [vector_shape(width) for width in normed]
    return Box(LINES_OF_COLUMN * sum(normed), sum(map(chunks_of, shapes)))


def mailbox_bytes(stack: Stack, sync: bool, size: int) -> int:
    """Return the bytes of a mailbox for so many ranks: a box for each of them and each parity of the turn."""
    return 2 * size * box_of(stack, sync).nbytes


class RanksWorkspace(WideWorkspace):
    """As `WideWorkspace`, for a rank's part of a batch; `Cohort.ranks` has the ranks."""

    @property
    def _ranks(self) -> Ranks:
        assert self._cohort.ranks is not None
        return self._cohort.ranks

    @property
    def _box(self) -> Box:
        return box_of(self._stack, self._ranks.sync)

    @property
    def _ranks_fields(self) -> dict[str, Any]:
        """Return the fields of Ranks (fused/wide/ranks.cuh)."""
        ranks, box = self._ranks, self._box
        fields: dict[str, Any] = {"mailboxes": [*ranks.mailboxes.of, *[None] * (MAX_RANKS - ranks.size)]}
        fields |= {"progress": self.plan.progress, "parts": self.plan.views["parts"], "box_bytes": box.nbytes}
        fields |= {"rank": ranks.rank, "size": ranks.size, "lines": box.lines, "chunks": box.chunks}
        return fields | {"sync": int(ranks.sync)}

    def _dw(self, layer: NodeLayer) -> geometry.ProductDwGeometry:
        """Results depend on the splits, so these depend on nothing that may differ after a resume."""
        rows = ceil_div(self._data.capacity(self._ranks.batch_size).rows, self._ranks.size)
        return geometry.product_dw(rows, layer.k, layer.n_out, self._device.multiprocessors, self._products)

    def _line(self, number: int) -> int:
        """Return the first line of a layer's moments; those of its sums follow."""
        before = self._stack.nodes[:number]
        return LINES_OF_COLUMN * sum(layer.n_out for layer in before if layer.norm)

    # -------------------------------------------------------------------------------------------- forward

    def _product_call(self, number: int) -> Call:
        call = super()._product_call(number)
        if self._stack.nodes[number].norm is None:
            return call
        fields = {"product": call.arguments, "ranks": self._ranks_fields, "line": self._line(number)}
        return Call(f"fused_wide_ranks_product_{self._products}", call.launch, fields)

    def _dropout_calls(self) -> list[Call]:
        parts = {"parts": self.plan.views["parts"], "part_length": self._ranks.part_length}
        return [
            Call("fused_wide_ranks_dropout", call.launch, {**call.arguments, **parts})
            for call in super()._dropout_calls()
        ]

    def _readout_call(self) -> Call:
        call = super()._readout_call()
        if self._clustered:  # no dropout after the readout
            return call
        entry = "fused_ranks_weighted_readout" if self._stack.weighted else "fused_ranks_readout"
        return Call(entry, call.launch, {"readout": call.arguments, "ranks": self._ranks_fields})

    # -------------------------------------------------------------------------------------------- backward

    def _propagate_backward_call(self, number: int) -> Call:
        call = super()._propagate_backward_call(number)
        rows, columns, _ = call.launch.grid
        line = self._line(number) + self._stack.nodes[number].n_out
        fields = {"propagate": call.arguments, "ranks": self._ranks_fields, "line": line}
        return Call("fused_wide_ranks_propagate_backward", replace(call.launch, grid=(columns * rows, 1, 1)), fields)

    # -------------------------------------------------------------------------------------------- update

    def _all_jobs(self) -> list[dict[str, Any]]:
        """Return first the jobs whose gradients are exchanged."""
        layers = [self._jobs_of(number) for number in range(len(self._layers))]
        norms = [norm for _, *of_layer in layers for norm in of_layer]
        return [*self._head_jobs(), *(own for own, *_ in layers), *norms]

    def _update_call(self, rule: UpdateRule, mode: int, totals: DeviceArray | None = None) -> Call:
        call = super()._update_call(rule, mode, totals)
        if mode == APPLY:
            return call
        return Call("fused_wide_ranks_update", call.launch, {"update": call.arguments, "ranks": self._ranks_fields})
