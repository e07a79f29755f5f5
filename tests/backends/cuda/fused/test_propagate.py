"""The first layer's U of a data set: the device computes what the host computes, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.shared.data import FusedSet, propagated
from gcnbatch.backends.cuda.fused.wide.form import WideTf32, to_tf32
from gcnbatch.backends.registry import open_backend
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.distinct import RepeatedRows
from tests.training.runs import write_set

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16, np.float32])
@pytest.mark.parametrize("form", [Narrow, WideTf32], ids=["fp32", "tf32"])
@pytest.mark.parametrize("repeat", [False, True], ids=["all rows", "few rows"])
def test_u_on_the_device_is_that_of_the_host(repeat: bool, form, dtype, channels: int, tmp_path) -> None:
    backend = open_backend("batched")
    assert isinstance(backend, CudaBackend)
    graphs = write_set(tmp_path / "data.h5", n_channels=channels, n_graphs=40)
    x = np.random.default_rng(0).normal(size=graphs.x.shape) * 3
    if repeat:
        x = x[np.random.default_rng(1).integers(4, size=len(x))]
    source = BatchSource(replace(graphs, x=np.abs(x).astype(dtype) if dtype == np.uint8 else x.astype(dtype)))
    assert source.prepared is not None
    source.prepared.compact()
    assert isinstance(source.prepared.x, RepeatedRows) == repeat
    held = FusedSet(backend.device, source, form)
    of_u = channels * (x.shape[1] + 1)
    whole = np.concatenate([part for _, part in propagated(source.prepared, source.node_ptr, of_u + 1)])
    columns = backend.device.download(held.columns)
    expected = np.ascontiguousarray(whole[:, columns])
    assert len(columns) == held.k
    expected = to_tf32(expected) if form.rounds_to_tf32 else expected
    np.testing.assert_array_equal(backend.device.download(held.x).view(np.int32), expected.view(np.int32))
