"""A call of every command, its parameters that are paths and what each is for, and a folder with their inputs.

`CALLS` is compared with the commands themselves, so a new option for a path, or for any text, is declared here or fails
a test. The tests of outputs and of paths then draw their cases from it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import typer

import gcnbatch
from gcnbatch import figures
from gcnbatch.api.results import CARD
from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.cli import app
from gcnbatch.data.importers.smiles import SKIPPED
from gcnbatch.data.outputs import DATASET
from gcnbatch.embedding.command import IDS_OF, VECTORS
from gcnbatch.embedding.map import MAP
from gcnbatch.figures import FIGURE
from gcnbatch.fileio import Output, write_json
from gcnbatch.lab.backend_comparison import timeline
from gcnbatch.onnx_export.command import ONNX, PYTHON
from gcnbatch.predictions import OF_MODEL
from gcnbatch.selection.output import SELECTION
from tests.data.ogb_folders import write_folder
from tests.training.runs import lighten

PICTURE = b"\x89PNG\r\n\x1a\n"
READ, MADE, RESUMED = "read", "made", "resumed"  # an input; a folder of results; the folder of earlier results
TEXTS = {  # parameters that are texts, but no paths
    *("architectures", "backend", "backends", "bond_properties", "by", "classes", "columns", "decimal"),
    *(
        "delimiter",
        "dim",
        "encoding",
        "feature_columns",
        "figures",
        "fingerprint",
        "freeze",
        "host",
        "id_column",
        "jobs",
        "keep_columns",
        "kind",
    ),
    *(
        "methods",
        "metric",
        "missing",
        "models",
        "name",
        "nnz_per_row",
        "node_targets",
        "positional",
        "recipe",
        "preset",
        "resident",
    ),
    *("max_bytes", "sets", "settings", "smiles_column", "split_column", "splits", "target_columns", "task", "tasks"),
    *("time_column", "weight_column", "without"),
    *("above", "below", "maximise", "minimise", "where"),
}


@dataclass(frozen=True)
class Place:
    """A parameter that is a path.

    Parameters
    ----------
    path : str
        What the call gives, in the folder of `write_inputs`.
    role : str
        READ, MADE or RESUMED; else the name of the kind of file that the command writes there.
    option : str
        Empty: an argument.
    endings : tuple of str
        Of a file that is written.
    beside : tuple of str
        Endings of further files that the command needs beside a written one; "+" stands for its whole name.
    """

    path: str
    role: str = READ
    option: str = ""
    endings: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def writes_file(self) -> bool:
        return self.role not in (READ, MADE, RESUMED)


@dataclass(frozen=True)
class Call:
    """A call that works.

    Parameters
    ----------
    command : str
    places : dict of Place
        By parameter; two of them for the runs and the data of `infer` and `explain`.
    more : str
        Further words.
    """

    command: str
    places: dict[str, Place] = field(default_factory=dict)
    more: str = ""

    def words(self, inputs: Path = Path(), **replaced: str) -> list[str]:
        """Return the command line with other paths for some parameters; `inputs` is the folder of the inputs."""
        words = self.command.split()
        for name, place in self.places.items():
            path = str(inputs / place.path) if place.role in (READ, RESUMED) else place.path
            words += [*([place.option] if place.option else []), replaced.get(name, path)]
        return [*words, *self.more.split()]


def dataset(path: str = "new.h5") -> Place:
    return Place(path, DATASET.name, "-o", (".h5", ".hdf5"))


def made(path: str = "new") -> Place:
    return Place(path, MADE, "-o")


_CONFIG, _SET, _DATA = Place("base.toml"), Place("set.h5"), Place("set.h5", option="--data")
CALLS = {
    "train": Call(
        "train",
        {"config": _CONFIG, "data": _DATA, "from_run": Place("run/fold1", option="--from"), "out": made()},
        "--epochs 1 --backend cpu -q",
    ),
    "train on": Call("train", {"resume": Place("run", RESUMED, "--resume")}, "--epochs 3 --backend cpu -q"),
    "tune": Call(
        "tune",
        {"config": _CONFIG, "data": _DATA, "space": Place("space.toml", option="--space"), "out": made()},
        "--trials 1 --jobs 1 --backend cpu -q",
    ),
    "tune on": Call("tune", {"resume": Place("study", RESUMED, "--resume")}, "-q"),
    "infer": Call(
        "infer",
        {
            "runs": Place("run"),
            "data": Place("table.csv"),
            "out": Place(
                "new.csv", OF_MODEL, "-o", (".csv", ".jsonl", ".h5", ".parquet"), ("+.partial", "+.partial.json")
            ),
        },
        "--backend cpu -q --processes 1",
    ),
    "serve": Call(  # an address that no machine has
        "serve",
        {"runs": Place("run"), "token_file": Place("keys.txt", option="--token-file")},
        "--host 192.0.2.1 --backend cpu -q",
    ),
    "select": Call(
        "select",
        {
            "runs": Place("run"),
            "data": Place("pool.csv"),
            "out": Place("new.csv", SELECTION.name, "-o", (".csv", ".parquet")),
        },
        "--backend cpu -q --processes 1",
    ),
    "select campaign": Call(
        "select",
        {"table": Place("logs.csv", option="--campaign"), "out": made()},
        "--rounds 1 -q --processes 1",
    ),
    "baseline": Call("baseline", {"config": _CONFIG, "data": _DATA, "out": made()}, "-q --trees 2"),
    "explain": Call(
        "explain",
        {"runs": Place("run"), "data": Place("table.csv"), "out": made()},
        "--backend cpu -q --steps 2 --top 1",
    ),
    "embed": Call(
        "embed",
        {
            "runs": Place("run"),
            "data": Place("table.csv"),
            "out": Place("new.csv", VECTORS.name, "-o", (".csv", ".npy", ".parquet")),
            "map_file": Place("new.html", MAP.name, "--map", (".html",)),
        },
        "--backend cpu -q --processes 1",
    ),
    "export": Call(
        "export", {"run": Place("run"), "out": Place("new.onnx", ONNX.name, "-o", (".onnx",), (".py",))}, "-q --check 9"
    ),
    "card": Call("card", {"run": Place("run"), "out": Place("new.md", CARD.name, "-o", (".md",))}),
    "compare-runs": Call("compare-runs", {"runs": Place("run"), "other": Place("forest"), "out": made()}),
    "report": Call("report", {"folder": Place("run", RESUMED)}),
    "compare-backends": Call(
        "compare-backends",
        {
            "config": _CONFIG,
            "data": _DATA,
            "out": made(),
            "timeline": Place("new.json", timeline.TRACE.name, "--timeline", (".json", ".trace")),
        },
        "--backends cpu --quick",
    ),
    "info": Call("info"),
    "data info": Call("data info", {"path": _SET, "plot": Place("new.png", FIGURE.name, "--plot", (".png",))}),
    "data check": Call("data check", {"path": _SET}),
    "data synth": Call("data synth quickstart", {"out": dataset()}, "--graphs 20"),
    "data khop": Call("data khop", {"path": _SET, "out": dataset()}, "--hops 2 --mode channels --backend cpu"),
    "data shard": Call("data shard", {"path": _SET, "out": made()}, "--graphs 30"),
    "data split": Call("data split", {"path": _SET, "table": Place("splits.csv", option="--from"), "out": dataset()}),
    "data split itself": Call(
        "data split", {"path": replace(dataset("two.h5"), option="")}, "--kind random --name mine"
    ),
    "data import smiles": Call(
        "data import smiles",
        {"source": Place("table.csv"), "out": replace(dataset(), beside=(".skipped.csv",))},
        "--processes 1 --target-columns y --on-bad-row skip",
    ),
    "data import planetoid": Call(
        "data import planetoid", {"source": Place("planetoid"), "out": dataset()}, "--name mini"
    ),
    "data import tudataset": Call("data import tudataset", {"source": Place("DS"), "out": dataset()}),
    "data import ogb": Call("data import ogb", {"source": Place("ogbg_mini"), "out": dataset()}),
    "data import csv": Call(
        "data import csv",
        {
            "edges": Place("E.csv", option="--edges"),
            "nodes": Place("N.csv", option="--nodes"),
            "graphs": Place("G.csv", option="--graphs"),
            "out": dataset(),
        },
    ),
    "bench spmm": Call(
        "bench spmm",
        {"data": _SET, "compare": Place("slow.jsonl", option="--compare"), "out": made()},
        "--methods scipy --batch 3 --columns 4 --repeats 2",
    ),
    "bench spgemm": Call("bench spgemm", {"files": Place("a.mtx"), "out": made()}, "--methods scipy --repeats 1"),
    "bench tune": Call("bench tune", {"out": Place("new.json", spmm_table.TABLE.name, "-o", (".json", ".txt"))}),
    "benchmark moleculenet": Call(
        "benchmark moleculenet",
        {"data": Place("tables", option="--data"), "out": made()},
        "--splits random --models baseline --seeds 1 -q",
    ),
    **{
        f"benchmark {name}": Call(
            f"benchmark {name}",
            {"data": Place("tables", option="--data"), "out": made()},
            "--recipe molecules --epochs 1 --backend cpu -q",
        )
        for name in ("moleculeace", "admet")
    },
    "kernels build": Call("kernels build"),
    "kernels list": Call("kernels list"),
    "kernels clear": Call("kernels clear"),
}
# By the names of the call and the parameter.
PLACES = {f"{name}: {key}": (name, key, place) for name, call in CALLS.items() for key, place in call.places.items()}
# What stands in the folder of `write_inputs` and may be replaced by the option that writes it.
WRITTEN = {
    "set.h5": DATASET.name,
    "two.h5": DATASET.name,
    "p.csv": OF_MODEL,
    "p.jsonl": OF_MODEL,
    "p.h5": OF_MODEL,
    "p.parquet": OF_MODEL,
    "s.csv": SELECTION.name,
    "s.parquet": SELECTION.name,
    "figure.png": FIGURE.name,
    "trace.json": timeline.TRACE.name,
    "kernels.json": spmm_table.TABLE.name,
    "m.skipped.csv": SKIPPED.name,
    "vectors.csv": VECTORS.name,
    "vectors.npy": VECTORS.name,
    "vectors.parquet": VECTORS.name,
    "vectors.ids.csv": IDS_OF.name,
    "map.html": MAP.name,
    "model.onnx": ONNX.name,
    "card.md": CARD.name,
    "model.py": PYTHON.name,
}
RESULTS = ("run", "forest", "study", "shards", "explained", "campaign", "compared", "bench", "spgemm", "suite")


def write_inputs(folder: Path) -> None:
    """Write the inputs of all calls, a result of every command, and files of other programs; needs RDKit and Optuna."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        lighten(patch)
        patch.setattr(figures, "png", lambda figure: PICTURE)
        _write_tables()
        _write_folders()
        _write_results()
        _write_others()


