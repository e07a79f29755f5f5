"""Vectors of molecules: the networks' values with ids, fingerprint and descriptors, in three formats; the map."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gcnbatch
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.inference.models import load_models
from tests.browser import OVERFLOWING, browser
from tests.builders import build_graphset
from tests.training.runs import gcnbatch as cli


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def numbers(rows: list[dict[str, str]], pattern: str) -> NDArray[np.float32]:
    of = [[value or "nan" for name, value in row.items() if re.match(pattern, name)] for row in rows]
    return np.array(of, "f4")


def test_the_output_layer_makes_the_predictions_of_the_vectors(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    summary = gcnbatch.embed(run, data, tmp_path / "vectors.npy", backend="cpu")
    vectors = np.load(tmp_path / "vectors.npy")
    weights = load_models([run], lambda line: None)[0].weights
    logits = vectors.astype(np.float64) @ weights["output.weight"] + weights["output.bias"]
    ours = gcnbatch.Run.load(run).predict(str(data), backend="cpu")
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), ours.outputs, atol=1e-6)
    assert [row["id"] for row in table(tmp_path / "vectors.ids.csv")] == ours.ids.tolist()
    assert (summary.rows, summary.embedding, summary.features) == (24, 8, 0)


def test_formats_have_the_same_numbers_and_bad_rows_are_blank(chemistry: Any, tmp_path: Path) -> None:
    from pyarrow import parquet

    run, table_of, _ = chemistry
    source = tmp_path / "new.csv"
    source.write_text(f"{table_of.read_text()}B1,no,0,1\nB2,{'C' * 20},0,1\n")
    for name in ("v.csv", "v.npy", "v.parquet"):
        gcnbatch.embed(run, source, tmp_path / name, processes=1, backend="cpu")
    rows = table(tmp_path / "v.csv")
    assert list(rows[0])[:3] == ["id", "error", "e0"]
    assert rows[0]["id"] == "M0"
    vectors = np.load(tmp_path / "v.npy")
    np.testing.assert_array_equal(numbers(rows, r"e\d"), vectors)
    found = parquet.read_table(tmp_path / "v.parquet")
    np.testing.assert_array_equal(np.array(found["e3"].to_numpy(zero_copy_only=False), "f4"), vectors[:, 3])
    bad = [row for row in rows if row["error"]]
    assert [row["id"] for row in bad] == ["B1", "B2"]
    assert [row["e0"] for row in bad] == ["", ""]
    assert bad[1]["error"] == "20 atoms, more than 14"
    assert len(rows) == 42


def test_networks_of_several_runs_stand_side_by_side(trained: tuple[Path, Path], second: Path, tmp_path: Path) -> None:
    run, data = trained
    parts = []
    for name, runs in (("one", [run]), ("two", [second]), ("both", [run, second])):
        gcnbatch.embed(runs, data, tmp_path / f"{name}.npy", backend="cpu")
        parts.append(np.load(tmp_path / f"{name}.npy"))
    np.testing.assert_array_equal(np.concatenate(parts[:2], axis=1), parts[2])


def test_fingerprint_and_descriptors_are_those_of_the_data_set(described: Any, tmp_path: Path) -> None:
    run, _, data = described
    said = gcnbatch.embed(run, data, tmp_path / "all.csv", fingerprint=True, descriptors=True, backend="cpu")
    rows = table(tmp_path / "all.csv")
    with Dataset(data) as dataset:
        features, names = dataset.load().graph_features, dataset.header.graph_feature_names
    assert features is not None
    assert said.features == len(names) - 1  # without the user's own column
    assert list(rows[0])[-said.features :] == list(names[1:])
    found = np.array([[row[name] or "nan" for name in names[1:]] for row in rows], "f4")
    np.testing.assert_array_equal(found, features.dense()[:, 1:])


@pytest.mark.parametrize("asked", [{"fingerprint": True}, {"descriptors": True}])
def test_a_model_that_reads_no_molecules_has_no_fingerprint(
    asked: dict[str, bool], trained: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="expected a model of molecules"):
        gcnbatch.embed(*trained, tmp_path / "v.npy", **asked)


def test_what_cannot_be_embedded_is_refused(chemistry: Any, tmp_path: Path) -> None:
    run, _, data = chemistry
    nodes, settings = tmp_path / "nodes.h5", {"train.epochs": 1, "train.batch_size": 1, "backend": "cpu"}
    gcnbatch.write(nodes, build_graphset(1, level="node", n_channels=1, max_nodes=40, seed=2))
    kipf = {"model": {"kind": "kipf", "widths": [4]}}
    of_nodes = gcnbatch.train(kipf, nodes, settings=settings, out=tmp_path / "nodes")
    (tmp_path / "two.csv").write_text("smiles\nCCO\nCCN\n")
    with Dataset(data) as stored:
        whole = stored.load()
    gcnbatch.write(tmp_path / "unnamed.h5", replace(whole, smiles=None))
    for given, options, message in (
        ((of_nodes, nodes), {}, "predicts nodes of a graph; expected a model of graphs"),
        ((run, tmp_path / "unnamed.h5"), {"fingerprint": True}, "data without SMILES; expected molecules"),
        ((run, tmp_path / "two.csv"), {"map_file": tmp_path / "map.html"}, "--map: 2 rows; expected at least 3"),
    ):
        with pytest.raises(InputError, match=message):
            gcnbatch.embed(*given, tmp_path / "v.npy", **options)
        assert not (tmp_path / "v.npy").exists()


def test_an_unknown_ending_is_one_line(trained: tuple[Path, Path], tmp_path: Path) -> None:
    done = cli("embed", *trained, "-o", tmp_path / "v.txt", check=2)
    assert done.stderr == f"error: output {tmp_path / 'v.txt'}: unknown ending; expected .parquet or .npy or .csv\n"


@pytest.fixture(scope="module")
def page(chemistry: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run, source, _ = chemistry
    folder = tmp_path_factory.mktemp("map")
    done = cli("embed", run, source, "-o", folder / "v.npy", "--map", folder / "map.html", "--processes", 1)
    assert done.stdout == f"{folder / 'v.npy'}\n"
    return folder / "map.html"


@pytest.mark.slow
def test_the_map_has_a_point_and_a_drawing_for_each_molecule(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    rows = table(page.with_name("v.ids.csv"))
    assert re.findall(r"<title>(M\d+):", text) == [row["id"] for row in rows]
    assert text.count('aria-hidden="true"><path') == len(rows)
    options = re.findall("<option.*?>(.*?)</option>", text)
    assert options == ["even, target", "third, target", "error", "even, prediction", "third, prediction"]


def test_the_map_shows_molecules_by_keys_and_pointer_without_errors_and_requests(page: Path) -> None:
    with browser() as tab:
        for width in (380, 1200):
            for dark in (False, True):
                tab.open(page, width, dark)
                assert tab.errors == []
                assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
                assert tab.run(OVERFLOWING) == []
        name = "document.querySelector('#molecule strong').textContent"
        tab.run("document.getElementById('points').focus()")
        first = tab.run(name)
        assert first.startswith("M0: ")
        shown = {first}
        for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
            tab.run(f"place.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
            shown.add(tab.run(name))
        assert len(shown) > 1
        tab.run("points[4].dot.dispatchEvent(new PointerEvent('pointerenter'))")
        assert tab.run(f"{name} === points[4].label")
        assert tab.run("document.querySelectorAll('#molecule svg').length") == 1
        before = tab.run("points.map((point) => point.dot.getAttribute('fill')).join()")
        tab.run("colour.value = '2'; colour.dispatchEvent(new Event('input'))")
        assert tab.run("points.map((point) => point.dot.getAttribute('fill')).join()") != before


def test_a_map_of_many_rows_shows_some_of_them(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcnbatch.embedding.command.MOST_POINTS", 9)
    said: list[str] = []
    gcnbatch.embed(*trained, tmp_path / "v.npy", map_file=tmp_path / "map.html", backend="cpu", say=said.append)
    assert "the map shows 9 rows of 24, evenly drawn" in said
    assert (tmp_path / "map.html").read_text().count("<circle") == 9
