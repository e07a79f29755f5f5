"""k-hop adjacency: powers of the adjacency as further channels, or propagated features.

Let A be the adjacency of a set, summed over its channels (row `dst`, column `src`). Entry (i, j) of A^h sums the walks
of h edges from j to i. Mode "channels" stores A^2 … A^K as further channels, so that one layer sees K hops. Mode
"propagated" replaces the features X by S^K X with the normalised adjacency S, so that a linear model on them is a K-hop
graph convolution (Wu et al., "Simplifying graph convolutional networks", ICML 2019). The weights of a normalised set
stay unchanged. With a limit on the entries of a row, those of largest absolute value are kept, among equals the smaller
columns, and the next power is computed from them. Graphs never mix: the adjacency of several graphs is block-diagonal.

The number of entries of a product is estimated before it is computed. Source: Cohen, "Size-estimation framework with
applications to transitive closure and reachability", 1997. Every column draws an exponential key. The smallest key
among the columns that a row reaches is exponential, with their number as rate. A further factor takes minima of these
keys over its entries. From k keys, (k - 1) / sum of the k minima is an unbiased estimate of the number, with a relative
standard deviation of 1 / sqrt(k - 2) for a row. For many rows it is smaller if they reach different columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.graphs import GraphSet, bounded_ranges
from gcnbatch.data.normalize import scaled_weights, symmetric_weights
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import Header
from gcnbatch.data.sparse import MAX_ENTRIES, ScipyCsr, row_pointer
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import DatasetWriter
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.options.datasets import HopOptions
from gcnbatch.text import counted

MAX_HOPS = 64
EXPLODES = 10.0  # times the edges of the set, from which the forecast is a warning
BYTES_PER_EDGE, NORMALIZED_BYTES_PER_EDGE = 50, 100  # of memory, measured
SLAB_ENTRIES = 20_000_000  # most entries of a power that are computed before --keep cuts its rows
ANNOUNCED = 256 << 20  # bytes of memory from which the need is reported before the work
MOST_KEYS, FEWEST_KEYS = 128, 6
KEY_WORK = 100_000_000  # entries read, times keys
Tell = Callable[[str], object]


class MatrixProducts(Protocol):
    """Products of sparse matrices; `gcnbatch.backends.products` implements them on the host and on a device."""

    def multiply(self, a: ScipyCsr, b: ScipyCsr) -> ScipyCsr:
        """Return A B, float32, columns rising, without entries of value 0."""

    def propagate(self, a: ScipyCsr, x: NDArray[np.float32], times: int) -> NDArray[np.float32]:
        """Return A^times X."""


def check(options: HopOptions) -> None:
    """Raise InputError for values that do not go together."""
    least = 2 if options.mode == "channels" else 1
    if not least <= options.hops <= MAX_HOPS:
        raise InputError("--hops", str(options.hops), f"{least} to {MAX_HOPS} with --mode {options.mode}")
    if options.mode == "propagated" and (options.keep or options.values != "walks"):
        raise InputError("--mode propagated", "given with --keep or --values", hint="They are for --mode channels.")


def write(
    source: Dataset,
    path: StrPath,
    options: HopOptions,
    products: MatrixProducts,
    tell: Tell = lambda line: None,
) -> None:
    """Write the k-hop version of `source` to `path`; first call `tell` with lines about the expected size.

    Raises
    ------
    InputError
        Options out of range, an expected size above `max_edges`, more than 256 channels, `path` is the source itself.
    """
    check(options)
    out = output_path(path, [source.path])
    header = new_header(source.header, options)
    _announce(source, options, tell)
    with DatasetWriter(out) as writer:
        for _, part in source.blocks():
            if options.mode == "channels":
                writer.append(with_channels(part, header, options, products))
            else:
                writer.append(with_features(part, header, options, products))
        if not source.n_graphs:
            writer.append(replace(source.read([]), header=header))
        writer.finish(header, source.splits, source.smiles())


def adjacency(graphs: GraphSet) -> ScipyCsr:
    """Return the block-diagonal adjacency of all graphs, float32 (N, N); channels and repeated edges add up."""
    first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
    values = np.ones(graphs.n_edges, np.float32) if graphs.weight is None else graphs.weight
    found = sp.csr_array((values, (graphs.dst + first, graphs.src + first)), shape=(graphs.n_nodes,) * 2)
    found.sum_duplicates()
    return found


def normalized(matrix: ScipyCsr) -> ScipyCsr:
    """Return D^-1/2 A D^-1/2, ``a_ij / sqrt(rowsum_i * colsum_j)``, or 0 where undefined; computed in float64."""
    values = matrix.data.astype(np.float64)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    row_sum = np.bincount(rows, weights=values, minlength=matrix.shape[0])
    column_sum = np.bincount(matrix.indices, weights=values, minlength=matrix.shape[1])
    data = scaled_weights(values, row_sum[rows], column_sum[matrix.indices])
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def new_header(header: Header, options: HopOptions) -> Header:
    """Return the header of the result; it has no featuriser, which could not rebuild the new channels or features."""
    source = {**header.source, "khop": _describe(options)}
    if options.mode == "propagated":
        return header.model_copy(update={"featurizer": None, "source": source})
    names = (*header.channel_names, *(f"{hop} hops" for hop in range(2, options.hops + 1)))
    if len(names) > 256:
        raise InputError("--hops", f"{len(names)} channels", "at most 256")
    for name in names[len(header.channel_names) :]:
        if name in header.channel_names:
            raise InputError("channels", f"there is one named '{name}' already", hint="Start from the set without it.")
    normal = header.normalized or bool(options.normalize)
    return header.model_copy(
        update={"channel_names": names, "normalized": normal, "featurizer": None, "source": source}
    )


def _describe(options: HopOptions) -> str:
    kept = f", at most {options.keep} a row" if options.keep else ""
    detail = f"{options.values}{kept}" if options.mode == "channels" else ""
    shown = ", ".join(filter(None, [options.mode, detail, "normalized" if options.normalize else ""]))
    return f"{counted(options.hops, 'hop')}, {shown}"


# ---- channels


def powers(matrix: ScipyCsr, options: HopOptions, products: MatrixProducts) -> Iterator[ScipyCsr]:
    """Yield A^2 … A^K in their stored form."""
    base = matrix.copy()
    if options.values == "binary":
        base.data[:] = 1.0
    power = base
    for _ in range(2, options.hops + 1):
        power = _next_power(power, base, options, products)
        yield power


def _next_power(power: ScipyCsr, base: ScipyCsr, options: HopOptions, products: MatrixProducts) -> ScipyCsr:
    """Return ``power @ base`` in its stored form; with `keep`, compute it in slabs to bound the memory."""
    parts = []
    for rows in _slabs(power, base) if options.keep else [power]:
        part = products.multiply(rows, base)
        if options.values == "binary":
            part.data[:] = 1.0
        parts.append(keep_largest(part, options.keep) if options.keep else part)
    return parts[0] if len(parts) == 1 else sp.csr_array(sp.vstack(parts, format="csr"))


def _slabs(power: ScipyCsr, base: ScipyCsr) -> Iterator[ScipyCsr]:
    """Yield consecutive rows whose product with `base` has at most `SLAB_ENTRIES` entries, or one row."""
    products = row_pointer(np.diff(base.indptr)[power.indices])
    of_row = np.minimum(np.diff(products[power.indptr]), base.shape[1])
    for start, stop in bounded_ranges(row_pointer(of_row), SLAB_ENTRIES):
        yield power[start:stop]


def keep_largest(matrix: ScipyCsr, count: int) -> ScipyCsr:
    """Return at most `count` entries of each row: largest absolute values, the smaller column first among equals.

    The columns of a row ascend. Values are float32; without the sign bit, their bits sort like their values.
    """
    lengths = np.diff(matrix.indptr)
    if lengths.max(initial=0) <= count:
        return matrix
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.uint64), lengths)
    key = rows << np.uint64(32) | ~np.abs(matrix.data).view(np.uint32)
    order = np.argsort(key, kind="stable")
    rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths)  # the sort keeps rows together
    kept = np.sort(order[rank < count])
    indptr = row_pointer(np.minimum(lengths, count)).astype(matrix.indptr.dtype)
    return sp.csr_array((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape)


def with_channels(part: GraphSet, header: Header, options: HopOptions, products: MatrixProducts) -> GraphSet:
    """Return a part with its powers as further channels; the original edges of a graph come first."""
    own = part.header.n_channels
    weights = np.ones(part.n_edges, np.float32) if part.weight is None else part.weight
    edges: list[tuple[NDArray[Any], ...]] = [(part.src, part.dst, part.channel, weights)]
    graphs = [np.repeat(np.arange(part.n_graphs, dtype=np.int32), np.diff(part.edge_ptr))]
    graph_of_node = np.repeat(np.arange(part.n_graphs, dtype=np.int32), np.diff(part.node_ptr))
    inside = (np.arange(part.n_nodes) - part.node_ptr[graph_of_node]).astype(np.int32)  # a node's number in its graph
    for number, power in enumerate(powers(adjacency(part), options, products)):
        lengths = np.diff(power.indptr)
        channel = np.full(power.nnz, own + number, np.uint8)
        edges.append((inside[power.indices], np.repeat(inside, lengths), channel, power.data))
        graphs.append(np.repeat(graph_of_node, lengths))
    columns = [np.concatenate(column) for column in zip(*edges, strict=True)]
    graph = np.concatenate(graphs)
    if part.n_graphs > 1:
        order = np.argsort(graph, kind="stable")
        columns = [column[order] for column in columns]
    src, dst, channel, weight = columns
    counts = np.bincount(graph, minlength=part.n_graphs)
    stored = part.weight is not None or options.values == "walks" or header.normalized
    result = replace(
        part,
        header=header,
        edge_ptr=row_pointer(counts),
        src=src,
        dst=dst,
        channel=channel,
        weight=weight if stored else None,
    )
    if not header.normalized:
        return result
    as_stored = (result.channel < own) & part.header.normalized
    return replace(result, weight=np.where(as_stored, weight, symmetric_weights(result)))


# ---- propagated


def with_features(part: GraphSet, header: Header, options: HopOptions, products: MatrixProducts) -> GraphSet:
    """Return a part with propagated features: dense ones become float32, sparse ones stay sparse."""
    step = _step(part, options)
    x: Any = part.x
    if sp.issparse(x):
        for _ in range(options.hops):
            x = products.multiply(step, x)
    else:
        x = products.propagate(step, np.ascontiguousarray(x, dtype=np.float32), options.hops)
    return replace(part, header=header, x=x)


def _step(part: GraphSet, options: HopOptions) -> ScipyCsr:
    matrix = adjacency(part)
    return normalized(matrix) if options.normalize and not part.header.normalized else matrix


# ---- forecast


def _announce(source: Dataset, options: HopOptions, tell: Tell) -> None:
    """Report the expected size of the result; refuse one above the limit."""
    if options.mode == "channels":
        what, hops = "edges", range(1, options.hops)
    elif sp.issparse(source.read([]).x):
        what, hops = "entries of the features", range(options.hops)
    else:
        return  # as many features as before
    before, largest, totals = 0, 0.0, np.zeros(options.hops)
    for _, part in source.blocks():
        so_far = totals.sum()
        matrix = adjacency(part)
        base: Any = matrix if what == "edges" else part.x
        before += part.n_edges if what == "edges" else base.nnz
        reach = Reach(base, matrix.nnz * options.hops)
        for hop in hops:
            reach.extend(matrix)
            totals[hop] += reach.entries(options.keep)
        largest = max(largest, totals.sum() - so_far + part.n_edges)
    for hop in hops:
        tell(f"{counted(hop + 1, 'hop')}: about {_round(totals[hop])} {what}")
    expected = before + totals.sum() if what == "edges" else totals[-1]
    ratio = expected / max(before, 1)
    sign = "warning: " if ratio > EXPLODES else ""
    tell(f"{sign}{before:,} {what} become about {_round(expected)}, {ratio:.3g} times as many")
    normal = options.normalize or source.header.normalized
    memory = largest * (NORMALIZED_BYTES_PER_EDGE if normal else BYTES_PER_EDGE)
    if what == "edges" and memory > ANNOUNCED:
        tell(f"this takes about {_round(memory / 2**20)} MiB of memory")
    if expected > min(options.max_edges, MAX_ENTRIES):
        raise InputError(
            "--hops",
            f"about {_round(expected)} {what} expected of {counted(options.hops, 'hop')}",
            f"at most {min(options.max_edges, MAX_ENTRIES):,}",
            "Lower --hops, keep fewer with --keep N, or raise --max-edges.",
        )


def _round(value: float) -> str:
    """Return a number rounded to three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