def _write_tables() -> None:
    smiles = [f"{'C' * (row // 8)}{text}" for row in range(64) for text in [("CCO", "CCN", "CCC", "COC")[row % 4]]]
    rows = "".join(f"{text},{row % 3 % 2}\n" for row, text in enumerate(smiles))
    for path, text in {
        "table.csv": f"smiles,y\n{rows}",
        "keys.txt": "0123456789abcdef\n",
        "pool.csv": "smiles\nCCCCCCO\nc1ccccc1O\nCCBr\n",
        "logs.csv": "smiles,y\n" + "".join(f"{text},{row / 7}\n" for row, text in enumerate(smiles)),
        "splits.csv": "part\n" + "train\ntrain\nvalid\ntest\n" * 16,
        "E.csv": "graph,src,dst\ng1,a,b\n",
        "N.csv": "graph,node,charge\ng1,a,0\ng1,b,1\ng2,a,0\n",
        "G.csv": "graph,toxic\ng1,1\ng2,0\n",
        "base.toml": "[train]\nepochs = 1\n[model]\nwidths = [4]\n",
        "space.toml": "[train]\nlearning_rate = { choices = [0.01, 0.02] }\n",
        "a.mtx": "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n2 1 2.0\n",
    }.items():
        Path(path).write_text(text, encoding="utf-8")
    gcnbatch.import_smiles("table.csv", "set.h5", target_columns=["y"], processes=1)
    gcnbatch.synth("quickstart", "two.h5", graphs=30)
    Path("tables").mkdir()
    for path, head, end in (
        ("freesolv.csv", "smiles,freesolv", ""),
        ("CHEMBL1862_Ki.csv", "smiles,y,split", ",train"),
        ("ppbr_az.train_val.csv", "Drug,Y", ""),
        ("ppbr_az.test.csv", "Drug,Y", ""),
    ):
        rows = [f"{one},{len(one)}{end}\n" for one in smiles[:30]]
        text = "".join(rows[:-1]) + rows[-1].replace("train", "test")
        Path("tables", path).write_text(f"{head}\n{text}")


