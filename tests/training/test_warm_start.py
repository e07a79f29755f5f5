"""Fine-tuning: a run that starts from the weights of another, with frozen layers or without."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.errors import InputError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from gcnbatch.training.checkpoint import load, save
from tests.training.kills import killed
from tests.training.runs import assert_same_run, configure, fit, lighten, write_set

pytestmark = pytest.mark.usefixtures("light")

MODEL = ("model.widths=[8,6]", "train.epochs=2", "model.dropout=0.2")
FIRST = {"conv1.weight", "conv1.bias", "norm1.gamma", "norm1.beta", "norm1.running_mean", "norm1.running_var"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trained run, beside its data and data with other tasks."""
    folder = tmp_path_factory.mktemp("source")
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        write_set(folder / "set.h5")
        write_set(folder / "tasks.h5", n_tasks=1, seed=3)
        fit(folder / "set.h5", folder / "run", *MODEL)
    return folder / "run"


def tune(source: Path, folder: Path, *assignments: str, data: str = "tasks.h5") -> list[str]:
    """Fine-tune on the data with other tasks; return the messages."""
    said: list[str] = []
    given = (*MODEL, f"data.path={source.parent / data}", f"train.from_run={source}", *assignments)
    run.start(configure(*given), folder, quiet=True, say=said.append)
    return said


def arrays(folder: Path, group: str = "") -> dict[str, Any]:
    found = load(folder / ("last.safetensors" if group else "best.safetensors"))
    return found.group(group) if group else found.arrays


def test_frozen_layers_keep_their_bits_and_the_others_learn(tmp_path: Path, source: Path) -> None:
    said = tune(source, tmp_path / "run", "train.freeze=conv1", "train.weight_decay=0.1", "train.clip_norm=1")
    before, after = arrays(source), arrays(tmp_path / "run", "state")
    for name in FIRST:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    for name in before.keys() - FIRST:
        assert not np.array_equal(after[name], before[name]), name
    assert said[0] == f"weights from {source}: conv1, norm1, conv2, norm2; new: output; frozen: conv1, norm1"


def test_with_equal_tasks_the_head_is_taken_too(tmp_path: Path, source: Path) -> None:
    said = tune(source, tmp_path / "run", "train.learning_rate=1e-30", "train.epochs=1", data="set.h5")
    assert said == [f"weights from {source}: conv1, norm1, conv2, norm2, output; new: none"]
    before, after = arrays(source), arrays(tmp_path / "run", "state")
    np.testing.assert_array_equal(after["output.weight"], before["output.weight"])


def test_a_layer_of_another_shape_is_new(tmp_path: Path, source: Path) -> None:
    said = tune(source, tmp_path / "run", "model.widths=[8,5]", "train.epochs=1", data="set.h5")
    assert said == [f"weights from {source}: conv1, norm1; new: conv2, norm2, output"]


def test_the_model_is_that_of_the_run_but_for_chosen_keys(tmp_path: Path, source: Path) -> None:
    said: list[str] = []

    def model_of(name: str, tree: dict[str, Any], **settings: Any) -> Any:
        given = {"train.epochs": 1, **{f"model.{key}": value for key, value in settings.items()}}
        data, out = source.parent / "tasks.h5", tmp_path / name
        run = gcnbatch.train({"model": tree}, data, from_run=source, settings=given, out=out, say=said.append)
        return run.config.model

    known = gcnbatch.Run(source).config.model
    assert model_of("none", {}) == known
    assert model_of("same", {"widths": [8, 6], "readout": known.readout[0]}) == known
    assert not any("not used" in line for line in said)
    changed = model_of("file", {"widths": [5], "head": [3], "dropout": 0.4})
    assert changed == known.model_copy(update={"dropout": 0.4})
    expected = f"the model is that of {source}; not used: model.widths, model.head of the configuration (--set changes"
    assert sum(line.startswith(expected) for line in said) == 1
    assert model_of("set", {"widths": [5]}, widths=[8, 9]) == known.model_copy(update={"widths": (8, 9)})
    with pytest.raises(InputError, match=r"model\.width: unknown key"):
        model_of("never", {"width": [5]})


def test_without_data_there_is_nothing_to_start_with(source: Path) -> None:
    with pytest.raises(InputError, match=r"^data\.path: empty; expected a data set\. Give --data FILE\.h5"):
        gcnbatch.train(from_run=source)


@pytest.mark.parametrize("freeze", ["", "all-conv"])
def test_a_killed_run_goes_on_from_the_kept_weights(tmp_path: Path, source: Path, freeze: str) -> None:
    data = source.parent / "tasks.h5"
    given = (*MODEL, f"train.from_run={tmp_path / 'moved'}", f"train.freeze={freeze}", "train.ensemble=2")
    (tmp_path / "moved").symlink_to(source)
    fit(data, tmp_path / "whole", *given)
    assert killed(data, tmp_path / "run", given, OpsRunner, "step", 6)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(source), str(tmp_path / "gone")), encoding="utf-8")
    run.resume(tmp_path / "run", quiet=True)
    for member in ("model1", "model2"):
        assert_same_run(tmp_path / "whole" / member, tmp_path / "run" / member)
    frozen, before = arrays(tmp_path / "run" / "model2"), arrays(source)
    assert np.array_equal(frozen["conv2.weight"], before["conv2.weight"]) == bool(freeze)


