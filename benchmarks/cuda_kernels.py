"""Time MatMul kernels on a GPU inside CUDA graphs and print a JSON row per figure.

    python benchmarks/cuda_kernels.py [--torch]

The shapes are those of ChemGCN; the rows are the forward product and both gradients. The naive kernels, which no
backend uses, stand beside the tiled ones. ``--torch`` also times cuBLAS through PyTorch. A figure is the median of 20
replays of a graph that holds the call 10 times. It has no launch cost of the host, and the operands stay in L2.
``gcnbatch bench spmm`` times SpMM.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import numpy as np

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.ops.matmul_naive import NaiveMatmul
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import CudaConfig
from gcnbatch.environment import collect
from gcnbatch.lab.bench.clock import DeviceClock

CALLS, REPLAYS = 10, 20
KERNELS: tuple[tuple[str, Literal["fp32", "tf32"]], ...] = (("naive", "fp32"), ("tiled", "fp32"), ("tiled", "tf32"))
MATMUL = ((950, 64, 64), (1850, 512, 512), (950, 75, 64), (19_000, 64, 64))


def matmul_rows(backend: CudaBackend, about: dict[str, Any], torch_too: bool) -> None:
    """Print a row per shape, product, kernel and precision, and cuBLAS's rows if `torch_too`."""
    device, rng, clock = backend.device, np.random.default_rng(3), DeviceClock(backend, REPLAYS)
    for N, F, P in MATMUL:
        x, w, dy = (rng.random(shape, dtype=np.float32) for shape in ((N, F), (F, P), (N, P)))
        arrays = [device.upload(array) for array in (x, w, dy)]
        for kernel, precision in KERNELS:
            tiled = CudaBackend("batched", device, CudaConfig(precision=precision)).ops
            ops = NaiveMatmul(device) if kernel == "naive" else tiled
            error = np.abs(device.download(ops.matmul(*arrays[:2])) - x.astype(np.float64) @ w).max()
            calls = {
                "forward": lambda ops=ops: ops.matmul(arrays[0], arrays[1]),
                "wgrad": lambda ops=ops: ops.matmul_backward(arrays[2], arrays[0], arrays[1], need_dx=False),
                "dgrad + wgrad": lambda ops=ops: ops.matmul_backward(arrays[2], arrays[0], arrays[1]),
            }
            for name, call in calls.items():
                us = float(np.median(clock.warm(call)))
                row = {"bench": "matmul", "shape": [N, F, P], "pass": name, "us": round(us, 2)}
                row |= {"kernel": kernel, "precision": precision}
                products = 2 if "+" in name else 1
                row |= {"tflops": round(products * 2e-6 * N * F * P / us, 2), "error": float(error / (x @ w).max())}
                print(json.dumps({**row, **about}))
            if torch_too and kernel != "naive":
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
    """Print the rows."""
    found = collect()
    gpu = found["gpus"][0]
    about = {"gpu": gpu["name"], "driver": gpu["driver"], "commit": found["commit"]}
    backend = open_backend("batched")
    if not isinstance(backend, CudaBackend):
        raise SystemExit("no CUDA backend")
    matmul_rows(backend, about, "--torch" in sys.argv)


if __name__ == "__main__":
    main()