def _write_folders() -> None:
    x, classes = sp.csr_matrix(np.eye(3, 4, dtype=np.float32)), np.eye(2, dtype=np.int32)
    parts: dict[str, Any] = {"y": classes[[0]], "allx": x[:2], "ally": classes, "tx": x[2:], "ty": classes[[1]]}
    Path("planetoid").mkdir()
    for part, value in {**parts, "graph": {0: [1], 1: [0, 2], 2: [1]}}.items():
        Path(f"planetoid/ind.mini.{part}").write_bytes(pickle.dumps(value, protocol=2))
    Path("planetoid/ind.mini.test.index").write_text("2")
    Path("DS").mkdir()
    for part, text in {"A": "1, 2\n2, 1", "graph_indicator": "1\n1\n2", "graph_labels": "1\n-1"}.items():
        Path(f"DS/DS_{part}.txt").write_text(text)
    files: dict[str, str | None] = {"num-node-list": "2\n1\n1", "num-edge-list": "1\n0\n0", "edge": "0,1"}
    files = {f"raw/{name}": text for name, text in {**files, "graph-label": "1\n0\n1"}.items()}
    files |= {"split/scaffold/train": "0", "split/scaffold/valid": "2", "split/scaffold/test": "1"}
    write_folder(Path("ogbg_mini"), files)


