"""Writing data sets and reading them back: whole, in slices, in parts."""

from __future__ import annotations

import itertools
import re
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.data.graphs import Split
from gcnbatch.data.store import Dataset, DatasetWriter, write_graphset
from gcnbatch.errors import InputError, MachineError
from tests.builders import assert_graphsets_equal, build_graphset, graphsets

FORMAT = Path(__file__).parents[2] / "datasets" / "FORMAT.md"


def write_parts(path, parts, header):
    with DatasetWriter(path) as writer:
        for part in parts:
            writer.append(part)
        writer.finish(header)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def large(folder):
    """A set of about 6 MiB in a file that is opened with 1 to 4 MiB."""
    graphs = build_graphset(3000, features="float32", n_features=200, weights=True, groups=True, seed=3)
    write_graphset(folder / "large.h5", graphs)
    return folder / "large.h5", graphs


# ------------------------------------------------------------ round trips


@settings(max_examples=30)
@given(graphs=graphsets())
def test_a_written_set_reads_back_equal(folder, graphs):
    write_graphset(folder / "whole.h5", graphs)
    with Dataset(folder / "whole.h5") as dataset:
        assert_graphsets_equal(dataset.load(), graphs)
        assert dataset.ids.tolist() == graphs.ids.tolist()


@settings(max_examples=20)
@given(graphs=graphsets(splits=False), data=st.data())
def test_parts_append_to_the_whole(folder, graphs, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, graphs.n_graphs), max_size=3)))
    bounds = [0, *cuts, graphs.n_graphs]
    parts = [graphs.take(range(start, stop)) for start, stop in itertools.pairwise(bounds)]
    write_parts(folder / "parts.h5", parts, graphs.header)
    with Dataset(folder / "parts.h5") as dataset:
        assert_graphsets_equal(dataset.load(), graphs)


def in_blocks(graphs, step):
    """Return the set without edges and features, blocks of `step` edges that may end inside a graph, blocks of rows."""
    bare = graphs.take([])
    empty = {name: getattr(bare, name) for name in ("src", "dst", "channel", "weight", "x")}
    outline = replace(graphs, edge_ptr=np.zeros_like(graphs.edge_ptr), **empty)
    blocks = []
    for at in range(0, graphs.n_edges, step):
        rows = slice(at, min(at + step, graphs.n_edges))
        first = int(np.searchsorted(graphs.edge_ptr, rows.start, side="right")) - 1
        last = int(np.searchsorted(graphs.edge_ptr, rows.stop))
        part = {name: getattr(graphs, name) for name in ("src", "dst", "channel", "weight")}
        part = {name: values if values is None else values[rows] for name, values in part.items()}
        part["edge_ptr"] = graphs.edge_ptr[first : last + 1].clip(rows.start, rows.stop) - rows.start
        part["node_ptr"] = graphs.node_ptr[first : last + 1] - graphs.node_ptr[first]
        blocks.append((first, replace(outline, **part)))
    return outline, blocks, np.array_split(graphs.x, 3)


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_blocks_of_edges_and_features_append_to_the_whole(tmp_path, level, weights, step):
    graphs = build_graphset(12, level=level, weights=weights)
    with DatasetWriter(tmp_path / "x.h5") as writer:
        writer.append(graphs.take(range(4)))
        rest = graphs.take(range(4, 12))
        written = writer.append_blocks(*in_blocks(rest, step))
        writer.finish(graphs.header)
    assert written.edge_ptr.tolist() == rest.edge_ptr.tolist()
    with Dataset(tmp_path / "x.h5") as dataset:
        assert_graphsets_equal(dataset.load(), graphs)


def test_errors_in_blocks_are_located(tmp_path):
    graphs = build_graphset(12)
    for change, message in (
        ({"dst": np.where(np.arange(graphs.n_edges) == 40, 9, graphs.dst)}, r"/edges/dst\[40\]: node 9 in graph"),
        (
            {"x": np.where(np.arange(graphs.n_nodes) == 20, np.nan, graphs.x.T).T.astype("f4")},
            r"/nodes/x\[20, 0\]: nan",
        ),
        ({"x": graphs.x[:-1]}, r"/graphs/node_ptr\[12\]: 30; expected 29"),
    ):
        with pytest.raises(InputError, match=message), DatasetWriter(tmp_path / "x.h5") as writer:
            writer.append_blocks(*in_blocks(replace(graphs, **change), 7))
        assert list(tmp_path.iterdir()) == []


