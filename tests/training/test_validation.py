"""Scores of validation rows."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data import splits
from gcnbatch.data.store import Dataset
from gcnbatch.training import metrics
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.validation import Score, Validation
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
    found = validation.score(logits)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    value = found.loss if monitor == "loss" else metrics.score(experiment.monitor, experiment.header.target, y, outputs)
    assert found.monitored == value
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(validation.score, 8 * [logits])) == {found}
        assert threads.submit(validation.score, None).result() == Score()
        lost = threads.submit(validation.score, np.full_like(logits, np.inf)).result()  # without a warning
    assert lost.loss is None or math.isfinite(lost.loss)
