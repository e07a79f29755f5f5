"""The training loop: learning, early stop, best weights, and unusual data sets and metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch import metrics as figures
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.store import write_graphset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.run_report.writer import beside_training
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import fit as member
from gcnbatch.training import fits, loop
from gcnbatch.training.checkpoint import load
from gcnbatch.training.fit_files import FitFiles
from gcnbatch.training.reports import ReportWriter
from tests.builders import build_graphset
from tests.training.runs import assert_same_weights, fit, history

pytestmark = pytest.mark.usefixtures("light")

EVERYTHING_TRAINS = ("split.valid=0", "split.test=0")


def save(path: Path, graphs: GraphSet) -> Path:
    write_graphset(path / "set.h5", graphs)
    return path / "set.h5"


def with_nodes(count: int, **options: Any) -> GraphSet:
    """Return graphs without empty ones, so no two are equal."""
    graphs = build_graphset(2 * count, **{"missing": 0.0, **options})
    return graphs.take(np.flatnonzero(np.diff(graphs.node_ptr))[:count])


# ------------------------------------------------------------------------------------------------ it learns


def test_the_next_epochs_batches_are_announced_and_predictions_made_before_the_loss_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expect` gets the batches of the next `begin_epoch` after the last step, before `take_losses`; not at the end.

    A device then computes the predictions right after the last step.
    """
    seen: list[Any] = []

    def tell(name: str) -> None:
        method: Any = getattr(OpsRunner, name)

        def logged(self: Any, *given: Any) -> Any:
            seen.append((name, *(value for value in given if isinstance(value, list))))
            return method(self, *given)

        monkeypatch.setattr(OpsRunner, name, logged)

    for name in ("begin_epoch", "expect", "step", "predict", "take_losses"):
        tell(name)
    keys = (*EVERYTHING_TRAINS, "split.valid=0.1", "train.epochs=3", "train.batch_size=8")
    fit(save(tmp_path, with_nodes(20)), tmp_path / "run", *keys)
    names = [name for name, *_ in seen]
    epoch = ["begin_epoch", "step", "step", "step"]
    end, parts = ["predict", "take_losses"], ["predict"] * 2  # of training and validation rows with the best weights
    assert names == [*epoch, "expect", *end, *epoch, "expect", *end, *epoch, *end, *parts]
    begun = [batches for name, *batches in seen if name == "begin_epoch"]
    for (expected,), (found,) in zip((batches for name, *batches in seen if name == "expect"), begun[1:], strict=True):
        assert expected[0] is found[0].batches


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_a_model_overfits_twenty_graphs(tmp_path: Path, target: str) -> None:
    data = save(tmp_path, with_nodes(20, target=target, missing=0.2 if target == "binary" else 0.0))
    found = fit(
        data,
        tmp_path / "run",
        *EVERYTHING_TRAINS,
        "model.widths=[32, 32]",
        "model.head=[32]",
        "train.batch_size=20",
        "train.epochs=150",
        "train.learning_rate=0.02",
    )["train"]
    assert history(tmp_path / "run")[-1]["train_loss"] < 0.01
    if target == "regression":
        assert found["r2"] > 0.99
    else:
        assert found["accuracy"] == 1.0


def test_a_model_overfits_the_nodes_of_several_graphs(tmp_path: Path) -> None:
    graphs = build_graphset(4, level="node", target="multiclass", max_nodes=8, n_features=8, missing=0.2)
    found = fit(
        save(tmp_path, graphs),
        tmp_path / "run",
        *EVERYTHING_TRAINS,
        "model.kind=kipf",
        "model.dropout=0",
        "model.widths=[64]",
        "train.batch_size=4",
        "train.epochs=300",
        "train.learning_rate=0.05",
    )
    assert found["train"]["accuracy"] > 0.8
    assert found["train"]["labelled"] == np.count_nonzero(graphs.y >= 0)


@pytest.mark.parametrize("features", ["uint8", "int8", "float16", "csr"])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_every_kind_of_features_trains(tmp_path: Path, features: str, level: str) -> None:
    graphs = build_graphset(30, level=level, features=features, missing=0.1, weights=True)  # type: ignore[arg-type]
    found = fit(save(tmp_path, graphs), tmp_path / "run", "model.dropout=0.2", "model.dense=[4]")
    assert np.isfinite(found["train"]["accuracy"])
    assert history(tmp_path / "run")[-1]["train_loss"] < history(tmp_path / "run")[0]["train_loss"]


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_every_batch_size_trains_with_graphs_without_nodes_or_edges(tmp_path: Path, batch_size: int) -> None:
    graphs = build_graphset(24, max_nodes=2, edges_per_node=0, missing=0.3)
    found = fit(save(tmp_path, graphs), tmp_path / "run", f"train.batch_size={batch_size}", "model.readout=max")
    assert found["epochs"] == 3


