"""Helpers for tests of fp16 steps: matrices as panels (cuda_src/fused/fp16/tiles.cuh), and a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.forms import setting_of
from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.features import Fp16Features
from gcnbatch.backends.cuda.fused.fp16.form import Fp16
from gcnbatch.backends.cuda.fused.fp16.step import Fp16Workspace
from gcnbatch.backends.cuda.fused.fp16.tiles import TiledPlan, plan_tiles, tiles_of
from gcnbatch.backends.cuda.fused.shared.arena import Memory, in_arena
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.wide.form import WideTf32
from gcnbatch.lab.backend_comparison.workload import opened
from tests.backends.cuda.fused.cohorts import cohort_of
from tests.training.runs import configure

Array = NDArray[Any]
ROWS, PANEL = geometry.TILE_ROWS, geometry.PANEL


def swizzled(panels: Array) -> Array:
    """Return panels (…, rows, 64) with the chunks of each row swizzled; its own inverse."""
    rows = np.arange(panels.shape[-2])
    chunks = panels.reshape(*panels.shape[:-1], 8, 8)
    found = chunks[..., rows[:, None], np.arange(8) ^ rows[:, None] % 8, :]
    return np.ascontiguousarray(found.reshape(panels.shape))


def to_panels(matrix: Array) -> Array:
    """Return (144 tiles, columns) as panels (tiles, columns / 64, 144, 64)."""
    columns = matrix.shape[1]
    return swizzled(matrix.reshape(-1, ROWS, columns // PANEL, PANEL).swapaxes(1, 2))


def from_panels(panels: Array) -> Array:
    """Return the matrix of such panels."""
    found = swizzled(panels).swapaxes(1, 2)
    return found.reshape(found.shape[0] * ROWS, -1)


def weight_panels(weight: Array, columns: int) -> tuple[Array, Array]:
    """Return W (F, P) times 128 in the forward and backward layouts of the step; U has `columns` columns."""
    F, P = weight.shape
    filled = np.zeros((columns, P), np.float16)
    filled[:F] = (weight * np.float32(geometry.WEIGHT_SCALE)).astype(np.float16)

    def blocks(matrix: Array) -> Array:
        rows = matrix.shape[0] // PANEL
        return swizzled(matrix.reshape(rows, PANEL, -1, PANEL).swapaxes(1, 2))

    return blocks(np.ascontiguousarray(filled.T)), blocks(filled)


def workspace(
    device: Any, path: Path, assignments: tuple[str, ...], batches: list[Array], most_tiles: int = 15
) -> tuple[Fp16Workspace, TiledPlan, Any]:
    """Return the arrays of a model on a set for an epoch of these batches, the plan, and its task."""
    graphs = max(map(len, batches))
    with opened(configure(f"data.path={path}", *assignments)) as work:
        task = work.task
        cohort = cohort_of(device, task, (Fp16, WideTf32))
        held = cohort.data
        assert Fp16.trains(setting_of(cohort.stack, task.source, (9, 0), "tf32"))
        features = held.features(Fp16)
        assert isinstance(features, Fp16Features)
        capacity = held.capacity(graphs)
        tiles = tiles_of(capacity.rows, most_tiles)
        sizes = (len(batches), sum(map(len, batches)), tiles)

        def make(memory: Memory) -> Fp16Workspace:
            return Fp16Workspace(cohort, memory, capacity, StagedEpoch(memory, *sizes), features, most_tiles)

        at = in_arena(device, 1, make)
    tiled = plan_tiles(batches, held.sizes, tiles)
    assert tiled is not None
    return at, tiled, task


def rounded_to_fp16(values: Array, scale: Any) -> Array:
    """Return numbers rounded to fp16 after scaling with a power of two."""
    found: Array = (values * np.float32(scale)).astype(np.float16).astype(np.float32) / np.float32(scale)
    return found
