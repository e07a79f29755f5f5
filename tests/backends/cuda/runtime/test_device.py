"""The device on a stand-in for PyCUDA: errors of missing parts, memory, launches, failures."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends import registry
from gcnbatch.backends.cuda.runtime import device as devices
from gcnbatch.backends.cuda.runtime import inventory as report
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.compiler import KernelCompileError, Nvcc, Nvrtc
from gcnbatch.backends.cuda.runtime.context import SMALLER_PARTS
from gcnbatch.backends.cuda.runtime.device import Device, open_device
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, elementwise, next_power_of_two, thread_per_output
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.errors import BackendUnavailable, DeviceLost, InputError, MachineError
from gcnbatch.resources import install_guide
from tests.backends.cuda.fake_pycuda import FREE, TOTAL, Fake

# ----------------------------------------------------------------------------------------- pure arithmetic


def test_geometry_helpers() -> None:
    assert [ceil_div(n, 32) for n in (0, 1, 32, 33)] == [0, 1, 1, 2]
    assert [next_power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
    assert elementwise(0) == Launch((0, 1, 1), (256, 1, 1))
    assert elementwise(1850 * 64, per_thread=4) == Launch((116, 1, 1), (256, 1, 1))
    assert thread_per_output(0, 64).blocks == thread_per_output(64, 0).blocks == 0
    assert thread_per_output(8, 32) == Launch((1, 1, 1), (32, 8, 1))
    assert thread_per_output(9, 33).grid == (2, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, -1, 1), (32, 1, 1)), r"grid \(1, -1, 1\): below 0"),
        (((1, 1, 1), (32, 33, 1)), r"block \(32, 33, 1\): outside 1 to 1024 threads"),
        (((1, 1, 1), (0, 1, 1)), r"block \(0, 1, 1\): outside"),
        (((1, 1, 1), (1, 1, 1), -4), "shared memory of -4 bytes"),
    ],
)
def test_a_launch_that_no_device_could_run_is_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Launch(*arguments)


def test_a_grid_beyond_the_limits_of_cuda_is_the_users_error() -> None:
    with pytest.raises(
        InputError, match=r"^model and batch: a grid of 1 x 65,536 x 1 blocks; expected at most 2,147,48"
    ):
        Launch((1, 65_536, 1), (32, 1, 1))


def test_views_share_memory_and_stay_inside() -> None:
    whole = DeviceArray(1000, (3, 4), np.dtype(np.float32))
    assert (whole.size, whole.nbytes, whole.ndim, len(whole)) == (12, 48, 2, 3)
    part = whole.view(4, (2, 4))
    assert (part.ptr, part.shape) == (1016, (2, 4))
    assert whole.view(12, 0).size == 0
    assert whole.reshape(2, -1).shape == (2, 6)
    assert DeviceArray(0, (0, 5), np.dtype(np.float32)).reshape(0, -1).shape == (0, 0)
    assert whole.astype_view(np.uint8).shape == (48,)
    for start, shape in ((5, (2, 4)), (-1, (1,))):
        with pytest.raises(ValueError, match=r"reaches beyond an array of \(3, 4\)"):
            whole.view(start, shape)
    for shape in ((5, 2), (5, -1)):
        with pytest.raises(ValueError, match=r"an array of \(3, 4\) cannot take the shape"):
            whole.reshape(*shape)
    with pytest.raises(ValueError, match="3 bytes do not divide into elements of float32"):
        DeviceArray(0, (3,), np.dtype(np.uint8)).astype_view(np.float32)


# -------------------------------------------------------------------------------------- what can be missing


def refusal() -> str:
    with pytest.raises(BackendUnavailable) as caught:
        loader.load_cuda()
    return str(caught.value)


class Blocked:
    """Importing PyCUDA raises this."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> None:
        if name.startswith("pycuda"):
            raise self.error