def test_graphs_without_any_node_train_the_output_bias(tmp_path: Path) -> None:
    graphs = build_graphset(30, max_nodes=0, missing=0.0)
    fit(save(tmp_path, graphs), tmp_path / "run", *EVERYTHING_TRAINS, "train.epochs=1")
    arrays = load(tmp_path / "run" / "best.safetensors").arrays
    assert np.all(arrays["output.bias"] != 0)
    assert not np.any(arrays["conv1.bias"])


def test_unlabelled_graphs_do_not_train(tmp_path: Path) -> None:
    graphs = with_nodes(20)
    y = graphs.y.copy()
    y[3:] = np.nan
    other = graphs.x.copy()
    other[graphs.node_ptr[3] :] *= -2
    options = (*EVERYTHING_TRAINS, "train.batch_size=1", "model.norm=none", "train.optimizer=sgd")
    for name, x in (("a", graphs.x), ("b", other)):
        fit(save(tmp_path, replace(graphs, y=y, x=x)), tmp_path / name, *options)
    assert_same_weights(tmp_path / "a", tmp_path / "b")


# ------------------------------------------------------------------------------------------------ the best epoch


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float | None]) -> None:
    """Let validation return these values, epoch by epoch."""
    each = iter(values)
    monkeypatch.setattr(figures, "scores", lambda *about: [next(each)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save(tmp_path, build_graphset(40, missing=0.1))


@pytest.mark.parametrize(
    ("values", "assignments", "best", "epochs"),
    [
        ([0.5, 0.7, 0.6, 0.7, 0.69], [], 2, 5),  # of equals the first
        ([0.5, 0.7, 0.6, 0.7, 0.8], ["train.patience=2"], 2, 4),
        ([0.5, 0.7, 0.6, 0.71, 0.8], ["train.patience=2"], 5, 5),
        ([0.5, 0.55, 0.58, 0.65, 0.7], ["train.min_delta=0.1"], 4, 5),
        ([0.5, 0.55, 0.58, 0.65, 0.7], ["train.min_delta=0.1", "train.patience=2"], 1, 3),
        ([None, 0.2, None, 0.1, None], [], 2, 5),  # an undefined value is never better than a defined one
        ([None, None, None, None, None], ["train.patience=1"], 5, 5),  # without any value, the last weights
        ([-0.1, -0.2, 0.0, -0.3, -0.4], ["train.monitor=mcc"], 3, 5),
    ],
)
def test_the_best_epoch_is_kept_and_patience_stops_early(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[float | None],
    assignments: list[str],
    best: int,
    epochs: int,
) -> None:
    scripted(monkeypatch, values)
    found = fit(data, tmp_path / "run", "train.epochs=5", *assignments)
    assert (found["best_epoch"], found["epochs"]) == (best, epochs)
    rows = history(tmp_path / "run")
    assert len(rows) == epochs
    assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))
    monitor = "mcc" if "train.monitor=mcc" in assignments else "roc_auc"
    assert [row[f"valid_{monitor}"] for row in rows] == values[:epochs]
    scripted(monkeypatch, [float(epoch) for epoch in range(best)])
    fit(data, tmp_path / "until", f"train.epochs={best}")
    for name in ("predictions.csv", "best.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "until" / name).read_bytes()


@pytest.mark.parametrize(("monitor", "target"), [("loss", "binary"), ("rmse", "regression"), ("mae", "regression")])
def test_the_best_epoch_of_an_error_metric_is_the_lowest(tmp_path: Path, monitor: str, target: str) -> None:
    data = save(tmp_path, build_graphset(40, target=target, missing=0.0, n_tasks=1))  # type: ignore[arg-type]
    found = fit(data, tmp_path / "run", f"train.monitor={monitor}", "train.epochs=12", "train.learning_rate=0.3")
    values = [row[f"valid_{monitor}"] for row in history(tmp_path / "run")]
    assert found["best_epoch"] == int(np.argmin(values)) + 1
    assert len(set(values)) == 12


def test_without_validation_rows_the_last_weights_are_kept(tmp_path: Path, data: Path) -> None:
    found = fit(data, tmp_path / "run", "split.valid=0")
    assert found["best_epoch"] == 3
    assert "valid" not in found
    assert [(row["valid_loss"], row["valid_roc_auc"]) for row in history(tmp_path / "run")] == [(None, None)] * 3
    arrays = load(tmp_path / "run" / "last.safetensors")
    for name, value in arrays.group("best").items():
        np.testing.assert_array_equal(value, arrays.group("state")[name])


def test_an_undefined_validation_metric_keeps_the_last_weights(tmp_path: Path) -> None:
    graphs = build_graphset(40, n_tasks=1, missing=0.0, splits=True)
    y = graphs.y.copy()
    y[graphs.splits["first"].valid] = 1
    found = fit(save(tmp_path, replace(graphs, y=y)), tmp_path / "run", "split.kind=predefined", "train.patience=1")
    assert (found["best_epoch"], found["epochs"]) == (3, 3)
    assert found["valid"]["roc_auc"] is None
    assert found["valid"]["undefined"] == ["task0"]
    assert found["valid"]["accuracy"] is not None


def test_unlabelled_validation_rows_give_nulls(tmp_path: Path) -> None:
    graphs = build_graphset(40, target="regression", missing=0.0, splits=True, n_tasks=1)
    y = graphs.y.copy()
    y[graphs.splits["first"].valid] = np.nan
    found = fit(save(tmp_path, replace(graphs, y=y)), tmp_path / "run", "split.kind=predefined")
    assert [found["valid"][name] for name in ("rmse", "mae", "r2")] == [None] * 3
    assert history(tmp_path / "run")[0]["valid_loss"] is None


# ------------------------------------------------------------------------------------------------ rates and penalties


@pytest.mark.numerical(bound="rates, which no step changes")
def test_rates_follow_the_schedule(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*assignments: str) -> list[float]:
        folder = tmp_path / assignments[0]
        fit(data, folder, "train.learning_rate=0.4", "train.epochs=5", *assignments)
        return [row["learning_rate"] for row in history(folder)]

    assert used("train.schedule=constant") == [0.4] * 5
    assert used("train.schedule=step", "train.schedule_every=2") == [0.4, 0.4, 0.2, 0.2, 0.1]
    assert used("train.schedule=cosine") == pytest.approx([0.2 * (1 + np.cos(np.pi * i / 5)) for i in range(5)])
    scripted(monkeypatch, [0.5, 0.4, 0.6, 0.6, 0.6])
    assert used("train.schedule=plateau", "train.schedule_every=1") == [0.4, 0.4, 0.2, 0.2, 0.1]


ONE_STEP = (*EVERYTHING_TRAINS, "train.optimizer=sgd", "train.batch_size=100", "train.epochs=1", "model.widths=[6, 5]")


def weights_after(data: Path, folder: Path, *assignments: str) -> dict[str, Any]:
    fit(data, folder, *ONE_STEP, *assignments)
    return load(folder / "best.safetensors").arrays


@pytest.fixture
def start(data: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the weights before the first step."""
    return weights_after(data, tmp_path / "start", "train.learning_rate=1e-30")


@pytest.mark.numerical(bound="one step")
def test_the_gradient_is_clipped_to_its_norm(tmp_path: Path, data: Path, start: dict[str, Any]) -> None:
    trainable = [name for name in start if "running" not in name]

    def moved(clip: float) -> float:
        end = weights_after(data, tmp_path / f"{clip}", "train.learning_rate=1", f"train.clip_norm={clip}")
        return float(np.sqrt(sum(np.sum((end[name] - start[name]).astype(float) ** 2) for name in trainable)))

    free = moved(0)
    assert free > 0.1
    assert moved(0.01) == pytest.approx(0.01, rel=1e-3)
    assert moved(1000.0) == free


@pytest.mark.numerical(bound="one step")
@pytest.mark.parametrize(
    ("assignments", "shrunk"),
    [
        ("train.weight_decay=0.5", {"conv1.weight", "conv2.weight", "output.weight"}),
        ("train.l2=0.5", {"conv1.weight", "conv2.weight", "output.weight"}),
        ("train.l2=0.5 train.l2_layers=[2]", {"conv2.weight"}),
    ],
)
def test_decay_applies_to_weights_only(
    tmp_path: Path, data: Path, start: dict[str, Any], assignments: str, shrunk: set[str]
) -> None:
    free = weights_after(data, tmp_path / "free", "train.learning_rate=0.1")
    end = weights_after(data, tmp_path / "run", "train.learning_rate=0.1", *assignments.split())
    for name, value in end.items():
        expected = free[name] - (0.1 * 0.5 * start[name] if name in shrunk else 0)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7, err_msg=name)


# ------------------------------------------------------------------------------------------------ beside training


class NotesElsewhere(ReportWriter):
    """Has processes for reports, and notes on copies that a test gives."""

    elsewhere = beside_training

    def __init__(self, notes: Callable[[], Iterable[str]]) -> None:
        super().__init__()
        self._notes = notes

    def copies(self, dataset: Any, splits: Any) -> Any:
        return self._notes()


def test_notes_that_cannot_be_found_beside_training_are_said(tmp_path: Path, data: Path) -> None:
    def refuse() -> Iterable[str]:
        raise InputError("set.h5, SMILES", "damaged", "sound ones")

    lines: list[str] = []
    fit(data, tmp_path / "run", "jobs=1", writer=NotesElsewhere(refuse), say=lines.append)
    assert "notes on the data are not complete: set.h5, SMILES: damaged; expected sound ones" in lines
    assert (tmp_path / "run" / "metrics.json").exists()


def test_notes_end_when_training_fails(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FitFiles, "save", lambda *about: (_ for _ in ()).throw(MachineError("disk", "full")))
    with pytest.raises(MachineError, match="disk"):
        fit(data, tmp_path / "run", "jobs=1", writer=NotesElsewhere(lambda: repeat("again")))


def test_batches_of_later_epochs_are_shuffled_beside_training(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffle, epochs = member.shuffled_batches, []

    def noted(graphs: Any, size: int, seed: int, epoch: int) -> Any:
        epochs.append((epoch, threading.current_thread() is threading.main_thread()))
        return shuffle(graphs, size, seed, epoch)

    monkeypatch.setattr(member, "shuffled_batches", noted)
    fit(data, tmp_path / "run", "train.epochs=5", "jobs=1")
    assert sorted(epochs) == [(0, True), (1, True), (2, False), (3, False), (4, False)]


# ------------------------------------------------------------------------------------------------ numbers that break


def test_a_loss_that_is_not_finite_stops_the_run_with_advice(tmp_path: Path) -> None:
    data = save(tmp_path, build_graphset(40, target="regression", missing=0.0))
    with pytest.raises(
        InputError,
        match=r"training loss in epoch \d+: (nan|inf); expected a finite number\. Lower train\.learning_rate",
    ):
        fit(
            data,
            tmp_path / "run",
            "train.learning_rate=100",
            "train.optimizer=sgd",
            "train.epochs=200",
            "model.norm=none",
            "train.checkpoint_seconds=0",
        )
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_a_run_whose_last_checkpoint_cannot_be_written_is_not_finished(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are made meanwhile."""
    write, predict = FitFiles.save, fits.predict_rows
    predicted = threading.Event()

    def refuse(files: FitFiles, *state: Any) -> None:
        assert predicted.wait(60)
        write(files, *state)
        raise MachineError("last.safetensors", "could not be written")

    def predict_rows(*about: Any) -> Any:
        predicted.set()
        return predict(*about)

    monkeypatch.setattr(FitFiles, "save", refuse)
    monkeypatch.setattr(fits, "predict_rows", predict_rows)
    with pytest.raises(MachineError, match=r"last\.safetensors"):
        fit(data, tmp_path / "run", "train.epochs=1")
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_no_member_begins_after_the_last_checkpoint_of_another_could_not_be_written(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: FitFiles, *state: Any) -> None:
        raise MachineError("last.safetensors", "could not be written")

    monkeypatch.setattr(FitFiles, "save", refuse)
    with pytest.raises(MachineError, match=r"last\.safetensors"):
        fit(data, tmp_path / "run", "train.epochs=1", "split.folds=3", "jobs=1")
    assert not list(tmp_path.glob("run/fold2/history.jsonl"))


def test_weights_that_are_not_finite_end_the_training(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.predict_rows

    def break_weights(cohort: Any, *about: Any) -> Any:
        state = cohort.state(0)
        cohort.load_state({**state, "output.bias": np.full_like(state["output.bias"], np.nan)})
        return original(cohort, *about)

    monkeypatch.setattr(loop, "predict_rows", break_weights)
    message = (
        r"weights after epoch 1: numbers that are not finite in output\.bias; expected finite numbers\. Lower train"
    )
    with pytest.raises(InputError, match=message):
        fit(data, tmp_path / "run", "train.epochs=1")
    assert not (tmp_path / "run" / "best.safetensors").exists()
    assert not (tmp_path / "run" / "metrics.json").exists()
