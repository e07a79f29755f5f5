"""Time SpMM and training epochs on one graph of Reddit's size on a GPU, ours and cuSPARSE through PyTorch.

    python benchmarks/large_graph.py [spmm] [epoch] [--nodes N] [--edges E]

The graph is random, symmetric and normalised, with a power law of degrees, 232,965 nodes and about 112.7 M stored
entries. PyTorch makes it on the device, and our kernels read its arrays in place. Every SpMM is checked against float64
sums of some rows, the longest one included. A figure is the median of 9 calls between device events. `epoch` is a
training step of Kipf's GCN (602 features, 41 classes, dropout on the hidden layer) with launches and update. The peer's
step is the same model with torch.sparse.mm, autograd and Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from shared import emit as print_row
from shared import options

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceBatch, DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.pieces import Large, Scales, cut_rows
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import CudaConfig, KipfConfig, TrainConfig
from gcnbatch.data.schema import Header
from gcnbatch.environment import collect
from gcnbatch.model.gcn import Loss, build, uniform_weights
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.runners.task import RunnerTask

FEATURES, CLASSES, CALLS = 602, 41, 9


def median_ms(call: Callable[[], object], stream: Any) -> float:
    """Return the median device time of a call on a stream, in ms, without the first two calls."""
    times = []
    for _ in range(CALLS + 2):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record(stream)
        call()
        marks[1].record(stream)
        torch.cuda.synchronize()
        times.append(marks[0].elapsed_time(marks[1]))
    return float(np.median(times[2:]))


class PowerLaw:
    """The graph as CSR on the device: `crow`, `col`, `val`; an entry is 1 / sqrt(degree of row x degree of column)."""

    def __init__(self, nodes: int, edges: int) -> None:
        torch.manual_seed(0)
        device = torch.device("cuda")
        weight = (torch.arange(nodes, device=device).float() + 10) ** -0.6
        reach = torch.cumsum(weight, 0) / weight.sum()
        number = torch.randperm(nodes, device=device)

        def draw() -> torch.Tensor:
            return number[torch.searchsorted(reach, torch.rand(edges, device=device)).clamp(max=nodes - 1)]

        a, b = draw(), draw()
        own = torch.arange(nodes, device=device) * (nodes + 1)
        key = torch.unique(torch.cat([a * nodes + b, b * nodes + a, own]))
        del a, b
        row, col = key // nodes, key % nodes
        del key
        degree = torch.bincount(row, minlength=nodes)
        self.degree, self.col, self.n, self.nnz = degree, col.int(), nodes, col.numel()
        self.crow = torch.zeros(nodes + 1, dtype=torch.int32, device=device)
        self.crow[1:] = torch.cumsum(degree, 0)
        self.scale = degree.double().rsqrt().float()
        self.val = self.scale[row] * self.scale[col]

    def exact(self, x: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Return rows of the product in float64."""
        found = []
        for r in rows:
            part = slice(int(self.crow[r]), int(self.crow[r + 1]))
            weight = (self.degree[r].double() * self.degree[self.col[part].long()].double()).rsqrt()
            found.append(weight @ x[self.col[part].long()].double())
        return torch.stack(found)


def ours(tensor: torch.Tensor) -> DeviceArray:
    """Return our view of a tensor's memory."""
    kinds = {torch.float32: np.float32, torch.int32: np.int32}
    return DeviceArray(tensor.data_ptr(), tuple(tensor.shape), np.dtype(kinds[tensor.dtype]), tensor)


def adjacency(graph: PowerLaw, upload: Callable[[Any], DeviceArray], form: str) -> DeviceAdjacency:
    """Return the graph in a form of our kernels: "unweighted", "weighted" or "rows" (`spmm_csr`)."""
    indptr = graph.crow.cpu().numpy()
    scales = Scales(ours(graph.scale), ours(graph.scale)) if form == "unweighted" else None
    large = None if form == "rows" else Large(cut_rows(indptr).map(upload), scales)
    matrix = DeviceCsr(ours(graph.crow), ours(graph.col), ours(graph.val), graph.n, None, large)
    layout = GraphLayout(np.array([0, graph.n]))
    return DeviceAdjacency(matrix, matrix, 1, upload(layout.node_ptr.astype(np.int32)), layout)