def test_a_missing_driver_is_reported_with_its_fix(fake: Fake, monkeypatch) -> None:
    def missing(name: str, mode: int) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(loader, "load_library", missing)
    assert refusal() == (
        "CUDA: no NVIDIA driver (libcuda.so.1 is not here). Install the driver of your GPU, or use --backend cpu."
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ModuleNotFoundError("x", name="pycuda"),
            f"PyCUDA is not installed. pip install 'gcnbatch[cuda]' ({install_guide()} ",
        ),
        (ModuleNotFoundError("x", name="pytools"), "PyCUDA lacks the module pytools. pip install 'gcnbatch[cuda]'"),
        (
            ImportError("undefined symbol: cuCtxCreate_v4"),
            "this PyCUDA does not match the driver (undefined symbol: cuCtxCreate_v4). Build it again with headers",
        ),
    ],
)
def test_a_pycuda_that_does_not_import_is_reported_with_its_fix(
    fake: Fake, monkeypatch, error: Exception, message: str
) -> None:
    for name in fake.modules():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocked(error), *sys.meta_path])
    assert refusal().startswith(f"CUDA: {message}")


def test_a_driver_that_does_not_start_is_reported_with_its_fix(fake: Fake) -> None:
    fake.failures["init"] = fake.driver.LogicError("cuInit failed: stub of the driver")
    assert refusal().startswith(
        "CUDA: the NVIDIA driver does not start (cuInit failed: stub of the driver). See whether nvidia-smi runs"
    )


def test_a_machine_without_devices_is_reported_with_its_fix(fake: Fake, monkeypatch) -> None:
    fake.devices.clear()
    expected = "CUDA: the driver runs, but there is no device. See what nvidia-smi lists, or use --backend cpu."
    assert refusal() == expected
    fake.failures["init"] = fake.driver.RuntimeError("cuInit failed: no CUDA-capable device is detected")
    assert refusal() == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "no device. CUDA_VISIBLE_DEVICES='' hides the others, if any: unset it. See" in refusal()


