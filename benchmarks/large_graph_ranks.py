"""Time training epochs on one large graph over ranks, a GPU each, or on one GPU without a launcher; print JSON rows.

    mpirun -n 2 python benchmarks/large_graph_ranks.py [--shape reddit|products|papers] [--scale S] [--labelled SHARE]
                                                        [--losses 20]

Graph, features and model are those of `large_graph.py`. Every rank draws the whole graph on its GPU from the same seed
and keeps its rows. A figure is the median of 9 steps between device events of rank 0, after two more. Then follow the
losses of `--losses` epochs from the first weights on, and the microseconds of each kernel and exchange of one step.
Kernels that run beside an exchange are timed with it. "peak GiB" counts our arrays; on one GPU, PyTorch holds
features and graph besides.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from large_graph import FIRST_LAYERS, SHAPES, Held, PowerLaw, Shape, batch_of, header_of, median_ms
from shared import emit as print_row
from shared import end, options

from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import KipfConfig, TrainConfig
from gcnbatch.data.graph_part import GraphPart, Halo, HaloAdjacency
from gcnbatch.data.labelled import labelled_part
from gcnbatch.data.partition import partition
from gcnbatch.data.sparse import Csr
from gcnbatch.environment import collect
from gcnbatch.model.gcn import Loss, build, uniform_weights
from gcnbatch.ranks import world
from gcnbatch.ranks.launch import launched
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.runners.task import RunnerTask


def halo_adjacency(graph: PowerLaw, bounds: np.ndarray, rank: int) -> HaloAdjacency:
    """Return a rank's rows of the graph, which is symmetric."""
    first, stop = (int(bound) for bound in bounds[rank : rank + 2])

    def columns(of: int) -> torch.Tensor:
        return graph.col[int(graph.crow[int(bounds[of])]) : int(graph.crow[int(bounds[of + 1])])]

    mine = columns(rank)
    foreign = torch.unique(mine[(mine < first) | (mine >= stop)])
    place = torch.zeros(graph.n, dtype=torch.int32, device="cuda")
    place[first:stop] = torch.arange(stop - first, dtype=torch.int32, device="cuda")
    place[foreign.long()] = torch.arange(stop - first, stop - first + len(foreign), dtype=torch.int32, device="cuda")
    indices, nodes = place[mine.long()].cpu().numpy(), foreign.cpu().numpy().astype(np.int64)
    sent = []
    for other in range(len(bounds) - 1):
        asked = columns(other)
        asked = torch.unique(asked[(asked >= first) & (asked < stop)]) if other != rank else asked[:0]
        sent.append((asked.long() - first).cpu().numpy())
    received = np.diff(np.searchsorted(nodes, bounds)).tolist()
    crow = graph.crow.cpu().numpy()
    scale = graph.scale.cpu().numpy()
    scales = scale[first:stop], np.concatenate([scale[first:stop], scale[nodes]])
    halo = Halo(nodes, sent, received, np.diff(crow[bounds]).tolist(), scales)
    width = stop - first + len(nodes)
    values = graph.val[int(crow[first]) : int(crow[stop])].cpu().numpy()
    matrix = Csr(crow[first : stop + 1] - crow[first], indices, values, width)
    return HaloAdjacency(matrix, matrix, 1, halo, halo)


class PartRunner(DistributedRunner):
    """A runner of a part that is in memory."""

    def __init__(self, backend: Any, task: RunnerTask, ranks: Any, part: GraphPart, feed: Any) -> None:
        self._of_graph, self._only = part, feed
        super().__init__(backend, task, ranks)

    def _open_feed(self, backend: Any, task: RunnerTask) -> Any:
        self._bounds = self._of_graph.bounds
        return self._only


class OneGpu:
    """All rows on one GPU."""

    def __init__(self, backend: Any, shape: Shape, scale: float, labelled: float) -> None:
        self._backend = backend
        graph = PowerLaw(int(scale * shape.nodes), int(scale * shape.edges))
        self.size = {"nodes": graph.n, "entries": graph.nnz}
        torch.cuda.empty_cache()
        x, y = draw(graph.n, shape, labelled)
        self._held = graph, x, y
        self._only = batch_of(graph, backend.device, x, y)

    def runner(self, model: Any, loss: Loss) -> OpsRunner:
        """Return a runner of the model."""
        held: Any = Held(self._backend, self._only)
        return OpsRunner(held, RunnerTask(model, loss, held, np.zeros((1, 1)), TrainConfig(), 0))