def spmm_rows(graph: PowerLaw, backend: CudaBackend, emit: Callable[..., None], widths: list[int]) -> None:
    """Print a row per number of columns and form, and one of cuSPARSE."""
    stream = torch.cuda.ExternalStream(backend.device.stream.handle)
    forms = {form: adjacency(graph, backend.device.upload, form) for form in ("unweighted", "weighted", "rows")}
    matrix = torch.sparse_csr_tensor(graph.crow, graph.col, graph.val, (graph.n, graph.n))
    some = [int(graph.degree.argmax()), int(graph.degree.argmin()), *range(0, graph.n, max(graph.n // 30, 1))]
    for width in widths:
        x = torch.randn(graph.n, width, device="cuda")
        torch.cuda.synchronize()
        exact = graph.exact(x, some)
        single = (torch.sparse.mm(matrix, x)[some].double() - exact).abs().max().item()
        for form, found in forms.items():
            y = backend.device.download(backend.ops.spmm(found, ours(x)))
            again = backend.device.download(backend.ops.spmm(found, ours(x)))
            error = (torch.from_numpy(y[some]).double().cuda() - exact).abs().max().item()
            if not error < 1e-5 * exact.abs().max().item() or not np.array_equal(y, again):
                raise RuntimeError(f"{form}, {width} columns: error {error}, cuSPARSE's {single}")
            ms = median_ms(lambda found=found, x=x: backend.ops.spmm(found, ours(x)), stream)
            rate = {"gather_tb_per_s": graph.nnz * width * 4e-9 / ms, "error": error}
            emit(bench="large spmm", columns=width, kernel=form, ms=ms, **rate)
        ms = median_ms(lambda x=x: torch.sparse.mm(matrix, x), torch.cuda.current_stream())
        emit(bench="large spmm", columns=width, kernel="cuSPARSE", ms=ms, error=single)


class Held:
    """A backend whose only batch is on the device already."""

    def __init__(self, backend: CudaBackend, only: DeviceBatch) -> None:
        self._backend, self._only, self.n_graphs = backend, only, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def feed(self, source: Any, targets: Any) -> Held:
        """Return itself."""
        return self

    def begin_epoch(self, batches: Any) -> None:
        """Do nothing."""

    def batch(self, index: int) -> DeviceBatch:
        """Return the batch."""
        return self._only


def epoch_rows(graph: PowerLaw, device_of: CudaBackend, emit: Callable[..., None]) -> None:
    """Print a row per hidden width, precision and order of products, and PyTorch's rows."""
    stream = torch.cuda.ExternalStream(device_of.device.stream.handle)
    x = torch.randn(graph.n, FEATURES, device="cuda")
    y = torch.randint(CLASSES, (graph.n, 1), device="cuda", dtype=torch.int32)
    classes = tuple(f"c{number}" for number in range(CLASSES))
    header = Header(
        name="reddit",
        level="node",
        target="multiclass",
        task_names=("class",),
        class_names=classes,
        n_features=FEATURES,
        channel_names=("edge",),
    )
    found = adjacency(graph, device_of.device.upload, "unweighted")
    only = DeviceBatch(found.node_ptr, ours(x), found, ours(y), found.layout)
    for hidden in (16, 128):
        for precision in ("fp32", "tf32"):
            backend: Any = Held(CudaBackend("batched", device_of.device, CudaConfig(precision=precision)), only)
            for once in (True, False):
                config = KipfConfig(kind="kipf", widths=(hidden,), input_dropout=False)
                loss = Loss("multiclass", uniform_weights(header))
                task = RunnerTask(build(config, header, once), loss, backend, np.zeros((1, 1)), TrainConfig(), 0)
                runner = OpsRunner(backend, task)
                runner.begin_epoch(0, [np.zeros(1, np.int64)], 0.01)
                ms = median_ms(lambda runner=runner: runner.step(0), stream)
                with backend.meter.traced() as launched:
                    runner.step(0)
                parts: dict[str, float] = {}
                for one in launched:
                    parts[one.name] = parts.get(one.name, 0) + backend.meter.microseconds(one.start, one.stop)
                total, weight = runner.take_loss()
                emit(
                    bench="reddit epoch",
                    hidden=hidden,
                    precision=precision,
                    first_layer="A X found once" if once else "A (X W)",
                    ms=ms,
                    loss=total / weight,
                    us={name: round(us) for name, us in sorted(parts.items(), key=lambda item: -item[1])[:9]},
                )
    peer_rows(graph, x, y[:, 0].long(), emit)


def peer_rows(graph: PowerLaw, x: torch.Tensor, y: torch.Tensor, emit: Callable[..., None]) -> None:
    """Print PyTorch's epochs: A (X W) in every layer."""
    matrix = torch.sparse_csr_tensor(graph.crow, graph.col, graph.val, (graph.n, graph.n))

    class Product(torch.autograd.Function):
        """The adjacency is symmetric: its backward pass is the same product."""

        @staticmethod
        def forward(ctx: Any, h: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(matrix, h)

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(matrix, dy)

    for hidden in (16, 128):
        first = torch.nn.Linear(FEATURES, hidden, device="cuda")
        second = torch.nn.Linear(hidden, CLASSES, device="cuda")
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], 0.01)

        def step() -> None:
            optimizer.zero_grad()
            h = torch.nn.functional.dropout(torch.relu(Product.apply(first(x))), 0.5)
            torch.nn.functional.cross_entropy(Product.apply(second(h)), y).backward()
            optimizer.step()

        ms = median_ms(step, torch.cuda.current_stream())
        emit(bench="reddit epoch", hidden=hidden, precision="fp32", peer="PyTorch, cuSPARSE", ms=ms)


def main() -> None:
    """Run the named parts, or all."""
    parser = options(__doc__)
    parser.add_argument("parts", nargs="*", default=["spmm", "epoch"])
    parser.add_argument("--nodes", type=int, default=232_965)
    parser.add_argument("--edges", type=int, default=57_307_946)
    parser.add_argument("--columns", default="16,41,128,602")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    found = collect()
    gpu = found["gpus"][0]
    about = {"gpu": gpu["name"], "driver": gpu["driver"], "cuda": gpu.get("cuda"), "commit": found["commit"]}
    backend = open_backend("batched")
    if not isinstance(backend, CudaBackend):
        raise SystemExit("no CUDA backend")
    graph = PowerLaw(given.nodes, given.edges)
    size = {"nodes": graph.n, "entries": graph.nnz, "longest_row": int(graph.degree.max())}

    def emit(**row: Any) -> None:
        print_row({**row, **size, **about}, digits=4)

    if "spmm" in given.parts:
        spmm_rows(graph, backend, emit, [int(width) for width in given.columns.split(",")])
    if "epoch" in given.parts:
        epoch_rows(graph, backend, emit)


if __name__ == "__main__":
    main()
