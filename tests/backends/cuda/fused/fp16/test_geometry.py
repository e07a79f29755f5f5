"""Geometry of the fp16 step: shared memory fits a multiprocessor, the exchange buffer is large enough."""

from __future__ import annotations

import re

import pytest

from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.step import padded
from gcnbatch.resources import cuda_sources


@pytest.mark.parametrize("P", geometry.WIDTHS)
def test_each_block_of_a_cluster_owns_a_slice_of_a_tile(P: int) -> None:
    launch = geometry.launch(P, 7)
    assert launch.grid == (P // 64, 7, 1)
    assert launch.threads == geometry.THREADS
    assert launch.shared <= 227 * 1024


def test_kernels_declare_a_cluster_block_for_each_slice() -> None:
    source = (cuda_sources() / "fused/fp16/step.cu").read_text()
    kernels = re.findall(r"CLUSTERS_OF\((\d)\) (fused_\w+),", source)
    assert {name: int(blocks) for blocks, name in kernels} == {geometry.entry(P): P // 64 for P in geometry.WIDTHS}


def test_the_exchange_buffer_has_space_for_every_layer() -> None:
    one, two = (geometry.exchange_bytes(layers, 15, 512) - geometry.TAG_BYTES for layers in (1, 2))
    assert two == 2 * one
    assert one == 2 * 15 * 512 * 16 + 15 * 8 * (8 + 8 * geometry.WORKERS)


def test_fixed_arrays_repeat_their_last_struct() -> None:
    assert padded([{"a": 1}, {"a": 2}], 4) == [{"a": 1}, {"a": 2}, {"a": 2}, {"a": 2}]
