"""Time SpMM and training epochs on one large graph on a GPU: ours, cuSPARSE, and PyTorch with cuSPARSE.

    python benchmarks/large_graph.py [spmm] [epoch] [--shape reddit|products|papers] [--scale S] [--labelled SHARE]

The graph is random, symmetric and normalised, with a power law of degrees:

    reddit     232,965 nodes, about 112.7 M stored entries, 602 features, 41 classes; a GCN of 2 layers
    products   2,449,029 nodes, about 123.7 M stored entries, 100 features, 47 classes; a GCN of 3 layers
    papers     111 M nodes, 3.3 G stored entries, 128 features, 172 classes; a GCN of 3 layers; one H200 takes a quarter

PyTorch makes it on the device, and our kernels read its arrays in place. Every SpMM is checked against float64 sums of
some rows, the longest one included. A figure is the median of 9 calls between device events. cuSPARSE runs twice:
through torch.sparse.mm, and through its own interface, whose descriptors and workspace are reused, with the fastest of
its algorithms with and without cusparseSpMM_preprocess. `epoch` is a training step of Kipf's GCN (dropout on hidden
layers) with launches and update; all nodes have labels, or the given share of them. The peer's step is the same model
with autograd, fused Adam and either cuSPARSE; it computes all rows. "copy" is a device-to-device copy of the dense
operand, which bounds what reads it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from shared import emit as print_row
from shared import options

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceBatch, DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.batches.one_graph import labelled_batch
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.large import mark
from gcnbatch.backends.cuda.spmm.pieces import Large, Scales, cut_rows
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import CudaConfig, KipfConfig, TrainConfig
from gcnbatch.data.labelled import labelled_rows
from gcnbatch.data.schema import Header
from gcnbatch.data.sparse import Csr
from gcnbatch.environment import collect
from gcnbatch.lab.bench.vendor import SparseProduct, SpmmCall, Vendor
from gcnbatch.model.gcn import Loss, build, uniform_weights
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.runners.task import RunnerTask

CALLS = 9
EDGE_BLOCK = 1 << 24  # edges drawn at a time
NODE_BLOCK = 1 << 20  # nodes whose features are drawn at a time
FLOAT32_NODES = 1 << 23  # from so many on, float32 does not draw every node
ONCE, EACH = "A X found once", "A (X W)"
# Our first layers by name: whether the model may propagate the features first, and whether they have dropout.
FIRST_LAYERS = {ONCE: (True, False), EACH: (False, False), "dropout on X, the cheaper order": (True, True)}


class Shape(NamedTuple):
    """Nodes and drawn edges of a graph, features, classes, layers of the model, and widths of products to time."""

    name: str
    nodes: int
    edges: int
    features: int
    classes: int
    layers: int
    columns: str


SHAPES = {
    "reddit": Shape("reddit", 232_965, 57_307_946, 602, 41, 2, "16,41,128,602"),
    "products": Shape("products", 2_449_029, 61_859_140, 100, 47, 3, "16,47,100,128"),
    "papers": Shape("papers", 111_059_956, 1_615_685_872, 128, 172, 3, "128"),
}


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


class Ends:
    """The ends of all drawn edges: random nodes by a power law, in blocks, the same on every GPU of a kind."""

    def __init__(self, nodes: int, edges: int) -> None:
        self.nodes, self._edges = nodes, edges
        sums = np.cumsum((np.arange(nodes) + 10.0) ** -0.6)  # on the host, so that all GPUs draw one graph
        self._kind = torch.float32 if nodes < FLOAT32_NODES else torch.float64
        self._reach = torch.tensor(sums / sums[-1], dtype=self._kind, device="cuda")
        torch.manual_seed(0)
        self._number = torch.randperm(nodes, device="cuda")

    def blocks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield both ends of each edge, int64, in blocks with seeds of their own."""
        for number, first in enumerate(range(0, self._edges, EDGE_BLOCK)):
            torch.manual_seed(1 + number)
            count = min(EDGE_BLOCK, self._edges - first)
            yield self._draw(count), self._draw(count)

    def _draw(self, count: int) -> torch.Tensor:
        points = torch.rand(count, dtype=self._kind, device="cuda")
        return self._number[torch.searchsorted(self._reach, points).clamp(max=self.nodes - 1)]

    def costs(self) -> NDArray[np.int64]:
        """Return the entries of each row (N,), with repeated ones."""
        found = torch.ones(self.nodes, dtype=torch.int64, device="cuda")
        for block in self.blocks():
            for ends in block:
                found += torch.bincount(ends, minlength=self.nodes)
        return found.cpu().numpy()


