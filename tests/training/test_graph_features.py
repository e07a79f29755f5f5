"""Features of whole graphs in training: their scaling, its place in the run, resuming and folds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.graph_features import FeatureScaling, FeatureTable
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.training import mixed, run
from gcnbatch.training.checkpoint import load
from gcnbatch.training.finished import read_split
from tests.builders import build_graphset
from tests.data.file_changes import store_counts_densely
from tests.training.runs import assert_same_run, fit, write_set

NAN = np.nan
pytestmark = pytest.mark.usefixtures("light")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "data.h5"
    write_set(path, graph_features=5, n_counts=2)
    return path


def test_scaling_by_hand_leaves_out_missing_values_constants_and_counts() -> None:
    rows = np.array([[1, 7, NAN, 4e30], [3, 7, NAN, 0], [NAN, 7, NAN, 2e30]], np.float32)
    found = FeatureScaling.of(lambda: iter((rows[:2], rows[2:])), 1)
    np.testing.assert_allclose(found.mean, [2, 7, 0, 2e30, 0], rtol=1e-6)
    np.testing.assert_allclose(found.scale, [1, 0, 0, 1.5**0.5 / 2e30, 1], rtol=1e-6)
    assert found.mean.dtype == found.scale.dtype == np.float32


def test_the_run_keeps_the_scaling_of_its_training_rows(data: Path, tmp_path: Path) -> None:
    fit(data, tmp_path / "run", "split.seed=3")
    split = read_split(tmp_path / "run" / "splits.json")
    values = build_graphset(40, missing=0.1, max_nodes=6, graph_features=5, n_counts=2).graph_features
    assert values is not None
    expected = FeatureScaling.of(lambda: [values.measured[np.sort(split.train)]], 2)
    for name in ("best", "last"):
        arrays = load(tmp_path / "run" / f"{name}.safetensors").arrays
        prefix = "" if name == "best" else "state/"
        np.testing.assert_array_equal(arrays[f"{prefix}features.mean"], expected.mean)
        np.testing.assert_array_equal(arrays[f"{prefix}features.scale"], expected.scale)
    everything = FeatureScaling.of(lambda: [values.measured], 2)
    assert not np.array_equal(everything.mean, expected.mean)


def test_counts_in_memory_in_a_file_and_in_an_older_file_give_the_same_bits(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "older.h5"
    older.write_bytes(data.read_bytes())
    store_counts_densely(older)
    fit(data, tmp_path / "memory")
    fit(older, tmp_path / "older")
    monkeypatch.setattr(Dataset, "fits_in_memory", property(lambda dataset: False))
    fit(data, tmp_path / "file")
    fit(older, tmp_path / "older file")
    expected = load(tmp_path / "memory" / "best.safetensors").arrays
    for name in ("older", "file", "older file"):
        found = load(tmp_path / name / "best.safetensors").arrays
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected), name


def test_a_resumed_run_ends_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    fit(data, tmp_path / "whole", "model.head=[4]")
    fit(data, tmp_path / "parts", "model.head=[4]", "train.epochs=1")
    run.resume(tmp_path / "parts", epochs=3, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_features_matter_and_can_be_left_out(data: Path, tmp_path: Path) -> None:
    wide = tmp_path / "plain.h5"
    write_set(wide)
    shapes = {}
    for name, option in (("on", "on"), ("off", "off"), ("auto", "auto")):
        fit(data, tmp_path / name, f"model.graph_features={option}", "train.epochs=1")
        shapes[name] = load(tmp_path / name / "best.safetensors").arrays["output.weight"].shape
    assert shapes == {"on": (13, 2), "off": (8, 2), "auto": (13, 2)}
    fit(wide, tmp_path / "plain", "train.epochs=1")
    assert load(tmp_path / "plain" / "best.safetensors").arrays["output.weight"].shape == (8, 2)
    with pytest.raises(InputError, match=r"^model\.graph_features: 'on' for a data set without .*--desc"):
        fit(wide, tmp_path / "none", "model.graph_features=on")


NAMES = ("own", "morgan2=0", "morgan2=1", "morgan2=2", "atompair=0", "atompair=1")


def test_a_network_reads_the_first_fingerprint_alone(tmp_path: Path) -> None:
    graphs = build_graphset(40, missing=0.1, max_nodes=6, graph_features=6, n_counts=5)
    assert graphs.graph_features is not None
    for name, columns in (("one", 4), ("both", 6)):
        about = {"graph_feature_names": NAMES[:columns], "graph_feature_counts": columns - 1}
        header, features = graphs.header.model_copy(update=about), graphs.graph_features.dense()[:, :columns]
        write_graphset(tmp_path / f"{name}.h5", replace(graphs, header=header, graph_features=features))
        fit(tmp_path / f"{name}.h5", tmp_path / name, "train.epochs=2")
    one, both = (load(tmp_path / name / "best.safetensors").arrays for name in ("one", "both"))
    assert both["output.weight"].shape == (8 + 4, 2)
    for name, values in one.items():
        np.testing.assert_array_equal(both[name], values)


@pytest.mark.parametrize(("columns", "sizes"), [(6, [3, 2]), (4, [3])])
def test_a_mixture_reads_each_fingerprint(columns: int, sizes: list[int]) -> None:
    about = {"graph_feature_names": NAMES[:columns], "graph_feature_counts": columns - 1}
    header = build_graphset().header.model_copy(update=about)
    features = np.arange(2 * columns, dtype=np.float32).reshape(2, columns)
    found = mixed.molecules(header, [FeatureTable.of(rows, columns - 1) for rows in (features[:1], features[1:])])
    assert [of.shape[1] for of in found.counts] == sizes
    np.testing.assert_array_equal(found.descriptors, features[:, :1])
    np.testing.assert_array_equal(np.hstack([of.toarray() for of in found.counts]), features[:, 1:])


def test_each_fold_has_its_own_scaling(data: Path, tmp_path: Path) -> None:
    fit(data, tmp_path / "run", "split.folds=2", "train.epochs=1")
    means = [load(tmp_path / "run" / fold / "best.safetensors").arrays["features.mean"] for fold in ("fold1", "fold2")]
    assert not np.array_equal(*means)