class Reach:
    """Columns that the rows of a product B, A B, A A B, … reach.

    Parameters
    ----------
    matrix : sparse (N, M)
        B.
    work : int
        Entries of all further factors: the more, the fewer keys are drawn.
    """

    def __init__(self, matrix: Any, work: int) -> None:
        count = int(np.clip(KEY_WORK // max(work, 1), FEWEST_KEYS, MOST_KEYS))
        rng = philox.generator(0, "forecast.keys")
        keys = rng.standard_exponential((count, matrix.shape[1]), dtype=np.float32)
        self._smallest = np.stack([_row_minimum(matrix, key) for key in keys])

    def extend(self, matrix: Any) -> None:
        """Multiply by A from the left."""
        self._smallest = np.stack([_row_minimum(matrix, key) for key in self._smallest])

    def entries(self, most: int = 0) -> float:
        """Return the expected number of entries of the product; with `most`, at most that many count per row."""
        of_row = (len(self._smallest) - 1) / self._smallest.sum(axis=0, dtype=np.float64)  # nothing reached: 1 / inf
        return float(np.minimum(of_row, most).sum() if most else of_row.sum())


def _row_minimum(matrix: Any, key: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the smallest key among each row's columns, infinity for an empty row."""
    found = np.full(matrix.shape[0], np.inf, np.float32)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if len(filled):
        found[filled] = np.minimum.reduceat(key[matrix.indices], matrix.indptr[filled])
    return found