class PowerLaw:
    """The graph as CSR on the device: `crow`, `col`, `val`; an entry is 1 / sqrt(degree of row x degree of column).

    Or some of its rows, `rows` = (first, stop). Then `gather` returns the degrees of all nodes for those of the rows.
    """

    def __init__(
        self, ends: Ends, rows: tuple[int, int] | None = None, gather: Callable[[Any], Any] = lambda degree: degree
    ) -> None:
        nodes = ends.nodes
        first, stop = rows or (0, nodes)
        own = torch.arange(first, stop, device="cuda")
        keys = [(own - first) * nodes + own]
        for block in ends.blocks():
            for row, column in (block, block[::-1]):
                held = (row >= first) & (row < stop)
                keys.append((row[held] - first) * nodes + column[held])
        key = torch.cat(keys)
        del keys
        key = torch.unique(key)
        row, self.col = key // nodes, (key % nodes).int()
        del key
        self.n, self.nnz = nodes, self.col.numel()
        degree = torch.bincount(row, minlength=stop - first)
        self.crow = torch.zeros(stop - first + 1, dtype=torch.int32, device="cuda")
        self.crow[1:] = torch.cumsum(degree, 0)
        self.degree = gather(degree)
        self.scale = self.degree.double().rsqrt().float()
        self.val = self.scale[first:stop][row] * self.scale[self.col.long()]

    def exact(self, x: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Return rows of the product in float64."""
        found = []
        for r in rows:
            part = slice(int(self.crow[r]), int(self.crow[r + 1]))
            weight = (self.degree[r].double() * self.degree[self.col[part].long()].double()).rsqrt()
            found.append(weight @ x[self.col[part].long()].double())
        return torch.stack(found)


def ends_of(shape: Shape, scale: float) -> Ends:
    """Return the ends of a graph of this shape."""
    return Ends(int(scale * shape.nodes), int(scale * shape.edges))


def draw(
    nodes: int, shape: Shape, labelled: float, rows: tuple[int, int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (n, F) of all nodes, or of these rows, and classes (N, 1) of all, -1 without a label."""
    first, stop = rows or (0, nodes)
    x = torch.empty(stop - first, shape.features, device="cuda")
    for number in range(first // NODE_BLOCK, -(-stop // NODE_BLOCK)):
        torch.manual_seed(number)
        begin = number * NODE_BLOCK
        block = torch.randn(min(NODE_BLOCK, nodes - begin), shape.features, device="cuda")
        start, end = max(first, begin), min(stop, begin + len(block))
        x[start - first : end - first] = block[start - begin : end - begin]
    torch.manual_seed(0)
    y = torch.randint(shape.classes, (nodes, 1), device="cuda", dtype=torch.int32)
    y[torch.rand(nodes, device="cuda") > labelled] = -1
    return x, y


def ours(tensor: torch.Tensor) -> DeviceArray:
    """Return our view of a tensor's memory."""
    kinds = {torch.float32: np.float32, torch.int32: np.int32}
    return DeviceArray(tensor.data_ptr(), tuple(tensor.shape), np.dtype(kinds[tensor.dtype]), tensor)


def adjacency(graph: PowerLaw, device: Device, form: str) -> DeviceAdjacency:
    """Return the graph in a form of our kernels: "marked", as in training, "unweighted", "weighted" or "rows"."""
    indptr, upload = graph.crow.cpu().numpy(), device.upload
    scales = Scales(ours(graph.scale), ours(graph.scale)) if form in ("marked", "unweighted") else None
    large = None if form == "rows" else Large(cut_rows(indptr).map(upload), scales)
    matrix = DeviceCsr(ours(graph.crow), ours(graph.col), ours(graph.val), graph.n, None, large)
    if form == "marked":
        matrix = mark(device, replace(matrix, indices=upload(graph.col.cpu().numpy())), graph.degree.cpu().numpy())
    layout = GraphLayout(np.array([0, graph.n]))
    return DeviceAdjacency(matrix, matrix, 1, upload(layout.node_ptr.astype(np.int32)), layout)


class Cusparse:
    """cuSPARSE's fastest algorithm on a graph, by the number of columns; descriptors and workspaces are reused."""

    def __init__(self, graph: PowerLaw, vendor: Vendor, stream: Any) -> None:
        self._graph, self._vendor, self._stream = graph, vendor, stream
        self._held, self._calls = ExitStack(), dict[int, tuple[str, SpmmCall]]()

    def fastest(self, x: torch.Tensor) -> tuple[str, SpmmCall]:
        """Return the algorithm and call for operands of this width."""
        graph, width = self._graph, x.shape[1]
        if width not in self._calls:
            where = [part.data_ptr() for part in (graph.crow, graph.col, graph.val, x, torch.empty_like(x))]
            product = SparseProduct(*where, graph.n, graph.n, width, graph.nnz)
            calls = self._held.enter_context(self._vendor.spmm([product]))
            self._calls[width] = min(calls.items(), key=lambda item: median_ms(item[1], self._stream))
        return self._calls[width]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return A x; x is contiguous."""
        y = torch.empty_like(x)
        _, call = self.fastest(x)
        call.move(0, x.data_ptr(), y.data_ptr())
        call()
        return y

    def close(self) -> None:
        """Release descriptors and workspaces."""
        self._held.close()


def spmm_rows(graph: PowerLaw, backend: CudaBackend, emit: Callable[..., None], widths: list[int]) -> None:
    """Print a row per number of columns and form, and those of a copy and of cuSPARSE."""
    stream = torch.cuda.ExternalStream(backend.device.stream.handle)
    forms = {form: adjacency(graph, backend.device, form) for form in ("marked", "unweighted", "weighted", "rows")}
    matrix = torch.sparse_csr_tensor(graph.crow, graph.col, graph.val, (graph.n, graph.n))
    some = [int(graph.degree.argmax()), int(graph.degree.argmin()), *range(0, graph.n, max(graph.n // 30, 1))]
    cusparse = Cusparse(graph, Vendor(backend.device), stream)
    for width in widths:
        x = torch.randn(graph.n, width, device="cuda")
        torch.cuda.synchronize()
        exact = graph.exact(x, some)
        single = (torch.sparse.mm(matrix, x)[some].double() - exact).abs().max().item()

        def check(name: str, y: torch.Tensor, again: torch.Tensor, exact: Any = exact, single: float = single) -> float:
            error = float((y[some].double() - exact).abs().max().item())
            if not error < 1e-5 * exact.abs().max().item() or not torch.equal(y, again):
                raise RuntimeError(f"{name}, {y.shape[1]} columns: error {error}, cuSPARSE's {single}")
            return error

        for form, found in forms.items():
            y, again = (
                torch.from_numpy(backend.device.download(backend.ops.spmm(found, ours(x)))).cuda() for _ in range(2)
            )
            error = check(form, y, again)
            ms = median_ms(lambda found=found, x=x: backend.ops.spmm(found, ours(x)), stream)
            rate = {"gather_tb_per_s": graph.nnz * width * 4e-9 / ms, "error": error}
            emit(bench="large spmm", columns=width, kernel=form, ms=ms, **rate)
        ms = median_ms(lambda x=x: torch.sparse.mm(matrix, x), torch.cuda.current_stream())
        emit(bench="large spmm", columns=width, kernel="cuSPARSE through PyTorch", ms=ms, error=single)
        y = cusparse(x)
        error = check("cuSPARSE", y, y)
        name, call = cusparse.fastest(x)
        emit(bench="large spmm", columns=width, kernel=f"cuSPARSE {name}", ms=median_ms(call, stream), error=error)
        ms = median_ms(lambda x=x, y=y: y.copy_(x), torch.cuda.current_stream())
        rate = {"tb_per_s": 2 * x.numel() * 4e-9 / ms}
        emit(bench="large spmm", columns=width, kernel="copy", ms=ms, **rate)
    cusparse.close()


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

    def close(self) -> None:
        """Do nothing."""


def header_of(shape: Shape) -> Header:
    """Return the header of a data set of this shape."""
    return Header(
        name=shape.name,
        level="node",
        target="multiclass",
        task_names=("class",),
        class_names=tuple(f"c{number}" for number in range(shape.classes)),
        n_features=shape.features,
        channel_names=("edge",),
    )


def batch_of(graph: PowerLaw, device: Device, x: torch.Tensor, y: torch.Tensor) -> DeviceBatch:
    """Return the graph as a batch, with its labelled rows where they are few."""
    found = adjacency(graph, device, "marked")
    whole = DeviceBatch(found.node_ptr, ours(x), found, ours(y), found.layout)
    targets = y.cpu().numpy()
    rows = labelled_rows(targets)
    if rows is None:
        return whole
    host = Csr(*(part.cpu().numpy() for part in (graph.crow, graph.col, graph.val)), graph.n)
    scale = graph.scale.cpu().numpy()
    return replace(whole, labelled=labelled_batch(device, whole, host, (scale, scale), rows, targets[rows]))


def epoch_rows(
    graph: PowerLaw,
    shape: Shape,
    device_of: CudaBackend,
    hiddens: list[int],
    labelled: float,
    emit: Callable[..., None],
) -> None:
    """Print a row per hidden width, precision and order of products, and the peers' rows."""
    stream = torch.cuda.ExternalStream(device_of.device.stream.handle)
    x, y = draw(graph.n, shape, labelled)
    header = header_of(shape)
    only = batch_of(graph, device_of.device, x, y)
    bench = f"{shape.name} epoch"
    for hidden in hiddens:
        for precision in ("fp32", "tf32"):
            backend: Any = Held(CudaBackend("batched", device_of.device, CudaConfig(precision=precision)), only)
            for first, (one_dense_graph, dropped) in FIRST_LAYERS.items():
                config = KipfConfig(kind="kipf", widths=(hidden,) * (shape.layers - 1), input_dropout=dropped)
                loss = Loss("multiclass", uniform_weights(header))
                model = build(config, header, one_dense_graph)
                task = RunnerTask(model, loss, backend, np.zeros((1, 1)), TrainConfig(), 0)
                runner = OpsRunner(backend, task)
                runner.begin_epoch([MemberEpoch(0, [np.zeros(1, np.int64)], 0.01)])
                ms = median_ms(lambda runner=runner: runner.step(0), stream)
                with backend.meter.traced() as launched:
                    runner.step(0)
                parts: dict[str, float] = {}
                for one in launched:
                    parts[one.name] = parts.get(one.name, 0) + backend.meter.microseconds(one.start, one.stop)
                total, weight = runner.take_losses()[0]
                emit(
                    bench=bench,
                    hidden=hidden,
                    precision=precision,
                    first_layer=first,
                    ms=ms,
                    loss=total / weight,
                    us={name: round(us) for name, us in sorted(parts.items(), key=lambda item: -item[1])[:12]},
                )
                runner.close()
    cusparse = Cusparse(graph, Vendor(device_of.device), stream)
    matrix = torch.sparse_csr_tensor(graph.crow, graph.col, graph.val, (graph.n, graph.n))
    products = {
        "PyTorch, cuSPARSE": lambda h: torch.sparse.mm(matrix, h),
        "PyTorch, cuSPARSE's fastest algorithm, reused": lambda h: cusparse(h.contiguous()),
    }
    with torch.cuda.stream(stream):
        for name, multiply in products.items():
            for hidden in hiddens:
                for once in (True, False):
                    ms = peer_ms(multiply, x, y[:, 0].long(), shape, hidden, once)
                    about = {"hidden": hidden, "precision": "fp32", "first_layer": ONCE if once else EACH}
                    emit(bench=bench, **about, peer=name, ms=ms)
    cusparse.close()


def peer_ms(
    multiply: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    shape: Shape,
    hidden: int,
    once: bool,
) -> float:
    """Return the milliseconds of PyTorch's epoch with this product by the adjacency."""

    class Product(torch.autograd.Function):
        """The adjacency is symmetric: its backward pass is the same product."""

        @staticmethod
        def forward(ctx: Any, h: torch.Tensor) -> torch.Tensor:
            return multiply(h)

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            return multiply(dy)

    sizes = [shape.features, *[hidden] * (shape.layers - 1), shape.classes]
    weights = [
        torch.nn.Parameter(torch.randn(rows, columns, device="cuda") * (2 / (rows + columns)) ** 0.5)
        for rows, columns in pairwise(sizes)
    ]
    optimizer = torch.optim.Adam(weights, lr=0.01, fused=True)
    if once:
        x = torch.cat([multiply(part.contiguous()) for part in x.split(128, 1)], 1)

    def step() -> None:
        optimizer.zero_grad()
        h = x
        for number, weight in enumerate(weights):
            z = h @ weight
            h = z if once and number == 0 else Product.apply(z)
            if number < shape.layers - 1:
                h = torch.nn.functional.dropout(torch.relu(h), 0.5)
        torch.nn.functional.cross_entropy(h, y, ignore_index=-1).backward()
        optimizer.step()

    return median_ms(step, torch.cuda.current_stream())


def main() -> None:
    """Run the named parts, or all."""
    parser = options(__doc__)
    parser.add_argument("parts", nargs="*", default=["spmm", "epoch"])
    parser.add_argument("--shape", choices=SHAPES, default="reddit")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of nodes and edges")
    parser.add_argument("--columns", default="", help="widths of the products; those of the shape")
    parser.add_argument("--hidden", default="16,128")
    parser.add_argument("--labelled", type=float, default=1.0, help="share of the nodes with a label")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    found = collect()
    gpu = found["gpus"][0]
    about = {"gpu": gpu["name"], "driver": gpu["driver"], "cuda": gpu.get("cuda"), "commit": found["commit"]}
    backend = open_backend("batched")
    if not isinstance(backend, CudaBackend):
        raise SystemExit("no CUDA backend")
    shape = SHAPES[given.shape]
    graph = PowerLaw(ends_of(shape, given.scale))
    size = {"nodes": graph.n, "entries": graph.nnz, "longest_row": int(graph.degree.max()), "labelled": given.labelled}

    def emit(**row: Any) -> None:
        print_row({**row, **size, **about}, digits=4)

    if "spmm" in given.parts:
        spmm_rows(graph, backend, emit, [int(width) for width in (given.columns or shape.columns).split(",")])
    if "epoch" in given.parts:
        epoch_rows(graph, shape, backend, [int(width) for width in given.hidden.split(",")], given.labelled, emit)


if __name__ == "__main__":
    main()
