"""Models, data sets and options that the fused backend refuses before it runs a kernel; no GPU needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.fused import engine, forms
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import InputError
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.runners.choice import make_runner, refusal
from tests.backends.cuda.fused.cohorts import cohort_of
from tests.backends.cuda.fused.host import HostDevice
from tests.training.runs import configure, write_set


def fused_backend(free: int = 1 << 30, **options: Any) -> FusedBackend:
    """Return the backend on a stand-in device of compute capability 9.0 with `free` bytes of memory."""
    device: Any = HostDevice(free=free)
    return FusedBackend("fused", device, CudaConfig(**options))


@pytest.mark.parametrize(
    ("about", "model", "what"),
    [
        ({"features": "csr"}, ("model.widths=[64,64]",), "sparse features"),
        ({}, ("model.ffn=true",), "feed-forward networks (model.ffn)"),
        ({}, ("model.readout=sum,max,sum",), "a readout twice (model.readout)"),
        ({"n_channels": 1}, ("model.widths=[16384,16384]",), "layers that need 584 of 227 KiB of shared memory"),
        ({"n_channels": 1}, ("model.head=[4096,4096]",), "layers that need 256 of 227 KiB of shared memory"),
    ],
)
def test_unsupported_models_and_sets_are_refused_in_one_line(
    about: dict[str, Any], model: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", **about)
    with (
        opened(configure(f"data.path={tmp_path / 'data.h5'}", *model)) as work,
        pytest.raises(InputError) as error,
    ):
        make_runner(fused_backend(), [work.task])
    assert str(error.value) == f"backend fused: it does not take {what}. Use --backend batched."


NARROW = (
    "cuda.precision tf32 except for layers of 8,192 weights and more on compute capability 9.0 "
    "(--set cuda.precision=fp32)"
)


@pytest.mark.parametrize(
    ("about", "what"),
    [
        ({"free": 0}, "a data set of 0 MiB with 0 MiB of device memory for it"),
        ({"resident": "off"}, "cuda.spmm other than auto, or cuda.resident off"),
        ({"precision": "tf32"}, NARROW),
    ],
)
def test_missing_memory_and_unsupported_options_are_refused(about: dict[str, Any], what: str, tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}")) as work:
        assert refusal(fused_backend(**about), work.task) == what


def test_a_set_beyond_32_bit_indices_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path / "data.h5")
    monkeypatch.setattr(forms, "MAX_ENTRIES", 10)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}")) as work:
        assert refusal(fused_backend(), work.task) == "more nodes or edges than 32-bit indices can address"


@pytest.mark.parametrize("key", ["batch_size", "eval_batch_size"])
def test_batches_beyond_32_bit_indices_are_refused_before_training(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = write_set(tmp_path / "data.h5")
    monkeypatch.setattr(forms, "most_nodes", lambda stack: graphs.n_nodes - 1)
    about = (f"data.path={tmp_path / 'data.h5'}", "train.batch_size=1")
    backend = fused_backend()
    with opened(configure(*about)) as work:
        assert refusal(backend, work.task) is None
    with opened(configure(*about, f"train.{key}=1000")) as work, pytest.raises(InputError) as error:
        make_runner(backend, [work.task])
    assert str(error.value) == (
        f"backend fused: it does not take train.{key} 1,000 with up to {graphs.n_nodes:,} nodes a batch, more "
        f"than {graphs.n_nodes - 1:,} with these layers. Use --backend batched."
    )


def test_batches_of_many_graphs_with_wide_layers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooled rows and logits have a row per graph, also per graph without nodes."""
    graphs = write_set(tmp_path / "data.h5")
    about = (f"data.path={tmp_path / 'data.h5'}", "model.widths=[8]", "model.head=[100]", "train.batch_size=1000000")
    limit = max(graphs.n_graphs * 100, graphs.n_nodes * graphs.header.n_channels, len(graphs.src) + graphs.n_nodes)
    monkeypatch.setattr(forms, "most_nodes", lambda stack: graphs.n_nodes)
    with opened(configure(*about)) as work:
        monkeypatch.setattr(forms, "MAX_ENTRIES", limit)
        assert refusal(fused_backend(), work.task) is None
        monkeypatch.setattr(forms, "MAX_ENTRIES", graphs.n_graphs * 100 - 1)
        assert refusal(fused_backend(), work.task) == (
            "train.batch_size 1,000,000 with layers of 100 columns: more than 32-bit indices can address"
        )


def test_a_prediction_batch_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(forms, "MAX_ENTRIES", 10)
    graphs = write_set(tmp_path / "data.h5")
    device: Any = HostDevice()
    with opened(configure(f"data.path={tmp_path / 'data.h5'}")) as work:
        cohort = cohort_of(device, work.task, (Narrow,))
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    fused = engine.FusedEngine(cohort, rule, (Narrow,), Narrow)
    assert fused.eval_batch_size == 1
    with pytest.raises(InputError) as error:
        fused.predict([np.arange(graphs.n_graphs)])
    assert str(error.value) == (
        f"backend fused: up to {graphs.n_nodes:,} nodes in a batch of {graphs.n_graphs} graphs; "
        "expected at most 0 with these layers. Give smaller batches, or --backend batched."
    )
