"""Time training epochs on one large graph over ranks, a GPU each, or on one GPU without a launcher; print JSON rows.

    mpirun -n 2 python benchmarks/large_graph_ranks.py [--shape reddit|products|papers] [--scale S] [--labelled SHARE]
                                                        [--losses 20]

Graph, features and model are those of `large_graph.py`. Every rank draws all edges and features on its GPU, in blocks
from the same seeds, and keeps those of its rows. A figure is the median of 9 steps between device events of rank 0,
after two more. Then follow the losses of `--losses` epochs from the first weights on, and the microseconds of each
kernel and exchange of one step. Kernels that run beside an exchange are timed with it. "peak GiB" counts our arrays
without the buffers in which a rank receives rows; on one GPU, PyTorch holds features and graph besides.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from large_graph import FIRST_LAYERS, SHAPES, Held, PowerLaw, Shape, batch_of, draw, ends_of, header_of, median_ms
from shared import emit as print_row
from shared import end, options, run

from gcnbatch.backends.base import MemberEpoch
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


def halo_adjacency(graph: PowerLaw, bounds: np.ndarray, host: Any) -> HaloAdjacency:
    """Return a rank's rows of the graph, of which it has no others; the graph is symmetric."""
    first, stop = (int(bound) for bound in bounds[host.rank : host.rank + 2])
    n, columns = stop - first, graph.col.long()
    row = torch.repeat_interleave(torch.arange(n, device="cuda"), torch.diff(graph.crow))
    sent = []
    for other, (begin, behind) in enumerate(pairwise(bounds.tolist())):
        read = torch.zeros(n, dtype=torch.bool, device="cuda")
        if other != host.rank:
            read[row[(graph.col >= begin) & (graph.col < behind)]] = True
        sent.append(read.nonzero()[:, 0].cpu().numpy())
    del row
    is_read = torch.zeros(graph.n, dtype=torch.bool, device="cuda")
    is_read[columns] = True
    is_read[first:stop] = False
    foreign = is_read.nonzero()[:, 0]
    place = torch.empty(graph.n, dtype=torch.int32, device="cuda")
    place[first:stop] = torch.arange(n, dtype=torch.int32, device="cuda")
    place[foreign] = torch.arange(n, n + len(foreign), dtype=torch.int32, device="cuda")
    indices, nodes = place[columns].cpu().numpy(), foreign.cpu().numpy()
    received = np.diff(np.searchsorted(nodes, bounds)).tolist()
    entries = host.all_gather(np.array([graph.nnz]))[:, 0].tolist()
    scale = graph.scale.cpu().numpy()
    halo = Halo(nodes, sent, received, entries, (scale[first:stop], np.concatenate([scale[first:stop], scale[nodes]])))
    matrix = Csr(graph.crow.cpu().numpy(), indices, graph.val.cpu().numpy(), n + len(nodes))
    return HaloAdjacency(matrix, matrix, 1, halo, halo)


class PartRunner(DistributedRunner):
    """A runner of a part that is in memory."""

    def __init__(self, backend: Any, task: RunnerTask, ranks: Any, part: GraphPart, feed: Any) -> None:
        self._of_graph, self._only = part, feed
        super().__init__(backend, task, ranks)

    def _open_feed(self, backend: Any, task: RunnerTask) -> Any:
        self._bounds = self._of_graph.bounds
        return Held(backend, self._only.batch(0))  # the feed stays open for the next runner


class OneGpu:
    """All rows on one GPU."""

    def __init__(self, backend: Any, shape: Shape, scale: float, labelled: float) -> None:
        self._backend = backend
        graph = PowerLaw(ends_of(shape, scale))
        self.size = {"nodes": graph.n, "entries": graph.nnz}
        torch.cuda.empty_cache()
        x, y = draw(graph.n, shape, labelled)
        self._held = graph, x, y
        self._only = batch_of(graph, backend.device, x, y)

    def runner(self, model: Any, loss: Loss) -> OpsRunner:
        """Return a runner of the model."""
        held: Any = Held(self._backend, self._only)
        return OpsRunner(held, RunnerTask(model, loss, held, np.zeros((1, 1)), TrainConfig(), 0))

    def close(self) -> None:
        """Do nothing."""


class OneRank:
    """A rank's rows on its GPU."""

    def __init__(self, backend: Any, shape: Shape, scale: float, labelled: float, ranks: Any) -> None:
        self._backend, self._host = backend, ranks.communicator()
        ends = ends_of(shape, scale)
        costs = ends.costs()
        check_equal(self._host, costs)
        bounds, nodes = partition(costs, ranks.size), ends.nodes
        first, stop = own = int(bounds[ranks.rank]), int(bounds[ranks.rank + 1])

        def degrees_of_all(degree: torch.Tensor) -> torch.Tensor:
            found = np.zeros(nodes, np.int32)
            found[first:stop] = degree.cpu().numpy()
            self._host.all_reduce(found)
            return torch.from_numpy(found).cuda()

        graph = PowerLaw(ends, own, degrees_of_all)
        del ends
        torch.cuda.empty_cache()
        found = halo_adjacency(graph, bounds, self._host)
        self.size = {"nodes": nodes, "entries": sum(found.of_forward.entries)}
        del graph
        torch.cuda.empty_cache()
        x, y = draw(nodes, shape, labelled, own)
        check_equal(self._host, y.cpu().numpy())
        part = GraphPart(bounds, found, x.cpu().numpy())
        self._targets = y.cpu().numpy()
        self._part = replace(part, labelled=labelled_part(part, self._targets, self._host))
        self.size |= {"own nodes": stop - first, "halo": sum(found.of_forward.received)}
        del x, y
        torch.cuda.empty_cache()
        self._feed = backend.part_feed(self._part, self._targets, self._host)
        self.size |= {"receive GiB": self._feed.landing.nbytes / 2**30 if self._feed.landing else 0}

    def runner(self, model: Any, loss: Loss) -> DistributedRunner:
        """Return this rank's runner of the model."""
        source: Any = SimpleNamespace(n_graphs=1)
        task = RunnerTask(model, loss, source, self._targets, TrainConfig(), 0)
        return PartRunner(self._backend, task, self._host, self._part, self._feed)

    def close(self) -> None:
        """Free the memory that ranks share; all ranks call."""
        self._feed.close()


def check_equal(host: Any, array: np.ndarray) -> None:
    """Refuse whole numbers that are not equal on all ranks."""
    digest = hashlib.sha256(array).digest()
    if len({bytes(other) for other in host.all_gather(np.frombuffer(digest, np.uint8))}) > 1:
        raise SystemExit("the ranks have drawn different graphs or labels")


def losses(runner: Any, epochs: int) -> list[float]:
    """Return the losses of so many epochs."""
    found = []
    for epoch in range(epochs):
        runner.begin_epoch([MemberEpoch(epoch, [np.zeros(1, np.int64)], 0.01)])
        runner.step(0)
        total, weight = runner.take_losses()[0]
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
        runner.begin_epoch([MemberEpoch(given.losses, [np.zeros(1, np.int64)], 0.01)])
        row["ms"] = median_ms(partial(runner.step, 0), stream)
        row["us"] = kernels(runner, backend.meter)
        row["peak GiB"] = backend.device.peak_bytes / 2**30
        if ranks is None or ranks.rank == 0:
            print_row({**common, **row}, digits=4)
        runner.close()
        del runner  # before the next one takes memory
    graph.close()
    end(ranks)


if __name__ == "__main__":
    run(main)