@pytest.mark.slow
def test_processes_start_from_the_kept_weights(tmp_path: Path, source: Path) -> None:
    for jobs in (1, 2):
        tune(source, tmp_path / f"jobs{jobs}", "train.ensemble=2", "train.freeze=conv1", f"jobs={jobs}")
    for member in ("model1", "model2"):
        assert_same_run(tmp_path / "jobs1" / member, tmp_path / "jobs2" / member)


def test_resume_without_the_kept_weights_is_refused(tmp_path: Path, source: Path) -> None:
    given = (*MODEL, f"train.from_run={source}")
    assert killed(source.parent / "tasks.h5", tmp_path / "run", given, OpsRunner, "step", 3)
    (tmp_path / "run" / "initial.safetensors").unlink()
    with pytest.raises(InputError, match=r"initial\.safetensors: missing; expected the weights that the run began"):
        run.resume(tmp_path / "run", quiet=True)


@pytest.mark.parametrize("value", [np.nan, 3e38])
def test_weights_that_no_training_gives_are_refused(tmp_path: Path, source: Path, value: float) -> None:
    given = (*MODEL, f"train.from_run={source}")
    assert killed(source.parent / "tasks.h5", tmp_path / "run", given, OpsRunner, "step", 3)
    shutil.copytree(source, tmp_path / "source")
    for path in (tmp_path / "run" / "initial.safetensors", tmp_path / "source" / "best.safetensors"):
        whole = load(path)
        whole.arrays["conv2.weight"].flat[3] = value
        save(path, whole)
    with pytest.raises(
        InputError, match=r"initial\.safetensors: conv2\.weight: (numbers that are not fi|3e\+38; expec)"
    ):
        run.resume(tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match=r"best\.safetensors: conv2\.weight: (numbers that are not fi|3e\+38; expec)"):
        tune(tmp_path / "source", tmp_path / "again", f"data.path={source.parent / 'set.h5'}")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["train.freeze=conv9"], "train.freeze: 'conv9'; expected a layer of the model. Did you mean 'conv2'?"),
        (["train.freeze=conv2"], "train.freeze: conv2; expected the first layers; conv1 comes before one of them"),
        (["train.freeze=all-conv,output"], "train.freeze: every layer; expected fewer: nothing would be trained"),
        (
            ["train.freeze=conv1,conv2", "model.widths=[8,5]"],
            "train.freeze: conv1, conv2; that run has no conv2 of this shape; expected layers with its weights",
        ),
        (
            ["model.widths=[3,4]"],
            "train.from_run: no layer of that run has the shapes of this model; expected a model like that one",
        ),
        (["model.adjacency=stored"], "model.adjacency: 'stored'; expected 'symmetric', as in RUN"),
        (["train.from_run=none"], "PWD/none: no such folder; expected the folder of a run. Make one with"),
    ],
)
def test_what_cannot_start_from_the_run_is_refused(
    tmp_path: Path, source: Path, assignments: list[str], message: str
) -> None:
    with pytest.raises(InputError) as error:
        tune(source, tmp_path / "run", *assignments)
    assert str(error.value).startswith(message.replace("RUN", str(source)).replace("PWD", str(Path.cwd())))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n_features": 5}, "number of features: 5; expected"), ({"n_channels": 3}, "channels: 3 (channel0")],
)
def test_a_run_of_other_inputs_is_refused(tmp_path: Path, source: Path, options: dict[str, int], message: str) -> None:
    write_set(tmp_path / "other.h5", **options)
    with pytest.raises(InputError, match="^" + re.escape(f"--from: {message}")) as error:
        tune(source, tmp_path / "run", f"data.path={tmp_path / 'other.h5'}")
    assert str(error.value).endswith(f"as in {source}. Import the data as for that run.")


def test_a_run_of_several_models_is_refused(tmp_path: Path, source: Path) -> None:
    tune(source, tmp_path / "two", "train.ensemble=2", "train.epochs=1")
    with pytest.raises(InputError) as error:
        tune(tmp_path / "two", tmp_path / "run", f"data.path={source.parent / 'set.h5'}")
    first = tmp_path / "two" / "model1"
    assert str(error.value) == (
        f"{tmp_path / 'two'}: 2 models in it; expected the folder of one model. Choose one, such as {first}."
    )


def test_frozen_layers_need_a_run() -> None:
    with pytest.raises(InputError, match=r"train: freeze = conv1 needs from_run, the run whose weights are kept"):
        configure("train.freeze=conv1")
