"""Planetoid folders: assembly, split, missing test nodes, hostile and damaged pickles."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.inert_pickle import read_array, read_csr, read_neighbours
from gcnbatch.data.importers.planetoid import import_planetoid
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError


def mini(folder: Path, protocol: int = 2) -> Path:
    """Six listed nodes (two of them in training), test nodes 8 and 6 (7 left out), nine nodes in the graph."""
    graph: defaultdict[int, list[int]] = defaultdict(list)
    graph.update({0: [1, 1, 0], 1: [0], 2: [6], 6: [2], 7: [], 8: [5, 4]})
    known = np.array([[1, 0, 1], [0, 2, 0], [0, 0, 0], [1, 1, 1], [0, 0, 4], [3, 0, 1]], dtype=np.float32)
    classes = np.eye(2, dtype=np.int32)
    parts: dict[str, Any] = {
        "y": classes[[0, 1]],
        "allx": sp.csr_matrix(known),
        "ally": classes[[0, 1, 0, 1, 0, 1]],
        "tx": sp.csr_matrix(np.array([[0, 0, 5], [7, 7, 0]], dtype=np.float32)),
        "ty": classes[[1, 0]],
        "graph": graph,
    }
    for part, value in parts.items():
        (folder / f"ind.mini.{part}").write_bytes(pickle.dumps(value, protocol=protocol))
    (folder / "ind.mini.test.index").write_text("8\n6\n")
    return folder


def converted(folder: Path, **options: bool) -> GraphSet:
    import_planetoid(folder, folder / "out.h5", name="mini", **options)
    with Dataset(folder / "out.h5") as dataset:
        return dataset.load()


@pytest.mark.parametrize("protocol", [2, 4])
def test_nodes_edges_and_split_are_assembled(tmp_path: Path, protocol: int) -> None:
    graphs = converted(mini(tmp_path, protocol), row_normalize=False)
    assert graphs.header.level == "node"
    assert graphs.header.class_names == ("0", "1")
    assert graphs.y[:, 0].tolist() == [0, 1, 0, 1, 0, 1, 0, -1, 1]
    rows = graphs.x.toarray()
    np.testing.assert_array_equal(rows[[0, 6, 7, 8]], [[1, 0, 1], [7, 7, 0], [0, 0, 0], [0, 0, 5]])
    between = {(int(s), int(d)) for s, d in zip(graphs.src, graphs.dst, strict=True) if s != d}
    one_way = {(0, 1), (2, 6), (8, 5), (8, 4)}
    assert between == one_way | {(d, s) for s, d in one_way}
    assert graphs.n_edges == 8 + 9
    parts = {name: rows.tolist() for name, rows in graphs.splits["planetoid"].parts().items()}
    assert parts == {"train": [0, 1], "valid": [2, 3, 4, 5], "test": [6, 8]}


def test_rows_are_normalised_and_self_loops_left_out_on_request(tmp_path: Path) -> None:
    graphs = converted(mini(tmp_path), self_loops=False)
    np.testing.assert_allclose(graphs.x.toarray().sum(axis=1), [1, 1, 0, 1, 1, 1, 1, 0, 1])
    assert graphs.n_edges == 8


def test_a_missing_file_names_the_sets_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file 'ind\.cora\.y'.*The folder holds: mini"):
        import_planetoid(mini(tmp_path), tmp_path / "out.h5", name="cora")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="The folder holds no Planetoid data set"):
        import_planetoid(tmp_path / "empty", tmp_path / "out.h5", name="cora")
    with pytest.raises(InputError, match="no such folder"):
        import_planetoid(tmp_path / "none", tmp_path / "out.h5", name="cora")


WRONG: dict[str, tuple[str, Any, str]] = {
    "test index text": ("test.index", b"6\nx\n", "expected a node number per line"),
    "test index twice": ("test.index", b"6\n6\n", "a node number twice"),
    "test index empty": ("test.index", b"", "empty"),
    "test index low": ("test.index", b"2\n6\n", "test nodes 2 to 6; expected numbers from 6 on"),
    "test index long": ("test.index", b"6\n7\n8\n", r"shape \(2, 3\); expected \(3, 3\)"),
    "citation outside": (
        "graph",
        pickle.dumps({0: [9]}, protocol=2),
        "a citation from node 0 to node 9; expected nodes 0 to 8",
    ),
    "graph of texts": ("graph", pickle.dumps({0: "abc"}, protocol=2), "not a dictionary of lists of node numbers"),
    "labels for others": (
        "ally",
        pickle.dumps(np.eye(2, dtype=np.int32), protocol=2),
        r"shape \(2, 2\); expected \(6, classes\)",
    ),
    "labels in a row": ("ty", pickle.dumps(np.arange(2), protocol=2), r"shape \(2,\); expected \(2, classes\)"),
    "too many in training": (
        "y",
        pickle.dumps(np.eye(7), protocol=2),
        r"shape \(7, 7\); expected \(at most 6, classes\)",
    ),
    "labels are numbers": ("ally", pickle.dumps([1, 2], protocol=2), "not an array of numbers"),
    "features are dense": ("allx", pickle.dumps(np.eye(2), protocol=2), "not a sparse matrix"),
    "labels are no classes": (
        "ally",
        pickle.dumps(np.full((6, 2), 0.5)),
        "other numbers than 0 and 1; expected a 1",
    ),
    "labels are not finite": ("ally", pickle.dumps(np.full((6, 2), 1e300)), "a number that is not finite in 32 bits"),
    "citations are not whole": ("graph", pickle.dumps({0: [0.5]}), "not a dictionary of lists of node numbers"),
    "sums overflow": ("tx", pickle.dumps(sp.csr_matrix(np.full((2, 3), 3e38))), "features whose sum is not finite"),
    "sums are tiny": ("tx", pickle.dumps(sp.csr_matrix(np.full((2, 3), 1e-45, "f4"))), "features whose sum is not fin"),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_contradict_each_other_are_named(tmp_path: Path, case: str) -> None:
    part, content, message = WRONG[case]
    mini(tmp_path)
    (tmp_path / f"ind.mini.{part}").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        converted(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


# ------------------------------------------------------------------------------------------------ pickles


class Payload:
    """An object whose pickle is a call of `function` with `args`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