class OneRank:
    """A rank's rows on its GPU."""

    def __init__(self, backend: Any, shape: Shape, scale: float, labelled: float, ranks: Any) -> None:
        self._backend, self._host = backend, ranks.communicator()
        graph = PowerLaw(int(scale * shape.nodes), int(scale * shape.edges))
        self.size = {"nodes": graph.n, "entries": graph.nnz}
        check_equal(self._host, graph.col, graph.crow)
        bounds = partition(graph.degree.cpu().numpy() + 1, ranks.size)
        found = halo_adjacency(graph, bounds, ranks.rank)
        nodes = graph.n
        del graph
        torch.cuda.empty_cache()
        x, y = draw(nodes, shape, labelled)
        check_equal(self._host, x.view(torch.int32), y)
        first, stop = bounds[ranks.rank : ranks.rank + 2]
        part = GraphPart(bounds, found, x[first:stop].cpu().numpy())
        self._targets = y.cpu().numpy()
        self._part = replace(part, labelled=labelled_part(part, self._targets, self._host))
        self.size |= {"own nodes": int(stop - first), "halo": sum(found.of_forward.received)}
        del x, y
        torch.cuda.empty_cache()
        self._feed = backend.part_feed(self._part, self._targets, ranks.rank)

    def runner(self, model: Any, loss: Loss) -> DistributedRunner:
        """Return this rank's runner of the model."""
        source: Any = SimpleNamespace(n_graphs=1)
        task = RunnerTask(model, loss, source, self._targets, TrainConfig(), 0)
        return PartRunner(self._backend, task, self._host, self._part, self._feed)


def check_equal(host: Any, *arrays: torch.Tensor) -> None:
    """Refuse arrays that are not equal on all ranks, by sums of their numbers times their places."""
    found = []
    for array in arrays:
        flat = array.reshape(-1).long()
        found += [flat.numel(), int((flat * (torch.arange(flat.numel(), device="cuda") % 1021 + 1)).sum())]
    if (np.diff(host.all_gather(np.array(found)), axis=0) != 0).any():
        raise SystemExit("the ranks have drawn different graphs or features")


def draw(nodes: int, shape: Shape, labelled: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, F) and classes (N, 1) of all nodes, -1 without a label."""
    torch.manual_seed(1)
    x = torch.randn(nodes, shape.features, device="cuda")
    y = torch.randint(shape.classes, (nodes, 1), device="cuda", dtype=torch.int32)
    y[torch.rand(nodes, device="cuda") > labelled] = -1
    return x, y


def losses(runner: Any, epochs: int) -> list[float]:
    """Return the losses of so many epochs."""
    found = []
    for epoch in range(epochs):
        runner.begin_epoch(epoch, [np.zeros(1, np.int64)], 0.01)
        runner.step(0)
        total, weight = runner.take_loss()
        found.append(total / weight)
    return found


def kernels(runner: Any, meter: Any) -> dict[str, int]:
    """Return the microseconds of each kernel in a step."""
    parts: dict[str, float] = {}
    with meter.traced() as launches:
        runner.step(0)
    for one in launches:
        parts[one.name] = parts.get(one.name, 0) + meter.microseconds(one.start, one.stop)
    return {name: round(us) for name, us in sorted(parts.items(), key=lambda item: -item[1])[:16]}


def main() -> None:
    """Run the benchmark of the command line."""
    parser = options(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="reddit")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of nodes and edges")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--labelled", type=float, default=1.0, help="share of the nodes with a label")
    parser.add_argument("--losses", type=int, default=0, help="epochs whose losses are printed")
    given = parser.parse_args()
    here = launched()
    ranks = world.join(here, []) if here else None
    number = ranks.device(0) if ranks else 0
    torch.cuda.set_device(number)
    backend: Any = open_backend("batched", number)
    shape, start = SHAPES[given.shape], time.perf_counter()
    about_graph = backend, shape, given.scale, given.labelled
    graph = OneRank(*about_graph, ranks) if ranks else OneGpu(*about_graph)
    about = collect()
    common = {
        "bench": f"{shape.name} epoch over ranks",
        "ranks": ranks.size if ranks else 1,
        **graph.size,
        "labelled": given.labelled,
        "hidden": given.hidden,
        "gpu": about["gpus"][0]["name"],
        "commit": about["commit"],
        "seconds to build": time.perf_counter() - start,
    }
    stream = torch.cuda.ExternalStream(backend.device.stream.handle)
    header = header_of(shape)
    loss = Loss("multiclass", uniform_weights(header))
    for name, (once, dropped) in FIRST_LAYERS.items():
        if dropped:
            continue
        config = KipfConfig(kind="kipf", widths=(given.hidden,) * (shape.layers - 1), input_dropout=dropped)
        runner = graph.runner(build(config, header, once), loss)
        row: dict[str, Any] = {"first_layer": name, "losses": losses(runner, given.losses)}
        runner.begin_epoch(given.losses, [np.zeros(1, np.int64)], 0.01)
        row["ms"] = median_ms(lambda runner=runner: runner.step(0), stream)
        row["us"] = kernels(runner, backend.meter)
        row["peak GiB"] = backend.device.peak_bytes / 2**30
        if ranks is None or ranks.rank == 0:
            print_row({**common, **row}, digits=4)
        runner.close()
    end(ranks)


if __name__ == "__main__":
    main()
