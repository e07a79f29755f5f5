"""Scores of validation rows."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gcnbatch import metrics
from gcnbatch.backends.cpu.costs import plain_sigmoid_costs, sigmoid_costs
from gcnbatch.data import splits
from gcnbatch.data.store import Dataset
from gcnbatch.training import validation as module
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.validation import Score, Validation, scores
from tests.training.runs import configure, write_set


@pytest.mark.parametrize("monitor", ["auto", "loss"])
@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_scores_are_the_mean_loss_and_the_monitored_metric(target: str, monitor: str, tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", target=target, n_tasks=1)
    config = configure(f"data.path={tmp_path / 'set.h5'}", f"train.monitor={monitor}", "split.valid=0.5")
    with Dataset(tmp_path / "set.h5") as data:
        experiment = Experiment(config, data)
        split = splits.make_split(config.split, config.seed, experiment.split_rows)
        scaling = experiment.task(split)[1]
        validation = Validation(experiment, split, scaling)
    y = experiment.y[split.valid]
    logits = np.random.default_rng(0).normal(size=(len(y), experiment.header.n_outputs)).astype(np.float32)
    outputs = validation.outputs(logits)
    if target == "regression":
        loss = np.nanmean(((y - outputs) / scaling.std) ** 2)
    elif target == "binary":
        loss = -np.nanmean(np.where(np.isnan(y), np.nan, np.log(np.where(y == 1, outputs, 1 - outputs))))
    else:
        known = y[:, 0] >= 0
        loss = -np.log(outputs[known, y[known, 0]]).mean()
    with ThreadPoolExecutor(2) as threads:
        found, nothing, lost = scores(3 * [validation], [logits, None, np.full_like(logits, np.inf)], threads)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    value = found.loss if monitor == "loss" else metrics.score(experiment.monitor, experiment.header.target, y, outputs)
    assert found.monitored == value
    assert nothing == Score()
    assert lost.loss is None or math.isfinite(lost.loss)


@pytest.mark.parametrize("strange", [None, np.inf, -np.inf, np.nan])
def test_costs_without_weights_have_the_bits_of_those_with_weights_of_one(strange: float | None) -> None:
    draws = np.random.default_rng(0)
    logits = (draws.normal(size=(3, 50, 4)) * 10.0 ** draws.integers(-3, 3, (3, 50, 4))).astype(np.float32)
    y = draws.choice(np.array([0, 1, np.nan], np.float32), logits.shape)
    logits[0, 0] = 0.0 if strange is None else strange
    with np.errstate(over="ignore", invalid="ignore"):
        expected = sigmoid_costs(logits, y, np.ones(4, np.float32)).costs
        np.testing.assert_array_equal(plain_sigmoid_costs(logits, y), expected)


@pytest.mark.numerical
@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_scores_of_many_members_are_equal_to_the_bit_to_those_of_each_alone(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members have different rows and numbers of them; some monitor the loss, and one has diverged."""
    write_set(tmp_path / "set.h5", n_graphs=103, target=target, n_tasks=1 if target == "multiclass" else 3)
    draws, validations, logits = np.random.default_rng(0), [], []
    for number in range(9):
        keys = f"data.path={tmp_path / 'set.h5'}", f"train.monitor={'loss' if number % 4 == 1 else 'auto'}"
        config = configure(*keys, f"split.valid={0.2 + 0.03 * number}", f"split.seed={number}")
        with Dataset(tmp_path / "set.h5") as data:
            experiment = Experiment(config, data)
            split = splits.make_split(config.split, config.seed, experiment.split_rows)
            validations.append(Validation(experiment, split, experiment.task(split)[1]))
        size = len(split.valid), experiment.header.n_outputs
        logits.append(draws.normal(size=size).astype(np.float32).round(1))  # with ties
    logits[3][2] = np.nan
    assert len({len(one) for one in logits}) == 9
    with ThreadPoolExecutor(4) as threads:
        alone = [score for one, z in zip(validations, logits, strict=True) for score in scores([one], [z], threads)]
        assert len(set(alone)) == 9
        for elements in (1, 200, 10**6):
            monkeypatch.setattr(module, "ELEMENTS", elements)
            assert scores(validations, logits, threads) == alone