def test_the_device_is_chosen_by_number(fake: Fake, monkeypatch) -> None:
    assert loader.choose(1) == loader.DeviceInfo(1, "Fake 75", (7, 5), TOTAL, 132)
    with pytest.raises(InputError, match=r"device: 2; expected 0 to 1\. 'gcnbatch info' lists the devices"):
        loader.choose(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(InputError, match="expected 0 to 1, of those that CUDA_VISIBLE_DEVICES='3,5' shows"):
        loader.choose(2)
    fake.devices[0] = ("Fake 61", (6, 1))
    with pytest.raises(BackendUnavailable, match=r"device 0 \(Fake 61, compute capability 6\.1\) is older than 7\.0"):
        loader.choose(0)


@pytest.mark.parametrize(("status", "made"), [(0, [0, 1]), (100, [0])])
def test_wake_initialises_the_driver_and_one_device(monkeypatch, status: int, made: list[int]) -> None:
    calls: list[int] = []

    def start(flags: int) -> int:
        calls.append(flags)
        return status

    library = SimpleNamespace(cuInit=start, cuDevicePrimaryCtxRetain=lambda context, number: calls.append(number))
    monkeypatch.setattr(loader, "load_library", lambda name, mode: library)
    monkeypatch.setattr(loader, "find_spec", lambda name: True)
    thread = loader.wake(1)
    assert thread is not None
    thread.join()
    assert calls == made


@pytest.mark.parametrize("missing", ["PyCUDA", "driver"])
def test_wake_does_nothing_without_pycuda_or_driver(monkeypatch, missing: str) -> None:
    def load(name: str, mode: int) -> SimpleNamespace:
        if missing == "driver":
            raise OSError
        return SimpleNamespace()

    monkeypatch.setattr(loader, "load_library", load)
    monkeypatch.setattr(loader, "find_spec", lambda name: None if missing == "PyCUDA" else True)
    assert loader.wake(0) is None


def test_a_device_older_than_the_compiler_is_refused(fake: Fake) -> None:
    fake.devices[0] = ("Fake 70", (7, 0))
    loader.check_compiler(loader.choose(0), Nvcc(Path("nvcc"), "12.9.86"))
    with pytest.raises(BackendUnavailable, match=r"too old for nvcc 13\.0\.88, .*\. Install CUDA toolkit 12 and point"):
        loader.check_compiler(loader.choose(0), Nvcc(Path("nvcc"), "13.0.88"))


def test_a_driver_older_than_the_compiler_is_refused(fake: Fake) -> None:
    fake.cuda = 12_040
    loader.check_compiler(loader.choose(0), Nvrtc(None, "12.9"))
    expected = (
        r"the driver, for CUDA 12\.4, is older than nvcc 13\.0\.88\. Update the driver, or install CUDA toolkit 12"
    )
    with pytest.raises(BackendUnavailable, match=expected):
        loader.check_compiler(loader.choose(0), Nvcc(Path("nvcc"), "13.0.88"))


def test_the_inventory_reports_each_part_separately(fake: Fake, nvcc, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    found = report.collect()
    assert found.pop("nccl") or found["missing"].pop("nccl")
    assert found == {
        "driver": "CUDA 13.0",
        "devices": [
            {"number": 0, "name": "Fake 90", "capability": "9.0", "memory": TOTAL, "multiprocessors": 132},
            {"number": 1, "name": "Fake 75", "capability": "7.5", "memory": TOTAL, "multiprocessors": 132},
        ],
        "compiler": "nvcc 13.0.88",
        "cache": {"folder": str(tmp_path / "kernels"), "files": 0, "bytes": 0},
        "missing": {},
    }


def test_the_inventory_of_a_machine_without_cuda(fake: Fake, no_compiler, monkeypatch) -> None:
    def missing(name: str, mode: int) -> None:
        raise OSError

    monkeypatch.setattr(loader, "load_library", missing)
    found = report.collect()
    assert (found["driver"], found["devices"], found["compiler"]) == (None, [], None)
    assert found["missing"]["driver"] == found["missing"]["devices"]
    assert found["missing"]["compiler"].startswith(
        "no kernel compiler (neither nvcc with g++ nor NVRTC 12.3 or newer)."
    )


# --------------------------------------------------------------------------------------------------- memory


def test_download_returns_the_uploaded_array(opened: Device) -> None:
    for values in (np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((0, 7), np.int32), np.float64(3).reshape(1)):
        there = opened.upload(values)
        back = opened.download(there)
        assert (there.shape, there.dtype) == (values.shape, values.dtype)
        assert back.tobytes() == values.tobytes()
    flat = opened.zeros(6)
    opened.upload(np.ones((2, 1), np.float32), out=flat.view(4, (2, 1)))
    assert opened.download(flat).tolist() == [0, 0, 0, 0, 1, 1]
    assert opened.download(opened.upload(np.arange(6).reshape(2, 3).T)).tolist() == [[0, 3], [1, 4], [2, 5]]
    held = np.zeros(6, np.float32)
    assert opened.download(flat, held) is held
    assert held.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("host", [np.zeros(3, np.float64), np.zeros(4, np.float32), np.zeros((3, 2), np.float32)[:, 0]])
def test_an_upload_of_another_shape_or_type_is_refused(opened: Device, host) -> None:
    with pytest.raises(ValueError, match=r"does not fit float32 \(3,\), row-major"):
        opened.upload_async(host, opened.zeros(3))


def test_pinned_memory_is_uploaded_without_waiting(opened: Device, fake: Fake) -> None:
    host = opened.pinned((2, 3), np.int32)
    host[...] = 7
    waited = len(fake.named("synchronize"))
    there = opened.upload_async(host, opened.empty((2, 3), np.int32))
    assert len(fake.named("synchronize")) == waited
    assert (opened.download(there) == 7).all()
    assert opened.pinned(0).shape == (0,)


def test_a_row_is_sent_after_the_copy_of_the_previous_one(opened: Device, fake: Fake) -> None:
    there = opened.zeros(5, np.int32)
    fake.pick = lambda ready: None  # copies stay queued until somebody waits
    for number in range(3):
        host = np.full((1, 5), number, np.int32)
        opened.send_rows(host, there, 512)
        host[:] = -1
        assert len(fake.named("synchronize event")) == number
    assert fake.named("synchronize") == []
    assert opened.download(there).tolist() == [2] * 5


def test_rows_that_do_not_fit_are_refused(opened: Device) -> None:
    for host in (np.zeros((2, 4), np.int32), np.zeros((2, 5), np.float32)):
        with pytest.raises(ValueError, match=r"does not fit rows of int32 \(5,\)"):
            opened.send_rows(host, opened.zeros(5, np.int32), 512)


def test_fetch_reuses_its_pinned_memory(opened: Device) -> None:
    small, large = opened.upload(np.arange(6.0).reshape(2, 3)), opened.upload(np.arange(40, dtype=np.int32))
    first = opened.fetch(small)
    kept = opened._fetched
    np.testing.assert_array_equal(opened.fetch(large.view(0, (2, 5))), np.arange(10).reshape(2, 5))
    assert opened._fetched is kept
    np.testing.assert_array_equal(opened.fetch(large), np.arange(40))
    np.testing.assert_array_equal(first, np.arange(6.0).reshape(2, 3))
    assert opened._fetched is not kept


def test_the_peak_counts_arrays_that_exist_at_once(opened: Device) -> None:
    million = 1_000_000
    for _ in range(3):
        held = opened.empty(4 * million, np.uint8)
        del held
    both = opened.empty(2 * million, np.uint8), opened.empty(1_500_000, np.uint8)
    assert opened.peak_bytes == 4 * million
    opened.peak_bytes = 0
    del both
    opened.empty(2 * million, np.uint8)
    assert opened.peak_bytes == 2 * million


@pytest.mark.parametrize("prepare", [lambda device: None, Device.release])
def test_another_thread_may_free_the_first_array(opened: Device, fake: Fake, prepare: Callable[[Device], None]) -> None:
    arrays = [opened.empty(10_000_000)]
    prepare(opened)
    thread = Thread(target=arrays.clear)
    thread.start()
    thread.join()
    assert not fake.named("terminate")


def test_small_arrays_share_a_slab_that_is_freed_with_the_last_one(opened: Device, fake: Fake) -> None:
    first, second = opened.empty(3), opened.empty((2, 5), np.int32)
    assert second.ptr - first.ptr == 256
    before = len(fake.named("allocate"))
    third = [opened.empty(200_000) for _ in range(50)]  # 40 MB: three slabs
    assert len(fake.named("allocate")) == before + 2
    assert opened.active_bytes == 3 * (16 << 20)
    del first, second, third[:20]
    assert opened.active_bytes == 2 * (16 << 20)
    assert opened.memory() == (FREE, TOTAL)


def test_a_workspace_persists_and_is_zero_when_it_grows(opened: Device) -> None:
    first = opened.workspace("partials", 8)
    assert opened.download(first).tolist() == [0] * 8
    opened.upload(np.full(8, 9, np.uint8), out=first)
    assert opened.download(opened.workspace("partials", 4)).tolist() == [9] * 8
    assert opened.download(opened.workspace("partials", 12)).tolist() == [0] * 12
    assert opened.workspace("counters", 4).ptr != opened.workspace("partials", 4).ptr


# ------------------------------------------------------------------------------------------------- launches


def scale(device: Device, n: int = 4, launch: Launch | None = None) -> tuple[DeviceArray, ...]:
    y, x, rows = device.empty(n), device.empty(n), device.empty(n, np.int32)
    device.launch("scale_forward", launch or Launch((2, 1, 1), (32, 1, 1)), y=y, x=x, rows=rows, n=n)
    return y, x, rows


def test_a_launch_packs_arguments_as_declared(opened: Device, fake: Fake) -> None:
    y, x, rows = scale(opened)
    assert fake.named("launch") == [
        ("scale_forward", (2, 1, 1), (32, 1, 1), 0, struct.pack("PPPq", y.ptr, x.ptr, rows.ptr, 4))
    ]
    scale(opened, 0, Launch((0, 1, 1), (32, 1, 1)))
    assert opened.launches == 1
    assert len(fake.named("load")) == 1, "modules load when a kernel of theirs is first launched"
    opened.launch("plain", Launch((1, 1, 1), (1, 1, 1)), bytes=opened.empty(1, np.uint8), n=3)
    assert (opened.launches, len(fake.named("load"))) == (2, 2)


def test_the_shared_memory_limit_is_raised_once(opened: Device, fake: Fake) -> None:
    for shared in (49_152, 60_000, 50_000, 60_000, 70_000):
        scale(opened, launch=Launch((1, 1, 1), (32, 1, 1), shared))
    assert [asked[2] for asked in fake.named("set_attribute")] == [60_000, 70_000]


def test_an_observer_times_every_launch(opened: Device) -> None:
    scale(opened)
    opened.observer = []
    launch = Launch((3, 1, 1), (64, 1, 1))
    scale(opened, launch=launch)
    opened.launch("plain", Launch((1, 1, 1), (1, 1, 1)), bytes=opened.empty(1, np.uint8), n=3)
    assert opened.observer[0][:2] == ("scale_forward", launch)
    assert [seen.stop.since(seen.start) for seen in opened.observer] == [1000.0, 1000.0]
    opened.observer = None
    scale(opened)
    assert opened.launches == 4
    opened.event().synchronize()


def test_a_prepared_launch_is_the_same_launch_whenever_it_is_called(opened: Device, fake: Fake) -> None:
    y, x, rows = scale(opened)
    again = opened.prepared("scale_forward", Launch((2, 1, 1), (32, 1, 1)), y=y, x=x, rows=rows, n=4)
    assert opened.launches == 1
    opened.observer = []
    again()
    again()
    first, *others = fake.named("launch")
    assert others == [first, first]
    assert ([seen.entry for seen in opened.observer], opened.launches) == (["scale_forward"] * 2, 3)
    with pytest.raises(TypeError, match="scale_forward lacks rows"):
        opened.prepared("scale_forward", Launch((2, 1, 1), (32, 1, 1)), y=y, x=x, n=4)


def test_a_device_reports_its_properties_and_releases_its_context(opened: Device, fake: Fake) -> None:
    assert (opened.name, opened.compute_capability, opened.multiprocessors) == ("Fake 90", (9, 0), 132)
    assert opened.about() == {
        "GPU": "Fake 90",
        "compute capability": "9.0",
        "multiprocessors": "132",
        "driver": "CUDA 13.0",
        "compiler": "nvcc 13.0.88",
        "nominal clocks": "1980 MHz, memory 2619 MHz",
    }
    opened.close()
    assert [call[0] for call in fake.calls[-2:]] == ["stop_holding", "pop"]


# ------------------------------------------------------------------------------------------------- failures


def test_out_of_memory_reports_requested_and_free_bytes(opened: Device, fake: Fake) -> None:
    fake.failures["allocate"] = fake.driver.MemoryError("memory_pool::allocate failed: out of memory")
    with pytest.raises(MachineError) as caught:
        opened.empty((1 << 20, 5))
    assert str(caught.value) == (
        "device 0 (Fake 90): out of memory: 20.0 MiB requested, 3 of 8 MiB free. Lower train.batch_size or "
        "train.eval_batch_size, give --resident off, or end other programs on this GPU (nvidia-smi lists them)."
    )
    opened.takes_less = SMALLER_PARTS
    with pytest.raises(MachineError) as caught:
        opened.empty((1 << 20, 5))
    assert str(caught.value) == (
        "device 0 (Fake 90): out of memory: 20.0 MiB requested, 3 of 8 MiB free. Give one graph more GPUs (mpirun -n) "
        "or narrower layers (model.widths), or end other programs on this GPU (nvidia-smi lists them)."
    )


def test_out_of_memory_on_a_lost_device_reports_requested_bytes(opened: Device, fake: Fake) -> None:
    fake.failures["allocate"] = fake.driver.MemoryError("out of memory")
    fake.failures["memory"] = fake.driver.LogicError("an illegal memory access was encountered")
    with pytest.raises(MachineError, match=r"\(Fake 90\): out of memory: 20\.0 MiB requested\. Lower"):
        opened.empty((1 << 20, 5))


@pytest.mark.parametrize("where", ["launch", "synchronize", "download", "synchronize event"])
def test_a_lost_device_raises_device_lost(opened: Device, fake: Fake, where: str) -> None:
    there = opened.zeros(4)
    fake.failures[where] = fake.driver.LogicError("an illegal memory access was encountered")
    with pytest.raises(DeviceLost, match=r"device 0 \(Fake 90\): an illegal .* encountered\. If it happens again, 'nv"):
        {
            "launch": lambda: scale(opened),
            "synchronize": opened.synchronize,
            "download": lambda: opened.download(there),
            "synchronize event": opened.event().synchronize,
        }[where]()
    assert opened.launches == 0


def test_a_device_that_does_not_answer_is_named(fake: Fake) -> None:
    fake.failures["total memory"] = fake.driver.LogicError("cuDeviceTotalMem failed: GPU is lost")
    with pytest.raises(
        BackendUnavailable, match=r"^CUDA: device 0 does not answer \(cuDev.* GPU is lost\)\. See what nv"
    ):
        open_device(0)


def test_a_full_device_does_not_open(fake: Fake) -> None:
    """Another process has taken all memory, so that not even a context has room."""
    fake.failures["retain context"] = fake.driver.MemoryError("cuDevicePrimaryCtxRetain failed: out of memory")
    fake.failures["memory"] = fake.driver.LogicError("invalid device context")
    with pytest.raises(
        MachineError, match=r"^device 0 \(Fake 90\): out of memory\. Lower train\..*end other programs on"
    ):
        open_device(0)


def test_a_cubin_that_the_driver_does_not_load_is_a_machine_error(opened: Device, fake: Fake) -> None:
    fake.failures["load"] = fake.driver.LogicError("device kernel image is invalid")
    with pytest.raises(
        MachineError, match=r"scale.cu for sm_90a: the driver \(CUDA 13\.0\) does not load it .* toolkit 13"
    ):
        scale(opened)


def test_a_module_that_runs_out_of_memory_does_not_blame_the_driver(opened: Device, fake: Fake) -> None:
    held = {"y": opened.empty(1), "x": opened.empty(1), "rows": opened.empty(1, np.int32), "n": 1}
    fake.failures["load"] = fake.driver.MemoryError("cuModuleLoadDataEx failed: out of memory")
    with pytest.raises(MachineError, match=r"^device 0 \(Fake 90\): out of memory: 3 of 8 MiB free\. Lower train\."):
        opened.launch("scale_forward", Launch((1, 1, 1), (32, 1, 1)), **held)
    fake.failures["load"] = fake.driver.LaunchError("cuModuleLoadDataEx failed: unspecified launch failure")
    with pytest.raises(DeviceLost, match=r"^device 0 \(Fake 90\): cuModuleLoadDataEx failed: unspecified launch"):
        opened.launch("scale_forward", Launch((1, 1, 1), (32, 1, 1)), **held)


def test_a_kernel_that_does_not_compile_fails_at_its_first_use(opened: Device, cache, folder, nvcc) -> None:
    (folder / "plain.cu").write_text('extern "C" __global__ void plain(int n) {}\nnot C\n')
    device = Device(0, cache, devices.Sources(folder))
    scale(device)
    with pytest.raises(KernelCompileError, match=r"plain.cu\(3\): error: expected a declaration"):
        device.launch("plain", Launch((1, 1, 1), (1, 1, 1)), bytes=None, n=3)


def test_a_process_works_on_one_device_until_it_is_closed(fake: Fake, monkeypatch) -> None:
    monkeypatch.setattr("atexit.register", lambda function: None)
    assert open_device(1) is open_device(1)
    with pytest.raises(MachineError, match=r"device 0: this process works on device 1\. Start another process"):
        open_device(0)
    registry.close_devices()
    assert fake.named("pop") == [()]
    assert open_device(0).name == "Fake 90"
