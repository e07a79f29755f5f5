"""Run folders that cannot resume: each is refused in one line and stays as it is."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.store import write_graphset
from gcnbatch.errors import InputError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import checkpoint, run
from tests.training.kills import THOROUGH, killed
from tests.training.runs import fit, write_set

pytestmark = pytest.mark.usefixtures("light")


@pytest.fixture
def stopped(tmp_path: Path, data: Path) -> Path:
    """Return the folder of a run that died in its second epoch."""
    assert killed(data, tmp_path / "stopped", THOROUGH, OpsRunner, "step", 6)
    return tmp_path / "stopped"


def refused(folder: Path, message: str) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=message):
        run.resume(folder, quiet=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_changed_data_is_refused(data: Path, stopped: Path) -> None:
    graphs = write_set(data)
    changed = graphs.x.copy()
    changed[3, 1] += 1
    write_graphset(data, replace(graphs, x=changed))
    refused(
        stopped, r"set\.h5: changed since the run began; expected the data of .*data\.sha256\. Restore it, or start"
    )
    write_graphset(data, graphs)
    run.resume(stopped, quiet=True)


def test_missing_data_is_refused(data: Path, stopped: Path) -> None:
    data.unlink()
    refused(stopped, r"set\.h5: no such file")


def test_changed_data_is_refused_between_folds(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "split.folds=2")
    assert killed(data, tmp_path / "run", assignments, OpsRunner, "step", 0)
    write_set(data, seed=1)
    refused(tmp_path / "run", r"changed since the run began")


def test_unreadable_metrics_are_refused(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").write_text("{", encoding="utf-8")
    refused(tmp_path / "run", r"metrics\.json: not JSON; expected the metrics of a finished run")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, r"not a run folder; expected a folder with config\.toml\. Start with 'gcnbatch train'")
    refused(tmp_path / "none", r"none: not a run folder")


def test_a_broken_configuration_names_its_file(stopped: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace("epochs = 3", "epochs = 0"), encoding="utf-8")
    refused(stopped, r"stopped/config\.toml: train\.epochs: 0; expected a whole number")


@pytest.mark.parametrize(
    ("assignment", "name"),
    [
        ("model.widths=[9]", "conv1.weight"),
        ("model.widths=[8, 8]", "conv2.weight"),
        ("train.optimizer=sgd", "sgd.velocity/conv1.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, data: Path, stopped: Path, assignment: str, name: str
) -> None:
    assert killed(data, tmp_path / "other", (*THOROUGH, assignment), OpsRunner, "step", 6)
    shutil.copy(stopped / "last.safetensors", tmp_path / "other" / "last.safetensors")
    refused(tmp_path / "other", rf"a checkpoint of another model \({name}\); expected the model of config\.toml")


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path, stopped: Path) -> None:
    write_set(tmp_path / "other.h5", seed=1)
    assert killed(tmp_path / "other.h5", tmp_path / "other", THOROUGH, OpsRunner, "step", 6)
    shutil.copy(stopped / "last.safetensors", tmp_path / "other" / "last.safetensors")
    refused(tmp_path / "other", r"last\.safetensors: written for other data; expected the data of .*other\.h5")


def test_resume_from_the_best_weights_is_refused(stopped: Path) -> None:
    shutil.copy(stopped / "best.safetensors", stopped / "last.safetensors")
    refused(stopped, r"last\.safetensors: written for other data")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("state/conv1.weight", np.nan, "state/conv1.weight: numbers that are not finite; expected finite numbers"),
        ("state/conv1.weight", 3e38, "state/conv1.weight: 3e+38; expected numbers up to 9.22337e+18"),
        ("best/output.bias", -np.inf, "best/output.bias: numbers that are not finite; expected finite numbers"),
        ("best/norm1.running_var", -1.0, "best/norm1.running_var: -1; expected no number below 0"),
        ("state/adam.v/conv1.weight", -1.0, "state/adam.v/conv1.weight: -1; expected no number below 0"),
        ("state/updates", -1, "state/updates: [-1]; expected 0 to 12"),
        ("state/updates", 2**60, f"state/updates: [{2**60}]; expected 0 to 12"),
    ],
)
def test_values_that_no_training_gives_are_refused(stopped: Path, name: str, value: float, message: str) -> None:
    path = stopped / "last.safetensors"
    whole = checkpoint.load(path)
    whole.arrays[name].flat[0] = value
    checkpoint.save(path, whole)
    refused(stopped, re.escape(f"last.safetensors: {message}"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("seconds", -1), ("seconds", 1e300), ("best_value", "x"), ("waited", -1), ("plateau", {"factor": 2})],
)
def test_a_position_that_no_training_has_is_refused(stopped: Path, key: str, value: object) -> None:
    path = stopped / "last.safetensors"
    whole = checkpoint.load(path)
    whole.about["position"][key] = value
    checkpoint.save(path, whole)
    refused(stopped, rf"last\.safetensors: '{key}.*; expected a checkpoint to go on from")


def test_a_damaged_checkpoint_is_refused(stopped: Path) -> None:
    content = bytearray((stopped / "last.safetensors").read_bytes())
    content[-1] ^= 1
    (stopped / "last.safetensors").write_bytes(content)
    refused(stopped, r"last\.safetensors: damaged checkpoint")


def test_a_run_may_resume_on_another_backend(stopped: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(
        config.read_text(encoding="utf-8").replace('backend = "cpu"', 'backend = "auto"'), encoding="utf-8"
    )
    assert run.resume(stopped, "cpu", quiet=True)["epochs"] == 3