@settings(max_examples=20)
@given(graphs=graphsets(splits=False), data=st.data())
def test_reading_some_graphs_is_taking_them_from_the_whole(folder, graphs, data):
    picked = data.draw(st.lists(st.integers(0, graphs.n_graphs - 1), max_size=6)) if graphs.n_graphs else []
    write_graphset(folder / "some.h5", graphs)
    for check in (True, False):  # from memory; from the file
        with Dataset(folder / "some.h5", check=check) as dataset:
            assert_graphsets_equal(dataset.read(picked), graphs.take(picked))


def test_a_set_larger_than_memory_is_read_in_slices(large):
    path, graphs = large
    with Dataset(path, memory_mb=4) as dataset:
        assert not dataset.fits_in_memory
        picked = np.random.default_rng(0).integers(0, graphs.n_graphs, 60)
        assert_graphsets_equal(dataset.read(picked), graphs.take(picked))
        starts = [start for start, _ in dataset.blocks()]
        assert len(starts) > 1
        assert all(part.x.nbytes <= 4 << 20 for _, part in dataset.blocks())
        with pytest.raises(
            MachineError, match=r"7 MiB to be read at once; expected at most 4 MiB\. Raise data\.memory_mb"
        ):
            dataset.load()


@pytest.mark.parametrize("features", ["float32", "csr"])
def test_an_error_beyond_the_first_block_is_located(folder, features):
    graphs = build_graphset(3000, features=features, n_features=200, seed=3)
    write_graphset(folder / "late.h5", graphs)
    name, at = ("nodes/x", (7000, 9)) if features == "float32" else ("nodes/x_csr/data", (500_000,))
    with h5py.File(folder / "late.h5", "r+") as file:
        file[name][at] = np.nan
    place = re.escape(f"/{name}[{', '.join(map(str, at))}]: nan; expected finite numbers")
    with pytest.raises(InputError, match=place):
        Dataset(folder / "late.h5", memory_mb=4)


def test_one_graph_larger_than_memory_is_refused(folder):
    write_graphset(folder / "one.h5", build_graphset(1, max_nodes=3000, n_features=200))
    with pytest.raises(MachineError, match="3 MiB to be read at once; expected at most 1 MiB"):
        Dataset(folder / "one.h5", memory_mb=1)


@pytest.mark.parametrize(
    ("name", "at", "value"), [("nodes/x", (2500, 9), np.nan), ("edges/src", (5500,), 3000), ("edges/dst", (0,), -1)]
)
def test_one_graph_is_checked_in_pieces(folder, name, at, value):
    write_graphset(folder / "one.h5", build_graphset(1, max_nodes=3000, n_features=200))
    with Dataset(folder / "one.h5", memory_mb=1, check=False) as dataset:
        dataset.check(in_pieces=True)
    with h5py.File(folder / "one.h5", "r+") as file:
        file[name][at] = value
    place = re.escape(f"/{name}[{', '.join(map(str, at))}]: ")
    with Dataset(folder / "one.h5", memory_mb=1, check=False) as dataset, pytest.raises(InputError, match=place):
        dataset.check(in_pieces=True)


def test_several_threads_can_read(large):
    path, graphs = large
    wrong: list[int] = []
    with Dataset(path, memory_mb=4, check=False) as dataset:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(5):
                picked = rng.integers(0, graphs.n_graphs, 20)
                if not np.array_equal(dataset.read(picked).x, graphs.take(picked).x):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_ids_are_any_text(folder):
    graphs = build_graphset(3)
    ids = np.array(["naïve", "", "分子, 3"])
    write_graphset(folder / "ids.h5", replace(graphs, ids=ids))
    with Dataset(folder / "ids.h5") as dataset:
        assert dataset.ids.tolist() == ids.tolist()


def test_sparse_features_are_stored_sorted_and_summed(folder):
    graphs = build_graphset(1, features="csr", n_features=3, max_nodes=1, edges_per_node=0)
    messy = sp.csr_array((np.ones(3, np.float32), np.array([2, 0, 2], np.int32), np.array([0, 3])), shape=(1, 3))
    write_graphset(folder / "messy.h5", replace(graphs, x=messy))
    with Dataset(folder / "messy.h5") as dataset:
        x = dataset.load().x
    assert x.indices.tolist() == [0, 2]
    assert x.data.tolist() == [1.0, 2.0]
    assert messy.nnz == 3


