"""Inputs that `infer` refuses: the message names both sides, and no file is written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.api.run import Run
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.explanation.command import explain
from gcnbatch.inference import domain
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.training import checkpoint
from tests.builders import build_graphset
from tests.inference.runs import molecule_table, stored, train_on


def refused(runs: list[Path], data: Path, **options: object) -> str:
    out = data.parent / "never.csv"
    with pytest.raises(InputError) as caught:
        infer(runs, data, **{"out": str(out), "quiet": True, **options})  # type: ignore[arg-type]
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ({"level": "node"}, "level: node; expected graph, as in {run}"),
        ({"n_features": 5}, "number of features: 5; expected 4, as in {run}"),
        ({"n_channels": 3}, "channels: 3 (channel0, channel1, channel2); expected 2 (channel0, channel1), as in {run}"),
    ],
)
def test_data_of_another_shape_are_refused(tmp_path, trained, build, message) -> None:
    run = trained[0]
    data = stored(tmp_path / "other.h5", build_graphset(4, **build))
    text = refused([run], data)
    assert text == f"{data}: {message.format(run=run)}. Prepare the data as for the run."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_names": ("a", "b", "x", "d")}, "features: 'x' at place 3; expected 'c'"),
        ({"channel_names": ("channel0", "double")}, "channels: 'double' at place 2; expected 'channel1'"),
        ({"featurizer": {"self_loops": False}}, "featurizer, self_loops: False; expected True"),
        (
            {"featurizer": {"self_loops": True, "neutralize": True}},
            "featurizer, neutralize: True; expected False",
        ),
        ({"normalized": True}, "normalized edge weights: True; expected False"),
    ],
)
def test_data_with_another_meaning_are_refused(tmp_path, named, change, message) -> None:
    run, header = named
    graphs = build_graphset(4, target="multiclass")
    data = stored(tmp_path / "other.h5", replace(graphs, header=header.model_copy(update=change)))
    assert f"{data}: {message}, as in {run}" in refused([run], data)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Header]:
    """A run on stored weights whose data set has names for all features, channels, tasks and classes."""
    folder = tmp_path_factory.mktemp("named")
    graphs = build_graphset(20, target="multiclass")
    update = {"feature_names": ("a", "b", "c", "d"), "featurizer": {"self_loops": True}}
    header = graphs.header.model_copy(update=update)
    data = stored(folder / "data.h5", replace(graphs, header=header))
    return train_on(data, folder / "run", model={"adjacency": "stored"}), header


def test_an_ensemble_of_different_tasks_is_refused(tmp_path, trained, named) -> None:
    run, data = trained
    text = refused([run, named[0]], data)
    assert f"{named[0]}: target: multiclass; expected binary, as in {run}" in text
    assert text.endswith("Runs of an ensemble must be trained on alike data.")
    one = stored(tmp_path / "one.h5", build_graphset(20, n_tasks=1))
    text = refused([run, train_on(one, tmp_path / "one")], data)
    assert "tasks: 1 (task0); expected 2 (task0, task1)" in text


def test_folders_that_are_not_runs_are_refused(tmp_path, trained) -> None:
    run, data = trained
    assert "no best.safetensors in it; expected the folder of a run" in refused([tmp_path], data)
    (tmp_path / "config.toml").touch()
    assert refused([tmp_path], data) == (
        f"{tmp_path}: no best.safetensors in it: the run was stopped before it wrote one. "
        f"Go on with: gcnbatch train --resume {tmp_path}"
    )
    (tmp_path / "study.json").touch()
    assert f"It is a study: train its best configuration with 'gcnbatch train {tmp_path}/b" in refused([tmp_path], data)
    assert f"{tmp_path / 'nowhere'}: no such folder" in refused([tmp_path / "nowhere"], data)
    assert f"{data}: not a folder" in refused([data], data)
    assert f"{run}: given twice" in refused([run, run], data)


def test_weights_that_contradict_their_description_are_refused(tmp_path, trained) -> None:
    run, data = trained
    whole = checkpoint.load(run / "best.safetensors")
    folder = tmp_path / "run"
    folder.mkdir()

    def altered(arrays: dict, about: dict) -> str:
        checkpoint.save(folder / "best.safetensors", checkpoint.Checkpoint(arrays, about))
        return refused([folder], data)

    name = "conv1.weight"
    assert f"{name}: float32 (2, 2); expected float32 (4, 16)" in altered(
        {**whole.arrays, name: np.zeros((2, 2), np.float32)}, whole.about
    )
    without = {key: value for key, value in whole.arrays.items() if key != name}
    assert f"{name}: missing; expected float32" in altered(without, whole.about)
    told = "'model': {'kind': 'other'}, not an object whose 'kind' is one of 'chemgcn', 'kipf'; expected the best."
    assert told in altered(whole.arrays, {**whole.about, "model": {"kind": "other"}})
    scaling = {"mean": [0.0], "std": [1.0, 1.0]}
    assert "scaling: (1, 2) outputs; expected 2 each" in altered(whole.arrays, {**whole.about, "scaling": scaling})


PREDICT = {
    "infer": lambda run, trained, place: infer([run], trained[1], str(place / "p.csv"), quiet=True),
    "an ensemble": lambda run, trained, place: infer([trained[0], run], trained[1], str(place / "p.csv"), quiet=True),
    "Run.predict": lambda run, trained, place: Run.load(run).predict(trained[1]),
}
LOAD = PREDICT | {
    "explain": lambda run, trained, place: explain([run], trained[1], place / "explained", quiet=True),
    "Run.explain": lambda run, trained, place: Run.load(run).explain(trained[1]),
    "applicability": lambda run, trained, place: domain.add_to_run(run, BackendChoice("cpu")),
}
WRONG_WEIGHTS = [
    ("output.weight", 0, np.nan, "output.weight: numbers that are not finite; expected finite numbers"),
    ("conv1.weight", 5, 3e38, "conv1.weight: 3e+38; expected numbers up to 9.22337e+18"),
    ("norm1.running_var", 1, -2, "norm1.running_var: -2; expected no number below 0"),
]
WRONG_SCORES = [
    ("scores", -1, np.inf, "scores: numbers that are not finite; expected finite numbers"),
    ("scores", 0, -1, "scores: -1 to "),
]
WRONG = [
    *((load, "best.safetensors", *wrong) for load in LOAD for wrong in WRONG_WEIGHTS),
    *((load, "uncertainty.safetensors", *wrong) for load in PREDICT for wrong in WRONG_SCORES),
]


@pytest.mark.parametrize(("load", "file", "name", "at", "value", "message"), WRONG)
def test_values_that_no_training_gives_are_refused_wherever_a_run_is_loaded(
    tmp_path, trained, load, file, name, at, value, message
) -> None:
    shutil.copytree(trained[0], tmp_path / "run")
    path = tmp_path / "run" / file
    whole = checkpoint.load(path)
    whole.arrays[name].flat[at] = value
    checkpoint.save(path, whole)
    with pytest.raises(InputError) as caught:
        LOAD[load](tmp_path / "run", trained, tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("mean", "nan", "'nan', not a number"),
        ("std", 0.0, "0.0, not above 0"),
        ("std", -1.0, "-1.0, not above 0"),
        ("mean", "inf", "'inf', not a number"),
        ("std", True, "True, not a number"),
    ],
)
def test_a_scaling_that_no_training_gives_is_refused(tmp_path, trained, key, value, what) -> None:
    shutil.copytree(trained[0], tmp_path / "run")
    whole = checkpoint.load(tmp_path / "run" / "best.safetensors")
    whole.about["scaling"][key][1] = value
    checkpoint.save(tmp_path / "run" / "best.safetensors", whole)
    assert f"best.safetensors: 'scaling.{key}.1': {what}; expected" in refused([tmp_path / "run"], trained[1])


def test_unknown_endings_of_outputs_and_inputs_are_refused(tmp_path, trained) -> None:
    run, data = trained
    assert "output x.txt: unknown ending; expected .csv, .jsonl, .h5" in refused([run], data, out="x.txt")
    assert "the same file as the input" in refused([run], data, out=str(data))
    assert "unknown ending; expected .h5, .hdf5, .csv, .tsv, .txt, .smi" in refused([run], tmp_path / "data.doc")


def test_molecules_are_refused_if_the_run_was_not_trained_on_smiles(tmp_path, trained) -> None:
    table = molecule_table(tmp_path / "new.csv", 3)
    text = refused([trained[0]], table)
    assert f"expected an HDF5 data set, as {trained[0]} was not trained on a set made from SMILES" in text


def test_csv_tables_that_cannot_be_read_are_refused(tmp_path, chemistry) -> None:
    run = chemistry[0]
    table = tmp_path / "new.csv"
    table.write_text("structure\n")
    assert "no row below the header line" in refused([run], table)
    table.write_text("name\nC\n")
    assert "--smiles-column" in refused([run], table)
    assert "no column 'x'" in refused([run], table, csv=CsvOptions(smiles_column="x"))


def test_on_bad_row_fail_stops_at_a_bad_molecule(tmp_path, chemistry) -> None:
    table = tmp_path / "new.csv"
    table.write_text("mol_id,structure\na,C\nb,C(\n")
    assert refused([chemistry[0]], table, on_bad_row="fail") == (
        "row 2, id b: not valid SMILES. Fix the row, or keep such rows blank with --on-bad-row keep."
    )
