"""HDF5 files with hostile headers and numbers: each is refused with one line that names the position."""

from __future__ import annotations

import json
import re

import h5py
import numpy as np
import pytest

from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.data.file_changes import STORAGE, Change, bad_file, drop, header, nested, put, refusal, text, value

HEADER_RULE = "expected the header of format version 1"


def repeated_column(file: h5py.File) -> None:
    pointer = file["nodes/x_csr/indptr"][:]
    first = int(pointer[np.flatnonzero(np.diff(pointer) > 1)[-1]])
    file["nodes/x_csr/indices"][first + 1] = file["nodes/x_csr/indices"][first]


MEANING: dict[str, tuple[Change, str]] = {
    "no header": (drop("header"), "/header: missing; expected one JSON text"),
    "two headers": (put("header", np.array([b"{}", b"{}"])), "/header: missing"),
    "no JSON": (text(b"{"), "/header: not a JSON text in UTF-8; " + HEADER_RULE),
    "not UTF-8": (text(b'{"name": "\xff"}'), "/header: not a JSON text in UTF-8"),
    "NaN in JSON": (text(b'{"name": NaN}'), "/header: not a JSON text in UTF-8"),
    "deep JSON": (text(nested(100_000)), "/header: not a JSON text in UTF-8"),
    "half a surrogate pair": (header(source={"a": "\ud800"}), "/header: not a JSON text in UTF-8"),
    "a list": (text(b"[]"), "/header: 'header': \\[], not an object of keys"),
    "unknown key": (header(**{"extra\n": 1}), r"/header: 'extra\\n': unknown key; " + HEADER_RULE),
    "text for a number": (header(n_features="4"), "/header: 'n_features': '4', not a whole number"),
    "257 channels": (header(channel_names=[str(i) for i in range(257)]), "/header: 'channel_names': .* at most 256"),
    "4097 tasks": (
        header(task_names=[str(i) for i in range(4097)]),
        "/header: task_names: 4097; expected at most 4096. A model has weights for each of them",
    ),
    "4097 classes": (
        header(target="multiclass", task_names=["a"], class_names=[str(i) for i in range(4097)]),
        "/header: class_names: 4097; expected at most 4096",
    ),
    "3 M features": (header(n_features=3_000_000), "/header: n_features: 3000000; expected at most 262144"),
    "deep featurizer": (
        header(featurizer={"a": json.loads(nested(9))}),
        "/header: featurizer nested too deep; expected at most 8 levels",
    ),
    "deeper featurizer": (header(featurizer={"a": json.loads(nested(300))}), "/header: featurizer nested too deep"),
    "no task": (header(task_names=[]), "/header: 'task_names': .* at least 1"),
    "empty name": (header(task_names=["a", ""]), "/header: task_names: ''; expected names of printable characters"),
    "escape in a name": (header(task_names=["a", "\x1b[31m"]), r"/header: task_names: '\\x1b\[31m'; expected names of"),
    "repeated name": (
        header(channel_names=["a", "a"]),
        "/header: channel_names: 'a' stands there 2 times; expected each",
    ),
    "line in the name": (
        header(name="a\nb"),
        "/header: name or group_kind with control characters; expected printable",
    ),
    "too few feature names": (header(feature_names=["a"]), "/header: 1 feature_names; expected none or 4"),
    "classes of a binary set": (
        header(class_names=["a", "b"]),
        "/header: class_names with a binary target; expected none",
    ),
    "one class": (
        header(target="multiclass", task_names=["a"], class_names=["a"]),
        "/header: 1 class_names; expected at least",
    ),
    "two multiclass tasks": (
        header(target="multiclass", class_names=["a", "b"]),
        "/header: 2 task_names; expected 1 for a",
    ),
    "no edges/dst": (drop("edges/dst"), "/edges/dst: missing; expected an array of this name. Make one with"),
    "no features": (drop("nodes/x"), "/nodes/x: missing"),
    "half a split": (drop("splits/first/test"), "/splits/first/test: missing"),
    "both features": (
        put("nodes/x_csr/data", np.zeros(3, "f4")),
        "/nodes: both x and x_csr are present; expected one of them",
    ),
    "ids of the other level": (
        put("nodes/id", np.zeros(15, "S1")),
        "/nodes/id: present in a graph-level set; expected only",
    ),
    "integer targets": (
        put("graphs/y", np.zeros((6, 2), "i4")),
        "/graphs/y: type int32; expected float32 for a binary target",
    ),
    "no pointer": (
        put("graphs/node_ptr", np.zeros(0, "i8"), maxshape=(None,), **STORAGE),
        "/graphs/node_ptr: no entry; expect",
    ),
    "short edge pointer": (
        put("graphs/edge_ptr", np.zeros(6, "i8")),
        r"/graphs/edge_ptr: shape \(6,\); expected shape \(7,\)",
    ),
    "too many features": (
        put("nodes/x", np.zeros((15, 5), "f4")),
        r"/nodes/x: shape \(15, 5\); expected shape \(15, 4\)",
    ),
    "pointer not from 0": (value("graphs/node_ptr", 0, 1), r"/graphs/node_ptr\[0\]: 1; expected 0"),
    "pointer running back": (
        value("graphs/node_ptr", 2, 3),
        r"/graphs/node_ptr\[2\]: 3 after 5; expected offsets that never",
    ),
    "pointer past the end": (
        value("graphs/edge_ptr", 6, 31),
        r"/graphs/edge_ptr\[6\]: 31; expected 30, the number of rows",
    ),
    "pointer near overflow": (
        value("graphs/edge_ptr", 3, 2**63 - 1),
        r"/graphs/edge_ptr\[4\]: 28 after 9223372036854775807",
    ),
    "pointer below 0": (value("graphs/edge_ptr", 1, -(2**63)), r"/graphs/edge_ptr\[1\]: -9223372036854775808 after 0"),
    "edge to another graph": (value("edges/dst", 12, 4), r"/edges/dst\[12\]: node 4 in graph 1; expected 0 to 3"),
    "edge from below 0": (value("edges/src", 29, -1), r"/edges/src\[29\]: node -1 in graph 4; expected 0 to 0"),
    "edge of an empty graph": (
        value("graphs/edge_ptr", 5, 29),
        r"/edges/src\[29\]: node 0 in graph 5; expected no edge, the",
    ),
    "channel": (value("edges/channel", 7, 2), r"/edges/channel\[7\]: 2; expected 0 to 1"),
    "weight": (value("edges/weight", 3, np.inf), r"/edges/weight\[3\]: inf; expected finite numbers"),
    "feature": (value("nodes/x", (14, 2), np.nan), r"/nodes/x\[14, 2\]: nan; expected finite numbers"),
    "ids not UTF-8": (
        put("graphs/id", np.array([b"\xff"] * 6)),
        "/graphs/id: ids that are not UTF-8; expected UTF-8 text",
    ),
    "id with NUL": (put("graphs/id", np.array([b"a"] * 5 + [b"a\0b"])), r"/graphs/id\[5\]: an id with a NUL inside"),
    "feature of a graph": (
        value("graphs/features", (3, 0), np.inf),
        r"/graphs/features\[3, 0\]: inf; expected finite numbers or NaN \(missing\)",
    ),
    "no features of graphs": (drop("graphs/features"), "/graphs/features: missing"),
    "features of graphs without names": (
        header(graph_feature_names=[], graph_feature_counts=0),
        "/graphs/counts: present; expected a header with graph_feature_counts",
    ),
    "no feature names for measured ones": (
        header(graph_feature_names=["of graph 1"]),
        r"/graphs/features: shape \(6, 1\); expected shape \(6, 0\)",
    ),
    "dense counts that are no whole numbers": (
        lambda f: (drop("graphs/counts")(f), put("graphs/features", np.full((6, 2), 0.5, "f4"))(f)),
        r"/graphs/features\[0, 1\]: 0.5; expected a count: a whole number below 2\^32",
    ),
    "dense counts that are missing": (
        lambda f: (drop("graphs/counts")(f), put("graphs/features", np.full((6, 2), np.nan, "f4"))(f)),
        r"/graphs/features\[0, 1\]: nan; expected a count",
    ),
    "counts without columns": (drop("graphs/counts/indices"), "/graphs/counts/indices: missing; expected an array"),
    "column of counts": (
        value("graphs/counts/indices", 2, 1),
        r"/graphs/counts/indices\[2\]: column 1; expected 0 to 0",
    ),
    "repeated column of counts": (
        value("graphs/counts/indptr", 1, 2),
        r"/graphs/counts/indices\[1\]: column 0 after 0 in row 0; expected rising columns, each once",
    ),
    "pointer of counts": (
        value("graphs/counts/indptr", 6, 9),
        r"/graphs/counts/indptr\[6\]: 9; expected \d, the number",
    ),
    "signed counts": (put("graphs/counts/data", np.ones(5, "i4")), "/graphs/counts/data: another type; expected u4"),
    "more counts than features of graphs": (
        header(graph_feature_counts=3),
        "/header: graph_feature_counts: 3; expected at most 2, the graph_feature_names",
    ),
    "262145 features of graphs": (
        header(graph_feature_names=[f"{i:x}" for i in range((1 << 18) + 1)]),
        r"/header: .*at most|/header: graph_feature_names: 262145; expected at most 262144",
    ),
    "label": (value("graphs/y", (4, 1), 2), r"/graphs/y\[4, 1\]: 2.0; expected 0, 1 or NaN \(missing\)"),
    "infinite value": (
        lambda f: (header(target="regression")(f), value("graphs/y", (4, 1), -np.inf)(f)),
        r"/graphs/y\[4, 1\]: -inf; expected finite numbers or NaN \(missing\)",
    ),
    "group": (value("graphs/group", 2, -1), r"/graphs/group\[2\]: -1; expected 0 or more"),
    "split out of range": (value("splits/first/valid", 1, 6), r"/splits/first/valid\[1\]: 6; expected 0 to 5"),
    "split below 0": (value("splits/first/test", 0, -1), r"/splits/first/test\[0\]: -1; expected 0 to 5"),
    "split overlap": (
        lambda f: put("splits/first/test", f["splits/first/train"][:])(f),
        "/splits/first: row . stands in the",
    ),
    "split name": (lambda f: f.move("splits/first", "splits/a b"), "/splits: a split named 'a b'; expected letters"),
}