def test_a_tiny_first_part_does_not_shrink_the_chunks(folder):
    graphs = build_graphset(200, splits=False)
    write_parts(folder / "chunks.h5", [graphs.take([0]), graphs], graphs.header)
    with h5py.File(folder / "chunks.h5") as file:
        assert file["nodes/x"].id.get_num_chunks() == file["graphs/node_ptr"].id.get_num_chunks() == 1


def test_the_snippet_of_the_specification_writes_a_readable_file(tmp_path, monkeypatch):
    (snippet,) = re.findall(r"```python\n(.*?)```", FORMAT.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    with Dataset("two.h5") as dataset:
        graphs = dataset.load()
    assert graphs.ids.tolist() == ["ethanol", "methane"]
    assert graphs.take([1]).x.tolist() == [[1, 0]]
    assert np.isnan(graphs.y[1, 0])
    assert graphs.weight is None


# ------------------------------------------------------------ the writer refuses


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"weights": True}, "a part with edge weights present; expected absent, as in the first part"),
        ({"groups": True}, "a part with groups present; expected absent"),
        ({"features": "int8"}, "a part with features dense int8 of 4 columns; expected dense float32 of 4 columns"),
        ({"level": "node"}, "a part with rows per node; expected graph"),
        ({"target": "regression"}, "a part with target regression of 2 columns; expected binary of 2 columns"),
    ],
)
def test_a_part_of_another_layout_is_refused(tmp_path, other, message):
    with pytest.raises(InputError, match=message):
        write_parts(tmp_path / "x.h5", [build_graphset(), build_graphset(**other)], GOOD.header)
    assert list(tmp_path.iterdir()) == []


