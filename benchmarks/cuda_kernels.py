"""Times SpMM and MatMul kernels on a GPU inside CUDA graphs, one JSON row per figure.

    python benchmarks/cuda_kernels.py [spmm] [matmul] [--torch]

SpMM runs on the source figures' parameters (batch, rows, non-zeros per row, columns nB; a pattern per matrix), every
kernel checked against SciPy in float64 first. MatMul runs the forward product and both gradients on the shapes of
ChemGCN; ``--torch`` times cuBLAS through PyTorch beside them. A figure is the median over 20 replays of a graph that
holds the call 10 times, so no launch cost of the host is in it; operands stay in the L2 cache.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gcnbatch.backends.cuda import batch
from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.batch import GraphLayout
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import CudaConfig
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.environment import collect

CALLS, REPLAYS = 10, 20
# name: (batch, (fewest, most) rows, (fewest, most) non-zeros per row), as in the papers; "10k" is a full device.
SPMM = {
    "8a": (50, (50, 50), (2, 2)),
    "8b": (100, (50, 50), (3, 3)),
    "9a": (100, (32, 32), (3, 3)),
    "9b": (100, (64, 64), (3, 3)),
    "9c": (100, (128, 128), (3, 3)),
    "9d": (50, (64, 64), (3, 3)),
    "9e": (100, (64, 64), (1, 1)),
    "9f": (100, (64, 64), (5, 5)),
    "10": (100, (32, 256), (1, 5)),
    "10k": (10_000, (50, 50), (3, 3)),
}
COLUMNS = (16, 64, 256, 512, 1024)
KERNELS = ("csr", "swa_csr", "swa_coo", "tf")
MATMUL = ((950, 64, 64), (1850, 512, 512), (950, 75, 64), (19_000, 64, 64))


def graph_microseconds(backend: CudaBackend, call: Callable[[], object]) -> float:
    """Return the median time of one call inside a captured and replayed CUDA graph."""
    from cuda.bindings import driver

    def checked(result: tuple[Any, ...]) -> Any:
        if result[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(str(result[0]))
        return result[1] if len(result) > 1 else None

    stream = driver.CUstream(backend.device.stream.handle)
    kept = [call() for _ in range(2 * CALLS)]  # the pool then holds every array that the capture asks for
    del kept
    backend.device.synchronize()
    checked(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for _ in range(CALLS):
        call()
    graph = checked(driver.cuStreamEndCapture(stream))
    ready = checked(driver.cuGraphInstantiate(graph, 0))
    times = []
    for _ in range(REPLAYS + 3):
        start = backend.meter.mark()
        checked(driver.cuGraphLaunch(ready, stream))
        times.append(backend.meter.microseconds(start, backend.meter.mark()) / CALLS)
    return float(np.median(times[3:]))


def random_batch(name: str, seed: int = 1) -> tuple[Any, GraphLayout]:
    """Return a block-diagonal SciPy matrix with a pattern of its own per graph, and its graphs."""
    size, (fewest, most), (least, densest) = SPMM[name]
    rng = np.random.default_rng(seed)
    rows = rng.integers(fewest, most + 1, size)
    per_row = rng.integers(least, densest + 1, size)
    blocks = []
    for n, z in zip(rows, per_row, strict=True):
        columns = np.sort(np.argsort(rng.random((n, n)), axis=1)[:, :z], axis=1)
        values = rng.random(n * z, dtype=np.float32)
        blocks.append(sp.csr_array((values, columns.ravel(), np.arange(0, n * z + 1, z)), shape=(n, n)))
    return sp.block_diag(blocks, format="csr"), GraphLayout(np.concatenate([[0], np.cumsum(rows)]))


def spmm_rows(backend: CudaBackend, about: dict[str, Any]) -> None:
    """Print a row per figure, number of columns and kernel."""
    device = backend.device
    for name in SPMM:
        matrix, layout = random_batch(name)
        csr = Csr(matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data, matrix.shape[1])
        found = batch.adjacency(Adjacency(csr, csr, 1), layout, coo=True).map(device.upload)
        for columns in COLUMNS if name != "10k" else (64, 256):
            h = np.random.default_rng(2).random((matrix.shape[0], columns), dtype=np.float32)
            exact, on_device = matrix.astype(np.float64) @ h, device.upload(h)
            compulsory = 8 * h.size + 8 * matrix.nnz + 4 * matrix.shape[0]
            for kernel in KERNELS:
                ops = CudaBackend("batched", device, CudaConfig(spmm=kernel)).ops
                error = np.abs(device.download(ops.spmm(found, on_device)) - exact).max() / np.abs(exact).max()
                if not error < 1e-6:
                    raise RuntimeError(f"{kernel} is wrong on figure {name}: {error}")
                us = graph_microseconds(backend, lambda ops=ops: ops.spmm(found, on_device))
                figures = {"us": round(us, 2), "gflops": round(2e-3 * matrix.nnz * columns / us, 1)}
                figures["gb_per_s"] = round(compulsory / us * 1e-3, 1)
                print(
                    json.dumps({"bench": "spmm", "figure": name, "nB": columns, "kernel": kernel, **figures, **about})
                )


def matmul_rows(backend: CudaBackend, about: dict[str, Any], torch_too: bool) -> None:
    """Print a row per shape, pass and precision, and cuBLAS beside it when asked for."""
    device, rng = backend.device, np.random.default_rng(3)
    for N, F, P in MATMUL:
        x, w, dy = (rng.random(shape, dtype=np.float32) for shape in ((N, F), (F, P), (N, P)))
        arrays = [device.upload(array) for array in (x, w, dy)]
        for precision in ("fp32", "tf32"):
            ops = CudaBackend("batched", device, CudaConfig(precision=precision)).ops
            error = np.abs(device.download(ops.matmul(*arrays[:2])) - x.astype(np.float64) @ w).max()
            calls = {
                "forward": lambda ops=ops: ops.matmul(arrays[0], arrays[1]),
                "wgrad": lambda ops=ops: ops.matmul_backward(arrays[2], arrays[0], arrays[1], need_dx=False),
                "dgrad + wgrad": lambda ops=ops: ops.matmul_backward(arrays[2], arrays[0], arrays[1]),
            }
            for name, call in calls.items():
                us = graph_microseconds(backend, call)
                row = {"bench": "matmul", "shape": [N, F, P], "pass": name, "precision": precision, "us": round(us, 2)}
                products = 2 if "+" in name else 1
                row |= {"tflops": round(products * 2e-6 * N * F * P / us, 2), "error": float(error / (x @ w).max())}
                print(json.dumps({**row, **about}))
            if torch_too:
                _torch_row((x, w, dy), precision, about)


def _torch_row(host: tuple[Any, ...], precision: str, about: dict[str, Any]) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    x, w, dy = (torch.from_numpy(array).cuda() for array in host)
    calls = {"forward": lambda: torch.mm(x, w), "wgrad": lambda: torch.mm(x.T, dy)}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        times = []
        for _ in range(REPLAYS + 3):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            graph.replay()
            marks[1].record()
            torch.cuda.synchronize()
            times.append(marks[0].elapsed_time(marks[1]) * 1e3 / CALLS)
        row = {"bench": "matmul", "peer": "cuBLAS", "shape": [len(x), x.shape[1], w.shape[1]], "pass": name}
        print(json.dumps({**row, "precision": precision, "us": round(float(np.median(times[3:])), 2), **about}))


def main() -> None:
    """Run the parts named on the command line, or all."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")] or ["spmm", "matmul"]
    found = collect()
    gpu = found["gpus"][0]
    about = {"gpu": gpu["name"], "driver": gpu["driver"], "commit": found["commit"]}
    backend = open_backend("batched")
    if not isinstance(backend, CudaBackend):
        raise SystemExit("no CUDA backend")
    if "spmm" in wanted:
        spmm_rows(backend, about)
    if "matmul" in wanted:
        matmul_rows(backend, about, "--torch" in sys.argv)


if __name__ == "__main__":
    main()