IN_SPARSE: dict[str, tuple[Change, str]] = {
    "class": (value("nodes/y", (2, 0), 3), r"/nodes/y\[2, 0\]: 3; expected -1 \(missing\) or a class 0 to 2"),
    "column": (value("nodes/x_csr/indices", 3, 4), r"/nodes/x_csr/indices\[3\]: column 4; expected 0 to 3"),
    "column below 0": (value("nodes/x_csr/indices", 0, -1), r"/nodes/x_csr/indices\[0\]: column -1"),
    "repeated column": (
        repeated_column,
        r"/nodes/x_csr/indices\[\d+\]: column (.) after \1 in row \d+; expected rising columns, each once",
    ),
    "entry": (value("nodes/x_csr/data", 5, np.nan), r"/nodes/x_csr/data\[5\]: nan; expected finite numbers"),
    "sparse pointer": (value("nodes/x_csr/indptr", 3, 10**12), r"/nodes/x_csr/indptr\[4\]: \d+ after 1000000000000"),
    "end of it": (value("nodes/x_csr/indptr", 15, 1), r"/nodes/x_csr/indptr\[1\d?\]: .*; expected"),
    "features of graphs": (
        put("graphs/features", np.zeros((6, 1), "f4")),
        "/graphs/features: present in a node-level set; expected features of graphs",
    ),
    "no indices": (drop("nodes/x_csr/indices"), "/nodes/x_csr/indices: missing"),
    "lengths": (put("nodes/x_csr/indices", np.zeros(3, "i4")), r"/nodes/x_csr/indices: shape \(3,\); expected shape"),
}


@pytest.mark.parametrize(("change", "message"), MEANING.values(), ids=MEANING)
def test_bad_contents_are_refused_in_one_line(tmp_path, change, message):
    assert re.search(message, refusal(bad_file(tmp_path, change)))


@pytest.mark.parametrize(("change", "message"), IN_SPARSE.values(), ids=IN_SPARSE)
def test_bad_sparse_contents_are_refused_in_one_line(tmp_path, change, message):
    assert re.search(message, refusal(bad_file(tmp_path, change, sparse=True)))


def test_unchecked_reading_still_keeps_within_the_sparse_arrays(tmp_path):
    def change(file: h5py.File) -> None:
        file["nodes/x_csr/indptr"][5] = 10**12
        file["nodes/x_csr/indptr"][9] = -7

    with Dataset(bad_file(tmp_path, change, sparse=True), check=False) as dataset:
        with pytest.raises(InputError, match=r"indptr\[5\]: 1000000000000; expected at most \d+, the number of rows"):
            dataset.read([0])
        with pytest.raises(InputError, match=r"indptr\[9\]: -7; expected at least 0"):
            dataset.read([2])
