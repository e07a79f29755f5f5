"""``gcnbatch data info|check|synth`` through the program's entry point: stdout, stderr, exit codes, files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from gcnbatch.cli.text_tables import facts, size, table
from gcnbatch.data import synthetic
from gcnbatch.data.store import Dataset, write_graphset
from tests.builders import build_graphset


@pytest.fixture
def call(command):
    return partial(command, "data")


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    synthetic.write("quickstart", tmp_path / "quick.h5", graphs=40)
    return tmp_path / "quick.h5"


def damaged(path: Path) -> Path:
    with h5py.File(path, "r+") as file:
        file["edges/src"][5] = 99
    return path


# ------------------------------------------------------------------------------------------------ info


def test_info_describes_the_file(call, quick) -> None:
    code, out, err = call("info", quick)
    with Dataset(quick) as dataset:
        nodes, edges = int(dataset.node_ptr[-1]), int(dataset.edge_ptr[-1])
        missing = np.isnan(dataset.y).sum(axis=0)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "graphs             40" in lines
    assert f"nodes              {nodes:,}" in lines
    assert f"edges              {edges:,} stored, {nodes:,} of them self-loops" in lines
    assert any(line.split() == ["bond", f"{edges:,}"] for line in lines)
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("N-O", "S-P", "Si-B"))}
    for (positive, negative, absent, share), expected in zip(rows.values(), missing, strict=True):
        assert int(positive) + int(negative) + int(absent) == 40
        assert int(absent) == expected
        assert float(share) == pytest.approx(100 * int(positive) / (int(positive) + int(negative)), abs=0.05)


def test_info_lists_groups_splits_featuriser_and_the_largest_classes(call, tmp_path) -> None:
    graphs = build_graphset(30, target="multiclass", n_classes=25, groups=True, splits=True, missing=0.2)
    header = graphs.header.model_copy(update={"group_kind": "family", "featurizer": {"kind": "smiles"}})
    write_graphset(tmp_path / "set.h5", type(graphs)(**{**vars(graphs), "header": header}))
    code, out, _ = call("info", tmp_path / "set.h5")
    assert code == 0
    lines = out.splitlines()
    assert f"groups        {len(set(graphs.groups.tolist()))} of kind family" in lines
    assert "featurizer    kind smiles" in lines
    assert lines[-1].split() == ["first", "10", "10", "10"]
    counts = np.sort(np.bincount(graphs.y[graphs.y >= 0], minlength=25))[::-1]
    start = next(place for place, line in enumerate(lines) if line.startswith("class "))
    shown = [int(line.split()[1]) for line in lines[start + 1 : start + 21]]
    assert shown == counts[:20].tolist()
    assert lines[start + 21] == f"and 5 classes of {counts[24]} to {counts[20]} rows"
    assert lines[start + 22] == f"{(graphs.y < 0).sum()} rows without a class"


def test_info_of_a_regression_without_any_label_shows_dashes(call, tmp_path) -> None:
    write_graphset(tmp_path / "set.h5", build_graphset(target="regression", n_tasks=1, missing=1.0))
    _, out, _ = call("info", tmp_path / "set.h5")
    assert out.splitlines()[-1].split() == ["task0", "–", "–", "–", "–", "6"]
    assert "target        regression, 1 task" in out
    assert "unlabelled    6 rows without any label" in out


def test_info_shows_which_labels_became_0_and_1(call, tmp_path) -> None:
    graphs = build_graphset(n_tasks=1, missing=0.0)
    header = graphs.header.model_copy(update={"label_names": {"task0": ("inactive", "active")}})
    write_graphset(tmp_path / "set.h5", type(graphs)(**{**vars(graphs), "header": header}))
    _, out, _ = call("info", tmp_path / "set.h5")
    assert "labels        task0: inactive = 0, active = 1" in out
    assert "unlabelled" not in out


def test_info_as_json_and_as_a_figure(call, quick, tmp_path) -> None:
    code, out, err = call("info", quick, "--json", "--plot", tmp_path / "quick.png")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["name"], found["level"], found["target"], found["graphs"]) == ("quickstart", "graph", "binary", 40)
    assert found["nodes_per_graph"]["min"] >= 16
    assert [task["name"] for task in found["tasks"]] == ["N-O", "S-P", "Si-B"]
    assert found["source"]["seed"] == "0"
    assert (tmp_path / "quick.png").stat().st_size > 10_000


def test_info_refuses_a_file_that_is_not_valid(call, quick) -> None:
    code, out, err = call("info", damaged(quick))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {quick}:/edges/src[5]: ")


# ------------------------------------------------------------------------------------------------ check


def test_check_lists_its_checks(call, quick, tmp_path) -> None:
    code, out, err = call("check", quick)
    assert (code, err) == (0, "")
    assert out.startswith(f"{quick}: valid. Checked ")
    assert "40 graphs" in out
    assert "0 splits" in out
    single = tmp_path / "single.h5"
    synthetic.write("quickstart", single, graphs=1)
    assert ": 1 graph, " in call("check", single)[1]
    code, out, _ = call("check", quick, "--json")
    verdict = json.loads(out)
    assert (code, verdict["valid"], verdict["checked"]["graphs"], verdict["checked"]["targets"]) == (0, True, 40, 120)


def test_check_names_the_first_error(call, quick) -> None:
    damaged(quick)
    code, out, err = call("check", quick)
    assert (code, out) == (2, "")
    assert f"{quick}:/edges/src[5]: " in err
    assert len(err.splitlines()) == 1
    code, out, err = call("check", quick, "--json")
    verdict = json.loads(out)
    assert (code, verdict["valid"]) == (2, False)
    assert err == f"error: {verdict['error']}\n"


# ------------------------------------------------------------------------------------------------ synth


def test_synth_writes_the_preset_and_prints_its_path(call, tmp_path) -> None:
    out = tmp_path / "set.h5"
    assert call("synth", "tox21", "-o", out, "--graphs", 20, "--seed", 4, "--bond-channels") == (0, f"{out}\n", "")
    again = tmp_path / "again.h5"
    synthetic.write("tox21", again, seed=4, graphs=20, bond_channels=True)
    assert out.read_bytes() == again.read_bytes()


def test_synth_shows_the_cost_of_a_large_network_before_it_starts(call, tmp_path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(synthetic, "write", lambda *arguments, **_: made.append(arguments))
    code, _, err = call("synth", "reddit", "-o", tmp_path / "set.h5")
    assert (code, len(made)) == (0, 1)
    assert err.startswith("reddit: 232,965 nodes, 114,848,857 edges; this takes about ")
    assert "makes a file of about " in err
    assert call("synth", "reddit", "-o", tmp_path / "set.h5", "--scale", 0.01)[2] == ""


def test_synth_refuses_more_graphs_than_fit_on_disk_or_in_memory(call, tmp_path) -> None:
    code, out, err = call("synth", "tox21", "-o", tmp_path / "set.h5", "--graphs", 10**20)
    assert (code, out) == (2, "")
    room = r"at most [\d,]+, for which this disk and memory have room"
    assert re.fullmatch(rf"error: --graphs: 100,000,000,000,000,000,000; expected {room}\n", err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["quickstart", "tox21", "reaction100"])
def test_a_preset_takes_at_least_the_required_disk_space(call, tmp_path, preset) -> None:
    out = tmp_path / "set.h5"
    assert call("synth", preset, "-o", out, "--graphs", 500)[0] == 0
    assert out.stat().st_size > 500 * synthetic.DISK_PER_GRAPH


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_synth_stopped_by_a_signal_leaves_no_file(tmp_path, number) -> None:
    silent = "from gcnbatch import progress; from gcnbatch.cli.app import main; progress.LINE_SECONDS = 1e9; main()"
    command = [sys.executable, "-c", silent, "data", "synth", "quickstart", "-o", str(tmp_path / "set.h5")]
    with subprocess.Popen([*command, "--graphs", "2000000"], stderr=subprocess.PIPE, text=True) as running:
        while sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000:  # it is writing
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(number)
        said = running.communicate(timeout=240)[1]
    assert (running.returncode, said) == (130, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tox2", "-o", "set.h5"], "error: preset: 'tox2'; expected tox21, "),
        (["reddit", "-o", "set.h5", "--graphs", "3"], "error: --graphs: given for reddit, which is one graph. "),
        (["tox21", "-o", "nowhere/set.h5", "--graphs", "3"], "error: nowhere/set.h5: "),
        (["tox21"], "Missing option '-o'"),
    ],
)
def test_synth_refuses_wrong_options_and_leaves_no_file(call, tmp_path, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("synth", *arguments)
    assert (code in (2, 3), out) == (True, "")
    assert message in err
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ tables


def test_text_tables_align_numbers_and_keep_text() -> None:
    assert table(("task", "count", "share"), [("a", 1_234, 0.5), ("bcdef", None, 12_345.6)]) == [
        "task   count   share",
        "a      1,234     0.5",
        "bcdef      –  12,346",
    ]
    assert table(("split", "train"), []) == ["split  train"]
    assert facts([("a", "1"), ("left out", ""), ("long", "2")]) == ["a     1", "long  2"]
    assert [size(count) for count in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


# ------------------------------------------------------------------------------------------------ shard


def test_shard_writes_a_folder_that_is_a_data_set(call, quick, tmp_path) -> None:
    code, out, _ = call("shard", quick, "-o", tmp_path / "new", "--size", "10KB")
    shards = len(list((tmp_path / "new").glob("shard-*.h5")))
    assert (code, out, shards > 1) == (0, f"{tmp_path / 'new'}: {shards} shards\n", True)
    of_folder, of_file = (json.loads(call("info", data, "--json")[1]) for data in (tmp_path / "new", quick))
    for told in (of_folder, of_file):
        del told["path"], told["file_bytes"]
    assert of_folder == of_file


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "2"], "--size: '2'; expected a size such as 2GB, 500MB or 1GiB"),
        (["--size", "0GB"], "--size: '0GB'; expected a size such as"),
        (["--size", "1GB", "--graphs", "5"], "--size and --graphs: both given; expected one of them"),
    ],
)
def test_shard_refuses_other_sizes(call, quick, tmp_path, options, message) -> None:
    code, _, err = call("shard", quick, "-o", tmp_path / "new", *options)
    assert (code, (tmp_path / "new").exists()) == (2, False)
    assert message in err
