"""Gradients by inputs on the stand-in for PyCUDA: their launches, also without any edge."""

from __future__ import annotations

from collections import Counter

import pytest

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.runtime.device import open_device
from gcnbatch.config_sections import CudaConfig
from tests.backends.cuda.fake_pycuda import Fake
from tests.runners.test_input_gradients import results


@pytest.mark.parametrize("name", ["batched", "nonbatched"])
@pytest.mark.parametrize("model", ["bond channels, maximum", "sparse features", "no edges", "every junction"])
def test_an_output_launches_a_product_of_edges_per_convolution(machine: Fake, name: str, model: str) -> None:
    results(CudaBackend(name, open_device(), CudaConfig()), model)
    launched = Counter(entry for entry, *_ in machine.named("launch"))
    products = launched["sddmm_float1"] + launched["sddmm_float4"]
    assert products == 2 * (1 + 2 * (model != "no edges"))  # two outputs: the nodes, and each of two convolutions
