"""The jobs of the update of wide layers, one for each parameter array, and their chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared


def job(
    shape: tuple[int, int, int],
    starts: tuple[int, int],
    right: DeviceArray,
    n_partials: int = 1,
    panels: tuple[DeviceArray | None, DeviceArray | None] = (None, None),
    round_: int = 0,
    left: DeviceArray | None = None,
) -> dict[str, Any]:
    """Return the fields of a WideJob (fused/wide/update.cuh).

    Parameters
    ----------
    shape : (F, C, P)
        Of the weights (F, C P).
    starts : (int, int)
        Of weights and biases in the flat arrays.
    right, left : DeviceArray
        Partial sums of the gradient; with `left`, both factors of a dense layer on graphs.
    panels : tuple of DeviceArray or None
        The packed weights, forward and backward.
    """
    fields: dict[str, Any] = {"left": left, "right": right, "forward": panels[0], "backward": panels[1]}
    fields |= {"weight": starts[0], "bias": starts[1], "round": round_, "n_partials": n_partials}
    fields |= {"partial_stride": right.size // n_partials if left is None else 0}
    return fields | dict(zip("FCP", shape, strict=True))


def vector_shape(width: int) -> tuple[int, int]:
    """Return the shape in which a job has a vector: whole rows of chunks, if they fit.

    >>> vector_shape(512), vector_shape(100)
    ((16, 32), (1, 100))
    """
    return (width // geometry.PANEL, geometry.PANEL) if width % geometry.PANEL == 0 else (1, width)


def chunks_of(shape: tuple[int, int]) -> int:
    """Return the number of chunks of a job's matrix.

    >>> chunks_of((513, 100))
    68
    """
    return ceil_div(shape[0], geometry.PANEL) * ceil_div(shape[1], geometry.PANEL)


def chunk_table(shapes: Sequence[tuple[int, int]], rows: int, columns: int) -> NDArray[Any]:
    """Return a WideChunk (fused/wide/update.cuh) for each `rows` and `columns` of these matrices: (chunks,)."""
    return (
        declared("fused/wide/update.cuh")
        .layout("WideChunk")
        .pack_many(
            {"job": job, "row": row, "column": column}
            for job, (n_rows, n_columns) in enumerate(shapes)
            for row in range(0, n_rows, rows)
            for column in range(0, n_columns, columns)
        )
    )