FORBIDDEN = {
    "os.system": b"cos\nsystem\n(S'touch owned'\ntR.",
    "posix.system by protocol": pickle.dumps(Payload(os.system, "touch owned"), protocol=4),
    "subprocess": pickle.dumps(Payload(subprocess.call, ["touch", "owned"]), protocol=2),
    "eval": b'c__builtin__\neval\n(S\'open("owned", "w")\'\ntR.',
    "numpy module, other function": b"cnumpy.core.multiarray\nfromfile\n(S'/etc/passwd'\ntR.",
    "dotted name through numpy": b"\x80\x04\x8c\x15numpy.core.multiarray\x8c\x10_reconstruct.sys\x93.",
    "instance by INST": b"(S'touch owned'\nios\nsystem\n.",
    "in the state of an array": pickle.dumps(np.array([Payload(os.system, "touch owned")], dtype=object), protocol=2),
}
DAMAGED = {
    "persistent id": b"Pabc\n.",
    "extension registry": b"\x80\x02\x82\x01.",
    "state of a container": pickle.dumps([1], protocol=2)[:-1] + b"}b.",
    "state of an allowed name": b"cnumpy\nndarray\n}(S'args'\nNub.",
    "call of a number": b"K\x01)R.",
    "name that is no text": b"\x80\x04K\x01K\x02\x93.",
    "number of 5,000 digits": b"I" + b"9" * 5000 + b"\n.",
    "codec": b"c_codecs\nencode\n(X\x03\x00\x00\x00\xe2\x82\xactR.",
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_name_of_no_array_is_refused_without_being_executed(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mini(tmp_path)
    (tmp_path / "ind.mini.graph").write_bytes(FORBIDDEN[case])
    with pytest.raises(
        InputError, match=r"ind\.mini\.graph: refused: names \S+; expected a pickle of arrays only\. Do not trust"
    ) as caught:
        converted(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("case", DAMAGED)
def test_other_instructions_than_those_of_arrays_are_refused_in_one_line(tmp_path: Path, case: str) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(DAMAGED[case])
    with pytest.raises(InputError, match=r"a\.pkl: damaged pickle \(.*\)\. Copy the file again\.$") as caught:
        read_neighbours(path)
    assert len(str(caught.value)) < 300


def test_any_cut_of_a_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.pkl"
    whole = pickle.dumps(sp.csr_matrix(np.eye(3, dtype=np.float32)), protocol=2)
    for length in range(0, len(whole), 2):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"damaged pickle|refused"):
            read_csr(path)


def test_flipped_bytes_are_refused_or_read_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "flipped.pkl"
    whole = bytearray(pickle.dumps(sp.csr_matrix(np.eye(3, dtype=np.float32)), protocol=2))
    refused = 0
    for position in range(0, len(whole), 3):
        for flip in (1, 0x80):
            broken = whole.copy()
            broken[position] ^= flip
            path.write_bytes(broken)
            try:
                matrix = read_csr(path)
                assert matrix.dtype == np.float32
            except InputError:
                refused += 1
    assert refused > len(whole) / 6


def test_arrays_must_fill_their_shape_with_numbers(tmp_path: Path) -> None:
    path = tmp_path / "array.pkl"
    whole = pickle.dumps(np.arange(3, dtype=">i4"), protocol=2)
    path.write_bytes(whole)
    assert read_array(path).tolist() == [0, 1, 2]
    path.write_bytes(whole.replace(b"K\x03\x85", b"K\x04\x85"))
    with pytest.raises(InputError, match=r"not an array of numbers \(12 bytes for an array of shape \(4,\)\)"):
        read_array(path)
    path.write_bytes(pickle.dumps(np.array(["text"]), protocol=2))
    with pytest.raises(InputError, match="an array of 'U4', not numbers"):
        read_array(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("_shape", (3, 2**40), "1,099,511,627,776 columns"),
        ("indices", [0, 1, 3], "a column number is out of range"),
        ("indptr", [0, 2, 1, 3], "offsets do not fit"),
        ("data", [1.0, np.nan, 1.0], "a number that is not finite in 32 bits"),
    ],
)
def test_sparse_matrices_are_checked(tmp_path: Path, name: str, value: Any, message: str) -> None:
    path = tmp_path / "matrix.pkl"
    matrix = sp.csr_matrix(np.eye(3))
    setattr(matrix, name, value if name == "_shape" else np.array(value, dtype="f8" if name == "data" else "i4"))
    path.write_bytes(pickle.dumps(matrix, protocol=2))
    with pytest.raises(InputError, match=rf"not a sparse matrix \({message}"):
        read_csr(path)


@pytest.mark.real
def test_cora_as_published(tmp_path: Path) -> None:
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA does not point to the real data sets")
    import_planetoid(Path(folder) / "planetoid", tmp_path / "cora.h5", name="cora")
    with Dataset(tmp_path / "cora.h5") as dataset:
        graphs = dataset.load()
    assert (graphs.n_nodes, graphs.n_features, graphs.x.nnz) == (2708, 1433, 49216)
    assert graphs.n_edges == 2 * 5278 + 2708
    split = graphs.splits["planetoid"]
    assert [len(rows) for rows in split.parts().values()] == [140, 500, 1000]
    assert np.bincount(graphs.y[split.train, 0]).tolist() == [20] * 7
    assert split.test.min() == 1708
