"""Folders of shards: equal to the file to the bit, written whole or not at all, refused by name, in bounded memory."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gcnbatch
from gcnbatch import fileio
from gcnbatch.data import sharding
from gcnbatch.data.add_splits import SplitTable, add_splits
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.shards import INDEX, MAX_SHARDS, fingerprint
from gcnbatch.data.store import Dataset, DatasetWriter, write_graphset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.folders import UNFINISHED
from tests.builders import assert_graphsets_equal, build_graphset
from tests.training.runs import fit

SETS: dict[str, dict[str, Any]] = {
    "dense": {"weights": True, "groups": True, "splits": True, "graph_features": 3, "n_counts": 2},
    "sparse nodes": {"level": "node", "features": "csr", "target": "multiclass", "splits": True},
    "graphs without nodes": {"max_nodes": 1, "edges_per_node": 1},
}


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def sharded(folder: Path, graphs: int = 4, smiles: list[str] | None = None, **options: Any) -> tuple[Path, Path]:
    """Write a set as a file and as shards of `graphs` graphs; return both."""
    made = build_graphset(**{"n_graphs": 11, "seed": 4, **options})
    with DatasetWriter(folder / "set.h5") as writer:
        writer.append(replace(made, ids=np.array([f"{'x' * (i // 4)}{i}" for i in range(len(made.ids))])))
        writer.finish(made.header, made.splits, smiles)
    with Dataset(folder / "set.h5") as dataset:
        sharding.shard(dataset, folder / "shards", max_graphs=graphs)
    return folder / "set.h5", folder / "shards"


@pytest.mark.parametrize("graphs", [4, 100])
@pytest.mark.parametrize("options", SETS.values(), ids=SETS)
def test_a_folder_of_shards_reads_like_the_file(tmp_path: Path, options: dict[str, Any], graphs: int) -> None:
    smiles = ["C" * i for i in range(11)] if options.get("level") != "node" else None
    file, folder = sharded(tmp_path, graphs, smiles, **options)
    assert len(list(folder.glob("shard-*.h5"))) == -(-11 // graphs)
    picked = [7, 2, 2, 3, 10, 0, 4]
    with Dataset(file) as one, Dataset(folder) as many, Dataset(folder, check=False) as unchecked:
        assert_graphsets_equal(unchecked.read(picked), one.read(picked))
        assert [ids.dtype for ids in (many.ids, many.load().ids)] == [one.ids.dtype] * 2
        assert_graphsets_equal(many.load(), one.load())
        assert (many.smiles(), many.smiles(2, 9)) == (one.smiles(), one.smiles(2, 9))
        assert unchecked.nbytes == one.nbytes
        for first, stop in pairwise(range(11)):
            assert_graphsets_equal(unchecked.read([first]), one.read(range(first, stop)))
    assert_graphsets_equal(gcnbatch.read(folder), gcnbatch.read(file))


@pytest.mark.numerical
def test_training_inference_and_baseline_of_shards_equal_those_of_the_file(
    tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    smiles = ["C" * (1 + i % 7) + "O" * (i % 3) for i in range(30)]
    graphs = gcnbatch.from_smiles(smiles, np.array([[i % 3 == 0] for i in range(30)], np.float32))
    gcnbatch.write(tmp_path / "set.h5", graphs, smiles=smiles)
    with Dataset(tmp_path / "set.h5") as dataset:
        sharding.shard(dataset, tmp_path / "shards", max_bytes=dataset.nbytes // 4)
    monkeypatch.setattr(Dataset, "fits_in_memory", property(lambda dataset: False))
    written = {}
    for data in ("set.h5", "shards"):
        run, forest = tmp_path / f"run of {data}", tmp_path / f"baseline of {data}"
        metrics = fit(tmp_path / data, run, "train.epochs=2", "train.batch_size=4")
        gcnbatch.infer(run, tmp_path / data, tmp_path / "out.csv", backend="cpu")
        gcnbatch.baseline({}, tmp_path / data, trees=2, out=forest, quiet=True)
        files = (run / "best.safetensors", tmp_path / "out.csv", forest / "predictions.csv")
        written[data] = metrics["test"], [file.read_bytes() for file in files]
    assert written["set.h5"] == written["shards"]


# ------------------------------------------------------------------------------------------------ refused folders


def index_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = index_of(folder)
    change(content)
    (folder / INDEX).write_text(json.dumps(content))


def adopt(folder: Path, name: str = "shard-00001.h5") -> None:
    """Give the index the digest and the size of a file."""

    def change(content: dict[str, Any]) -> None:
        for one in [*content["shards"], content["splits"]]:
            if one["file"] == name:
                one.update(sha256=fileio.sha256(folder / name), bytes=(folder / name).stat().st_size)

    rewrite(folder, change)


def swap(folder: Path, name: str = "shard-00001.h5", **options: Any) -> None:
    """Replace a file by another valid data set of two graphs, and adopt it."""
    with h5py.File(folder / name) as file:
        header = gcnbatch.data.schema.Header.model_validate_json(file["header"][0]) if "header" in file else None
    made = build_graphset(2, **{"weights": True, **options})
    write_graphset(folder / name, replace(made, header=header) if header and "n_features" not in options else made)
    adopt(folder, name)


def edit(folder: Path, change: Callable[[h5py.File], object]) -> None:
    with h5py.File(folder / "shard-00001.h5", "r+") as file:
        change(file)
    adopt(folder)


def put(name: str, at: int, value: int) -> Callable[[h5py.File], object]:
    def change(file: h5py.File) -> None:
        values = file[name][:]
        values[at] = value
        file[name][:] = values

    return change


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def add_split(file: h5py.File) -> None:
    for part in ("train", "valid", "test"):
        file.copy("graphs/node_ptr", file.require_group("splits/a"), part)


def swap_splits(folder: Path) -> None:
    path = next(folder.glob("splits-*"))
    write_graphset(path, build_graphset(2))
    adopt(folder, path.name)


FIRST = "shard-00001.h5"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda d: (d / INDEX).unlink(), "shards: a folder without shards.json; expected an HDF5 file or"),
    "missing": (lambda d: (d / FIRST).unlink(), f"{FIRST}: no such file; expected a file of"),
    "shorter": (lambda d: os.truncate(d / FIRST, 99), f"{FIRST}: 99 bytes; expected"),
    "a changed byte": (lambda d: flip(d / FIRST), f"{FIRST}: another SHA-256; expected that of shards.json"),
    "a link": (lambda d: link(d / FIRST), f"{FIRST}: a symbolic link"),
    "a linked index": (lambda d: link(d / INDEX), f"{INDEX}: a symbolic link"),
    "not JSON": (lambda d: (d / INDEX).write_text("{"), f"{INDEX}: not a JSON text in UTF-8"),
    "deep JSON": (lambda d: (d / INDEX).write_text("[" * 200_000), f"{INDEX}: not a JSON text in UTF-8"),
    "a large index": (lambda d: (d / INDEX).write_bytes(b" " * (5 << 20)), f"{INDEX}: more than 4194304 bytes"),
    "another folder": (
        lambda d: rewrite(d, lambda c: c["shards"][1].update(file="../shard-00001.h5")),
        f"{INDEX}: 'shards.1.file': '../shard-00001.h5', not a text like ^shard-",
    ),
    "an unknown key": (lambda d: rewrite(d, lambda c: c.update(url="x")), f"{INDEX}: 'url': unknown key; "),
    "a version": (lambda d: rewrite(d, lambda c: c.update(version=2)), f"{INDEX}: 'version': 2, not 1; "),
    "twice": (lambda d: rewrite(d, lambda c: c["shards"].append(c["shards"][1])), f"{FIRST} stands there twice"),
    "one more": (lambda d: (d / "shard-00099.h5").write_bytes(b""), "shard-00099.h5: not in shards.json"),
    "a name of the header": (
        lambda d: rewrite(d, lambda c: c["header"].update(task_names=["a", "a"])),
        f"{INDEX}:/header: task_names: 'a' stands there 2 times",
    ),
    "a count": (lambda d: rewrite(d, lambda c: c["shards"][1].update(nodes=8)), f"{FIRST}: 5 nodes; expected 8"),
    "another header": (lambda d: swap(d, n_features=3), f"{FIRST}:/header: another header; expected that of"),
    "no weights": (lambda d: swap(d, weights=False, max_nodes=3), f"{FIRST}:/edges/weight: missing"),
    "groups": (lambda d: swap(d, groups=True, max_nodes=3), f"{FIRST}:/graphs/group: present; expected the arrays of"),
    "another type": (
        lambda d: swap(d, features="uint8", max_nodes=3),
        f"{FIRST}:/nodes/x: type uint8; expected float32, as in the first shard",
    ),
    "splits of a shard": (
        lambda d: edit(d, add_split),
        f"{FIRST}:/splits/a/test: present",
    ),
    "a pointer's start": (lambda d: edit(d, put("graphs/node_ptr", 0, 1)), f"{FIRST}:/graphs/node_ptr[0]: 1; expected"),
    "a pointer's end": (
        lambda d: edit(d, put("graphs/edge_ptr", 2, 5)),
        f"{FIRST}:/graphs/edge_ptr[2]: 5; expected 10",
    ),
    "a pointer": (lambda d: edit(d, put("graphs/node_ptr", 1, 2**62)), f"node_ptr[1]: {2**62}; expected 0 to 5"),
    "an edge": (lambda d: edit(d, put("edges/src", 0, 9)), "shards:/edges/src["),
    "other splits": (swap_splits, "not a split; expected arrays of splits"),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sharded(tmp_path_factory.mktemp("valid"), 2, n_graphs=6, weights=True, splits=True)[1]


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_does_not_fit_its_index_is_refused_by_name(
    valid: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    folder = shutil.copytree(valid, tmp_path / "shards")
    change(folder)
    with pytest.raises(InputError) as refused:
        Dataset(folder)
    assert message in str(refused.value)


# ------------------------------------------------------------------------------------------------ writing


def test_a_failed_call_leaves_nothing_and_a_killed_one_is_replaced(tmp_path: Path, monkeypatch: Any) -> None:
    file, folder = sharded(tmp_path)
    written = {place.name: place.read_bytes() for place in folder.iterdir()}
    full = MachineError("disk", "full")

    def fail(*about: object) -> None:
        raise full

    with Dataset(file) as dataset:
        with monkeypatch.context() as patch:
            patch.setattr(sharding.fileio, "write_text", fail)
            with pytest.raises(MachineError, match="disk: full"):
                sharding.shard(dataset, tmp_path / "new", max_graphs=4)
        assert not (tmp_path / "new").exists()
        (folder / INDEX).unlink()
        (folder / "shard-00001.h5").write_bytes(b"a part")
        left = {place.name: place.read_bytes() for place in folder.iterdir()}
        with pytest.raises(InputError, match="already exists"):  # somebody's shards, which have lost their index
            sharding.shard(dataset, folder, max_graphs=4)
        assert {place.name: place.read_bytes() for place in folder.iterdir()} == left
        (folder / UNFINISHED).touch()
        sharding.shard(dataset, folder, max_graphs=4)
    assert {place.name: place.read_bytes() for place in folder.iterdir()} == written


def test_the_writer_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    file, folder = sharded(tmp_path)
    write_graphset(tmp_path / "one.h5", build_graphset(1))
    write_graphset(tmp_path / "many.h5", build_graphset(MAX_SHARDS + 1, max_nodes=1))
    for data, out, message in (
        (file, folder, "already exists; expected a new or empty folder"),
        (file, tmp_path, "the folder of the input"),
        (folder, folder, "the folder of the input"),
        (tmp_path / "one.h5", tmp_path / "new", "1 graph; expected at least 2 graphs, as a shard holds whole graphs"),
        (tmp_path / "many.h5", tmp_path / "new", f"257 shards; expected at most {MAX_SHARDS}. Give a larger --graphs."),
    ):
        with Dataset(data) as dataset, pytest.raises(InputError, match=message):
            sharding.shard(dataset, out, max_graphs=1)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["many.h5", "one.h5", "set.h5", "shards"]


def test_a_split_is_added_to_the_index_alone(tmp_path: Path) -> None:
    _, folder = sharded(tmp_path, splits=True)
    shards = {place: fileio.sha256(place) for place in folder.glob("shard-*")}
    before, table = fingerprint(folder), tmp_path / "split.csv"
    table.write_text("split\n" + "train\n" * 6 + "test\n" * 5)
    with Dataset(folder) as dataset:
        add_splits(dataset, folder, SplitTable(table, name="mine"))
    assert {place: fileio.sha256(place) for place in folder.glob("shard-*")} == shards
    assert fingerprint(folder) != before
    assert len(list(folder.iterdir())) == len(shards) + 2
    with Dataset(folder) as dataset:
        assert dataset.splits["mine"].test.tolist() == [6, 7, 8, 9, 10]
        assert sorted(dataset.splits) == ["first", "mine"]


@pytest.mark.slow
def test_an_epoch_over_shards_takes_memory_by_the_limit_not_by_the_set(tmp_path: Path) -> None:
    graphs = build_graphset(300, max_nodes=24, features="uint8", n_features=4000, seed=1)
    write_graphset(tmp_path / "set.h5", replace(graphs, x=np.zeros_like(graphs.x)))
    limit = 1
    with Dataset(tmp_path / "set.h5", limit, check=False) as dataset:
        assert dataset.nbytes > 12 * (limit << 20)
        sharding.shard(dataset, tmp_path / "shards", max_graphs=60)
    del graphs
    tracemalloc.start()
    try:
        with Dataset(tmp_path / "shards", limit) as dataset:
            source = BatchSource(dataset)
            for batch in np.array_split(np.random.default_rng(0).permutation(dataset.n_graphs), 60):
                assert source.batch(batch).n_nodes
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * (limit << 20)