def _write_results() -> None:
    tree: dict[str, Any] = {"train": {"epochs": 2, "batch_size": 8}, "model": {"widths": [4]}, "backend": "cpu"}
    split = {"split": {"valid": 0.2, "test": 0.3, "folds": 2}}
    gcnbatch.train(tree | split, "set.h5", out="run")
    gcnbatch.baseline(tree | split, "set.h5", trees=2, out="forest")
    space = {"train": {"learning_rate": {"choices": [0.01, 0.02]}}}
    gcnbatch.tune(tree, "set.h5", space=space, trials=1, jobs=1, out="study")
    gcnbatch.shard("set.h5", "shards", max_graphs=30)
    gcnbatch.explain("run", "table.csv", "explained", top=1, steps=2, backend="cpu")
    gcnbatch.campaign("logs.csv", rounds=1, out="campaign")
    gcnbatch.compare_runs(["run", "forest"], out="compared")
    gcnbatch.bench_spmm("set.h5", batch=3, columns=[4], methods=["scipy"], repeats=2, out="bench")
    Path("slow.jsonl").write_text("".join(map(_slower, Path("bench/rows.jsonl").read_text().splitlines())))
    gcnbatch.bench_spgemm(["a.mtx"], methods=["scipy"], repeats=1, out="spgemm")
    gcnbatch.moleculenet("tables", splits=["random"], models=["baseline"], seeds=1, out="suite")
    for ending in ("csv", "jsonl", "h5", "parquet"):
        gcnbatch.infer("run", "table.csv", f"p.{ending}", backend="cpu")
    for ending in ("csv", "npy", "parquet"):
        gcnbatch.embed("run", "table.csv", f"vectors.{ending}", map_file="map.html", backend="cpu")
    gcnbatch.export("run", "model.onnx", check=0)
    gcnbatch.card("run", "card.md")
    for ending in ("csv", "parquet"):
        gcnbatch.select("run", "pool.csv", out=f"s.{ending}", backend="cpu")
    gcnbatch.describe("set.h5", plot="figure.png")
    write_json("trace.json", timeline.events([]))
    axes = ((1, 2), (1,), (4,), (8,))
    spmm_table.save(spmm_table.SpmmTable(axes, ("naive", "naive"), {"gpu": "x"}), Output(Path("kernels.json")))
    Path("bad.csv").write_text("smiles,y\nCCO,1\nC(,0\nCCN,0\n")
    gcnbatch.import_smiles("bad.csv", "m.h5", on_bad_row="skip", target_columns=["y"], processes=1)
    Path("m.h5").unlink()


def _slower(line: str) -> str:
    """Return a line of records with times that no machine exceeds."""
    record = json.loads(line)
    if "us" in record:
        record["us"] = {state: [1e9 * value for value in values] for state, values in record["us"].items()}
    return json.dumps(record) + "\n"


def _write_others() -> None:
    with h5py.File("other.h5", "w") as file:
        file["outputs"] = np.zeros(3)
        file.attrs["format"] = "another"
    for path, text in {
        "notes.txt": "mine\n",
        "labels.csv": "id,split\n1,train\n",
        "other.jsonl": '{"id": 1, "text": "mine"}\n',
        "other.json": json.dumps({"mine": 1}),
        "other.png": "no picture",
        "other.parquet": "PAR1",
        "other.partial": "mine\n",
    }.items():
        Path(path).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Ended:
    """How a command has ended."""

    code: int
    out: str
    err: str


def run(*words: str) -> Ended:
    """Run a command here; an exception that it does not report passes through."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["gcnbatch", *words])
        with pytest.raises(SystemExit) as left:
            app.main()
    return Ended(int(left.value.code or 0), out.getvalue(), err.getvalue())


def refused(found: Ended, *codes: int) -> str:
    """Assert that a command has ended with one of these codes and one line that says why; return the line."""
    assert found.code in codes, found
    lines = [line for line in found.err.splitlines() if line.startswith("error: ")]
    assert lines == found.err.splitlines()[-1:], found
    return lines[0]


@cache
def parameters() -> dict[str, dict[str, Any]]:
    """Return the parameters of each command by its words: their Python types."""
    return {
        " ".join(words): {one.name: one.type_descriptor.annotation for one in found.params}
        for words, found in _commands(typer.main.get_command(app.app), ())
    }


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
        return
    for name in list(below):
        yield from _commands(below[name], (*words, name))


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Return the contents of all files below a folder, and the names of its folders and links."""
    found: dict[str, bytes | str] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif os.path.isfile(path):
                found[path] = Path(path).read_bytes()
            else:
                found[path] = "folder"
    return found