GOOD = build_graphset(weights=True, groups=True, splits=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"src": GOOD.src.astype(np.int64)}, r"/edges/src: type i8 with 1 dimensions; expected i4 with 1"),
        ({"dst": GOOD.dst[:-1]}, r"/edges/dst: shape \(29,\); expected shape \(30,\)"),
        ({"src": GOOD.src + 5}, r"/edges/src\[0\]: node 9 in graph 0; expected 0 to 4"),
        ({"groups": GOOD.groups - 5}, r"/graphs/group\[0\]: -3; expected 0 or more"),
        ({"ids": np.array(["a\0b"] * 6)}, r"/graphs/id\[0\]: an id with a NUL inside; expected text without NUL"),
        ({"ids": np.array(["\ud800"] * 6)}, "/graphs/id: an id with half a surrogate pair; expected Unicode text"),
        ({"ids": np.array(["a" * 1025] * 6)}, "/graphs/id: an id of 1025 bytes; expected at most 1024"),
        ({"splits": {"a/b": GOOD.splits["first"]}}, "/splits: a split named 'a/b'; expected letters, digits"),
        (
            {"header": GOOD.header.model_copy(update={"source": {"text": "x" * 2**20}})},
            r"/header: 1048\d+ bytes; expected at most 1048576\. Shorten the names",
        ),
        (
            {"header": GOOD.header.model_copy(update={"channel_names": ("one",)})},
            r"/edges/channel\[1\]: 1; expected 0 to 0",
        ),
    ],
)
def test_an_invalid_set_is_not_written(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        write_graphset(tmp_path / "x.h5", replace(GOOD, **change))
    assert list(tmp_path.iterdir()) == []


def test_the_final_header_must_know_every_channel(tmp_path):
    header = GOOD.header.model_copy(update={"channel_names": ("one",)})
    with pytest.raises(InputError, match="/edges/channel: 1; expected 0 to 0"):
        write_parts(tmp_path / "x.h5", [GOOD], header)


def test_a_writer_without_parts_or_without_finish_writes_nothing(tmp_path):
    with pytest.raises(InputError, match="no graphs to write"):
        write_parts(tmp_path / "x.h5", [], GOOD.header)
    with pytest.raises(RuntimeError, match="left without finish"), DatasetWriter(tmp_path / "x.h5") as writer:
        writer.append(GOOD)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_block_leaves_the_old_file(tmp_path):
    write_graphset(tmp_path / "x.h5", GOOD)
    old = (tmp_path / "x.h5").read_bytes()
    parts = (part if part is GOOD else 1 // 0 for part in (GOOD, None))
    with pytest.raises(ZeroDivisionError):
        write_parts(tmp_path / "x.h5", parts, GOOD.header)
    assert (tmp_path / "x.h5").read_bytes() == old
    assert len(list(tmp_path.iterdir())) == 1


WRITE_UNDER_LIMIT = """
import resource, signal, sys
from gcnbatch.data.store import write_graphset
from gcnbatch.errors import MachineError
from tests.builders import build_graphset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
graphs = build_graphset(3000, n_features=30, splits=True)
for limit in (0, 100, 5_000, 60_000, 150_000, 400_000, 700_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_graphset(sys.argv[1], graphs)
    except MachineError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE") or not hasattr(signal, "SIGXFSZ"), reason="needs file limits")
def test_a_full_disk_gives_one_message_and_leaves_no_file(tmp_path):
    """In a process of its own: HDF5 crashes the process when a write fails under it."""
    command = [sys.executable, "-c", WRITE_UNDER_LIMIT, str(tmp_path / "x.h5")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FORMAT.parents[1])
    assert done.returncode == 0, done.stderr
    message = f"{tmp_path / 'x.h5'}: could not be written (File too large). Free some disk space and run again."
    assert done.stdout.splitlines() == [message] * 7
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_splits_that_are_empty_or_partial_are_kept(folder):
    none = np.zeros(0, np.int64)
    splits = {"a": Split(np.array([3]), none, none), "b.2": Split(none, none, none)}
    graphs = replace(build_graphset(), splits=splits)
    write_graphset(folder / "splits.h5", graphs)
    with Dataset(folder / "splits.h5") as dataset:
        assert_graphsets_equal(dataset.load(), graphs)


# ------------------------------------------------------------ SMILES


def test_smiles_are_read_back_and_a_set_without_them_has_none(tmp_path):
    graphs = build_graphset(3)
    texts = ["CCO", "", "C[C@H](N)C(=O)O" * 100]
    with DatasetWriter(tmp_path / "x.h5") as writer:
        writer.append(graphs)
        writer.finish(graphs.header, smiles=texts)
    with Dataset(tmp_path / "x.h5") as dataset:
        assert dataset.smiles() == texts
    write_graphset(tmp_path / "y.h5", graphs)
    with Dataset(tmp_path / "y.h5") as dataset:
        assert dataset.smiles() is None


@pytest.mark.parametrize(
    ("level", "texts", "message"),
    [
        ("node", ["C"] * 3, "/graphs/smiles_ptr: present in a node-level set; expected molecules"),
        ("graph", ["C"] * 2, r"/graphs/smiles_ptr: shape \(3,\); expected shape \(4,\)"),
    ],
)
def test_smiles_that_do_not_fit_the_set_are_refused(tmp_path, level, texts, message):
    graphs = build_graphset(3, level=level)
    with DatasetWriter(tmp_path / "x.h5") as writer:
        writer.append(graphs)
        with pytest.raises(InputError, match=message):
            writer.finish(graphs.header, smiles=texts)
        writer.finish(graphs.header)


def test_damaged_smiles_are_refused_by_their_reader(tmp_path):
    graphs = build_graphset(2)
    with DatasetWriter(tmp_path / "x.h5") as writer:
        writer.append(graphs)
        writer.finish(graphs.header, smiles=["C", "\x1b[2J"])
    with Dataset(tmp_path / "x.h5") as dataset, pytest.raises(InputError, match=r"smiles of graph 1: '\\x1b\[2J'"):
        dataset.smiles()


def test_regression_targets_of_32_bits_are_read_as_float64(folder):
    graphs = build_graphset(6, target="regression", n_tasks=1)
    write_graphset(folder / "old.h5", graphs)
    with h5py.File(folder / "old.h5", "r+") as file:
        assert file["graphs/y"].dtype == np.float64
        values = file["graphs/y"][:].astype(np.float32)
        del file["graphs/y"]
        file.create_dataset("graphs/y", data=values, chunks=True, compression="gzip", shuffle=True, fletcher32=True)
    with Dataset(folder / "old.h5") as dataset:
        assert dataset.y.dtype == dataset.load().y.dtype == np.float64
        np.testing.assert_array_equal(dataset.y, values)
