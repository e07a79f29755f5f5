"""The applicability domain: similarity and embedding distance to training molecules, and errors against them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.similarity import KnownMolecules
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.inference import domain
from gcnbatch.inference.domain import embedder
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.models import load_models
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.training.checkpoint import load
from tests.builders import build_graphset
from tests.inference.runs import import_table, molecule_table, numbers, read_rows, stored, train_on
from tests.training.runs import write_set

COLUMNS = ["nearest_similarity", "embedding_distance"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of molecules, its data set, a run and a run with folds on it."""
    place = tmp_path_factory.mktemp("domain")
    data = import_table(molecule_table(place / "m.csv"), place / "m.h5", FeaturizerOptions())
    train_on(data, place / "run")
    train_on(data, place / "folds", split={"folds": 2})
    return place


def test_similarity_is_1_for_a_known_molecule_and_falls_with_the_difference() -> None:
    known = KnownMolecules(["CCO", "c1ccccc1O"], FeaturizerOptions())
    found = known.nearest(["OCC", "CCCO", "[U]", "C("])
    assert found[0] == 1
    assert 0 < found[1] < 1
    assert found[2] == 0
    assert np.isnan(found[3])
    assert known.neighbours("Oc1ccccc1", 5) == [(1, 1.0), (0, pytest.approx(0.0, abs=0.2))]
    assert known.neighbours("Oc1ccccc1", 1) == [(1, 1.0)]
    assert known.neighbours("C(", 1) == []
    salt = KnownMolecules(["CCO"], FeaturizerOptions(largest_fragment=True)).nearest(["CCO.Cl"])
    assert salt[0] == 1


@pytest.mark.numerical(bound="one product from one state")
def test_the_embedding_is_what_enters_the_output_layer(folder: Path) -> None:
    (member,) = load_models([folder / "run"], print)
    choice = BackendChoice("cpu")
    with Dataset(folder / "m.h5") as dataset:
        source = BatchSource(dataset.load(), member.adjacency)
        embedded = embedder(member).outputs(choice, source)
        outputs = member.outputs(choice, source)
    weights = load(folder / "run" / "best.safetensors").arrays
    logits = embedded @ weights["output.weight"] + weights["output.bias"]
    np.testing.assert_allclose(1 / (1 + np.exp(-logits.astype(np.float64))), outputs, rtol=1e-4)


@pytest.mark.parametrize("data", ["m.csv", "m.h5"])
def test_training_rows_are_near_themselves_and_a_strange_molecule_is_far(
    folder: Path, tmp_path: Path, data: str
) -> None:
    infer([folder / "run"], folder / data, str(tmp_path / "p.csv"), backend="cpu", applicability=True, quiet=True)
    rows = read_rows(tmp_path / "p.csv")
    found = numbers(rows, COLUMNS)
    train = json.loads((folder / "run" / "splits.json").read_text())["train"]
    assert (found[train, 0] == 1).all()
    np.testing.assert_allclose(found[train, 1], 0, atol=1e-3)
    (tmp_path / "new.csv").write_text("structure\nFC(F)(F)S(=O)(=O)N1CC2(CC1)OP(=O)(O)O2\nx\n")
    infer(
        [folder / "run"], tmp_path / "new.csv", str(tmp_path / "n.csv"), backend="cpu", applicability=True, quiet=True
    )
    strange, unreadable = read_rows(tmp_path / "n.csv").values()
    assert float(strange["nearest_similarity"]) < 0.3
    assert float(strange["embedding_distance"]) > 1
    assert [unreadable[name] for name in COLUMNS] == ["", ""]


def test_folds_together_know_the_training_rows_of_each(folder: Path, tmp_path: Path) -> None:
    infer([folder / "folds"], folder / "m.h5", str(tmp_path / "p.csv"), backend="cpu", applicability=True, quiet=True)
    similarity = numbers(read_rows(tmp_path / "p.csv"), COLUMNS)[:, 0]
    splits = [json.loads((folder / "folds" / f"fold{k}" / "splits.json").read_text()) for k in (1, 2)]
    assert (similarity[np.union1d(splits[0]["train"], splits[1]["train"])] == 1).all()


def test_without_smiles_there_is_the_embedding_distance_alone(tmp_path: Path) -> None:
    write_set(tmp_path / "x.h5")
    run = train_on(tmp_path / "x.h5", tmp_path / "run")
    infer([run], tmp_path / "x.h5", str(tmp_path / "p.csv"), backend="cpu", applicability=True, quiet=True)
    assert COLUMNS[1] in (names := next(iter(read_rows(tmp_path / "p.csv").values())))
    assert COLUMNS[0] not in names


@pytest.mark.parametrize("run", ["run", "folds"])
def test_a_report_has_each_test_rows_error_and_the_figures_of_fifths(folder: Path, run: str) -> None:
    metrics = domain.add_to_run(folder / run, BackendChoice("cpu"))
    assert metrics == json.loads((folder / run / "metrics.json").read_text())
    with (folder / run / "applicability.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    predictions = read_rows(folder / run / "predictions.csv")
    assert {row["id"] for row in rows} == set(predictions)
    first = int(rows[0]["id"].removeprefix("M"))
    p = [float(predictions[rows[0]["id"]][name]) for name in ("even", "third")]
    expected = np.mean([abs(p[0] - first % 2), abs(p[1] - first % 3 % 2)])
    assert float(rows[0]["error"]) == pytest.approx(expected, rel=1e-5)
    for name in COLUMNS:
        found = metrics["applicability"][name]
        assert sum(one["rows"] for one in found["bins"]) == len(rows)
        assert -1 <= found["spearman"] <= 1
    assert (folder / run / "applicability.png").stat().st_size > 5000


def test_errors_of_classes_and_values_have_the_documented_scale() -> None:
    rows = np.array([0, 1])
    classes = build_graphset(2, target="multiclass").header
    p = np.array([[0.2, 0.3, 0.5], [1, 0, 0]], np.float32)
    np.testing.assert_allclose(domain.errors_of(classes, np.array([[2], [-1]]), rows, p), [0.5, np.nan])
    values = build_graphset(2, target="regression").header
    y = np.array([[0.0, 100.0], [2.0, np.nan], [0.0, 300.0], [2.0, 300.0]], np.float32)
    outputs = np.array([[1.0, 100.0], [2.5, 7.0]], np.float32)
    np.testing.assert_allclose(domain.errors_of(values, y, rows, outputs), [0.5, 0.5])


def test_nodes_and_changed_data_are_refused(folder: Path, tmp_path: Path) -> None:
    nodes = stored(tmp_path / "n.h5", build_graphset(20, level="node", seed=5))
    run = train_on(nodes, tmp_path / "nodes")
    with pytest.raises(InputError, match=r"--applicability: .*nodes predicts nodes; expected a model of graphs"):
        infer([run], nodes, str(tmp_path / "p.csv"), backend="cpu", applicability=True, quiet=True)
    write_set(tmp_path / "x.h5")
    run = train_on(tmp_path / "x.h5", tmp_path / "run")
    write_set(tmp_path / "x.h5", 30)
    with pytest.raises(InputError, match=r"x\.h5: changed since the run; expected the data of"):
        infer([run], tmp_path / "x.h5", str(tmp_path / "p.csv"), backend="cpu", applicability=True, quiet=True)
    run = train_on(tmp_path / "x.h5", tmp_path / "untested", split={"test": 0.0})
    with pytest.raises(InputError, match=r"untested: no test rows; expected some"):
        domain.add_to_run(run, BackendChoice("cpu"))
