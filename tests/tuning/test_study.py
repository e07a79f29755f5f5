"""What studies find and repeat; test rows, failures and pruning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna")

import gcnbatch
from gcnbatch import fileio
from gcnbatch.config import resolve
from gcnbatch.config_tree import read_toml
from gcnbatch.data import splits
from gcnbatch.data.splits import SplitRows
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import DeviceLost, InputError, MachineError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.finished import read_split
from gcnbatch.training.plan import plan
from gcnbatch.tuning import search as searches
from gcnbatch.tuning.results import constant_value
from gcnbatch.tuning.search import Limits
from gcnbatch.tuning.splits import search_splits, splits_of
from tests.builders import build_graphset
from tests.entries import CohortEntry, register
from tests.parquet import assert_same_table
from tests.training.runs import configure, write_set
from tests.tuning.studies import SPACE, base, search, table

pytestmark = pytest.mark.usefixtures("light", "no_page")


# ------------------------------------------------------------------------------------------------ what a study finds


@pytest.mark.parametrize(
    ("target", "monitor", "value"), [("binary", "roc_auc", 0.5), ("binary", "loss", None), ("multiclass", "mcc", 0.0)]
)
def test_the_value_of_constant_outputs_is_that_of_chance(target: str, monitor: str, value: float | None) -> None:
    graphs = build_graphset(60, target=target, missing=0.2)  # type: ignore[arg-type]
    config = configure(f"train.monitor={monitor}")
    rows = SplitRows("set", "graph", graphs.header.target, graphs.y, None, {})
    experiment = SimpleNamespace(monitor=monitor, header=graphs.header, y=graphs.y, measured=graphs.y)
    assert constant_value(experiment, search_splits(config, rows)) == value  # type: ignore[arg-type]


def test_the_table_of_trials_is_written_as_parquet_too(place: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "study", "parquet=true", "train.epochs=1", trials=2)
    assert_same_table(tmp_path / "study" / "trials.csv")


def test_the_best_configuration_trains_to_the_value_of_its_trial(study: Path, tmp_path: Path) -> None:
    best = json.loads(json.dumps(results_of(study)))
    config = resolve(read_toml(study / "best.toml"))
    found = run.start(config, tmp_path / "run", quiet=True)[1]
    assert found["valid"]["roc_auc"] == pytest.approx(float(best["value"]), rel=1e-12)
    assert found["split"]["sizes"] == [24, 8, 8]


def results_of(folder: Path) -> dict[str, str]:
    complete = [row for row in table(folder) if row["state"] == "complete"]
    return max(complete, key=lambda row: float(row["value"]))


def test_the_first_trial_has_the_values_of_the_base(place: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "one", "model.widths=[8]", "model.dropout=0.1", "train.learning_rate=0.05", trials=1)
    (first,) = table(tmp_path / "one")
    assert [first[f"model.{key}"] for key in ("widths", "widths.repeat", "dropout")] == ["8", "1", "0.1"]
    assert first["train.learning_rate"] == "0.05"


def test_the_same_seed_and_space_repeat_the_study(place: Path, study: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "same")
    assert table(tmp_path / "same") == table(study)
    assert (tmp_path / "same" / "best.toml").read_bytes() == (study / "best.toml").read_bytes()
    search(place, tmp_path / "other", "seed=1")
    assert table(tmp_path / "other") != table(study)


# ------------------------------------------------------------------------------------------------ rows


def test_the_search_never_reads_test_rows(place: Path, study: Path, tmp_path: Path) -> None:
    """NaN in the features and other labels of the test rows change nothing."""
    config = base(place)
    with Dataset(place / "set.h5") as dataset:
        graphs, rows = dataset.load(), SplitRows.of(dataset, config.split.kind)
    test = splits.make_split(config.split, config.seed, rows).test
    x, y = graphs.x.copy(), graphs.y.copy()
    for row in test:
        x[graphs.node_ptr[row] : graphs.node_ptr[row + 1]] = np.nan
    y[test] = 1 - y[test]
    write_graphset(tmp_path / "set.h5", replace(graphs, y=y))
    poisoned = replace(graphs, x=x, y=y)
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "load", lambda self: poisoned)  # a file with NaN features would be refused
        search(tmp_path, tmp_path / "study")
    assert table(tmp_path / "study") == table(study)


@pytest.mark.parametrize("kind", ["random", "stratified", "scaffold", "predefined"])
def test_folds_and_repeats_divide_the_rows_that_do_not_test(kind: str) -> None:
    graphs = build_graphset(60, missing=0.0, splits=True, groups=True)
    rows = SplitRows("set", "graph", "binary", graphs.y, graphs.groups, graphs.splits)
    given = f"split.kind={kind}", "split.test=0.2"
    test = splits.make_split(configure(*given).split, 0, rows).test
    left = np.setdiff1d(np.arange(60), test)
    folded = [configure(*given, "split.folds=4")]
    if kind != "scaffold":
        folded += [configure(*given, "split.folds=4", "split.repeats=2"), configure(*given, "split.repeats=3")]
    for config in folded:
        found = search_splits(config, rows)
        assert len(found) == (config.split.folds or 1) * config.split.repeats
        for part in found:
            assert not len(part.test)
            assert not np.isin(test, np.concatenate([part.train, part.valid])).any()
        if config.split.folds:
            validated = np.concatenate([part.valid for part in found])
            assert sorted(validated) == sorted(np.repeat(left, config.split.repeats))


def test_a_cross_fitted_configuration_is_scored_by_what_its_parts_leave_out(place: Path, tmp_path: Path) -> None:
    """The best configuration trains on the same parts and tests the rows that no trial saw."""
    summary = search(place, tmp_path / "study", "split.cross_fit=4", "split.copies_together=true", trials=2)
    assert len(summary["best"]["values"]) == 4
    assert summary["best"]["value"] == pytest.approx(np.mean(summary["best"]["values"]))
    config = resolve(read_toml(tmp_path / "study" / "best.toml"))
    assert config.split.cross_fit == 4
    folder, _ = run.start(config, tmp_path / "run", quiet=True)
    with Dataset(place / "set.h5") as dataset:
        parts = splits_of(Experiment(config, dataset))
    for number, part in enumerate(parts, start=1):
        trained = read_split(folder / f"part{number}" / "splits.json")
        assert np.array_equal(trained.valid, part.valid)
        assert np.array_equal(trained.train, part.train)
        assert not len(part.test)
        assert not np.isin(trained.test, np.concatenate([part.train, part.valid])).any()


def test_folds_stand_in_for_the_parts_of_a_cross_fitted_configuration(place: Path, tmp_path: Path) -> None:
    summary = search(place, tmp_path / "study", "split.cross_fit=4", "split.folds=2", trials=1)
    assert len(summary["best"]["values"]) == 2
    config = resolve(read_toml(tmp_path / "study" / "best.toml"))
    assert (config.split.cross_fit, config.split.folds) == (4, 0)


def test_copies_of_tested_molecules_are_in_no_trial(tmp_path: Path) -> None:
    graphs = build_graphset(30, missing=0.0)
    write_graphset(tmp_path / "set.h5", graphs.take(np.tile(np.arange(30), 2)))
    given = f"data.path={tmp_path / 'set.h5'}", "split.copies_together=true", "split.test=0.3"
    with Dataset(tmp_path / "set.h5") as dataset:
        for more in ([], ["split.folds=3"], ["split.cross_fit=3"]):
            (tested,) = {tuple(one.split.test) for one in plan(Experiment(configure(*given), dataset))}
            found = splits_of(Experiment(configure(*given, *more), dataset))
            seen = np.unique(np.concatenate([np.concatenate([part.train, part.valid]) for part in found]))
            assert np.array_equal(np.union1d(seen, tested), np.arange(60))
            assert not set(seen % 30) & {row % 30 for row in tested}


def test_the_objective_is_the_mean_over_folds(place: Path, tmp_path: Path) -> None:
    summary = search(place, tmp_path / "study", "split.folds=3", trials=2)
    assert len(summary["best"]["values"]) == 3
    assert summary["best"]["value"] == pytest.approx(np.mean(summary["best"]["values"]))


def test_without_validation_rows_nothing_is_searched(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"split\.valid: no validation rows to compare trials by; expected some"):
        search(place, tmp_path / "study", "split.valid=0")
    assert not (tmp_path / "study").exists()


# ------------------------------------------------------------------------------------------------ failures and pruning


def test_a_trial_without_memory_fails_and_the_study_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = OpsRunner.__init__

    def small(self: OpsRunner, backend: Any, task: Any) -> None:
        if task.train.learning_rate > 0.01:
            raise MachineError("device 0", "out of memory")
        original(self, backend, task)

    monkeypatch.setattr(OpsRunner, "__init__", small)
    for alike in (False, True):
        if alike:
            register(monkeypatch, CohortEntry("cpu", on_gpu=True))
        summary = search(place, tmp_path / f"{alike}", "jobs=0" if alike else "jobs=1", trials=8)
        rows = table(tmp_path / f"{alike}")
        for row in rows:
            failed = float(row["train.learning_rate"]) > 0.01
            assert (row["state"] == "failed", row["reason"]) == (failed, "device 0: out of memory" if failed else "")
        assert 0 < summary["failed"] < 8


def test_a_lost_device_ends_the_study_with_the_command_to_resume(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: OpsRunner, index: int) -> None:
        raise DeviceLost("device 0", "lost")

    monkeypatch.setattr(OpsRunner, "step", lost)
    with pytest.raises(DeviceLost, match=r"device 0: lost\. Go on with: gcnbatch tune --resume .*study$"):
        search(place, tmp_path / "study")


def test_a_loss_that_is_not_finite_fails_its_trial(place: Path, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("[train]\nlearning_rate = { choices = [1e-3, 100.0] }", encoding="utf-8")
    write_graphset(tmp_path / "set.h5", build_graphset(40, target="regression", missing=0.0, n_tasks=1))
    about = ("train.optimizer=sgd", "train.epochs=40", "model.norm=none")
    summary = search(tmp_path, tmp_path / "study", *about, trials=8)
    failed = [row for row in table(tmp_path / "study") if row["state"] == "failed"]
    assert 0 < len(failed) == summary["failed"] < 8
    assert all(row["reason"].startswith(("training loss in epoch ", "weights after epoch ")) for row in failed)
    assert {row["train.learning_rate"] for row in failed} == {"100.0"}
    assert summary["direction"] == "minimize"


def test_hopeless_trials_are_pruned_at_an_epoch(place: Path, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE.replace("1e-3", "1e-6"), encoding="utf-8")
    write_set(tmp_path / "set.h5", missing=0.0)
    summary = search(tmp_path, tmp_path / "study", "train.epochs=5", trials=24)
    assert summary["pruned"] > 0
    assert summary["best"]["value"] == max(
        float(row["value"]) for row in table(tmp_path / "study") if row["state"] == "complete"
    )


def test_trials_of_one_architecture_train_in_one_cohort(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CohortEntry("cpu", on_gpu=True)
    register(monkeypatch, entry)
    search(place, tmp_path / "study", "split.folds=2", "jobs=0", trials=16)
    rows = table(tmp_path / "study")
    shapes = [(row["model.widths"], row["model.widths.repeat"]) for row in rows]
    assert shapes == [shapes[0]] * 8 + [shapes[8]] * 8
    assert len({row["train.learning_rate"] for row in rows}) == 16
    assert max(entry.sizes) == 16  # eight trials of two folds
    entry.sizes.clear()
    searches.start(
        base(place, "split.folds=2", "jobs=4"), tmp_path / "four", place / "space.toml", Limits(8), quiet=True
    )
    assert max(entry.sizes) == 4
    assert table(tmp_path / "four") == rows[:8]


def test_a_search_ends_with_its_time(place: Path, tmp_path: Path) -> None:
    config = base(place)
    summary = searches.start(config, tmp_path / "study", place / "space.toml", Limits(minutes=0.0), quiet=True)[1]
    assert summary["trials"] == 0
    assert "best" not in summary
    assert not (tmp_path / "study" / "best.toml").exists()


@pytest.mark.parametrize("name", ["study.json", "config.toml"])
def test_a_set_up_that_fails_leaves_no_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = fileio.write_text

    def full(path: Path, text: str) -> None:
        if path.name == name:
            raise MachineError(str(path), "full")
        write(path, text)

    monkeypatch.setattr(fileio, "write_text", full)
    with pytest.raises(MachineError, match=f"{name}: full$"):
        search(place, tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"trials": 0}, "trials: '0'; expected a whole number, 1 to 1,000,000"),
        ({"trials": 1.5}, "trials: '1.5'; expected a whole number"),
        ({"trials": True}, "trials: 'True'; expected a whole number"),
        ({"minutes": -1}, "minutes: '-1'; expected a number, at least 0"),
        ({"minutes": float("nan")}, "minutes: 'nan'; expected a number"),
        ({"minutes": "1"}, "minutes: '1'; expected a number"),
    ],
)
def test_wrong_limits_are_refused_before_a_folder_is_made(
    place: Path, tmp_path: Path, limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        gcnbatch.tune({}, place / "set.h5", out=tmp_path / "study", **limits)
    assert not (tmp_path / "study").exists()
