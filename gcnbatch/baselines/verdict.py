"""The comparison of a run with its baseline, and the sentence that says which one is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gcnbatch import metrics
from gcnbatch.baselines.forest import MODEL
from gcnbatch.data.schema import Header
from gcnbatch.run_comparison.paired import differences
from gcnbatch.run_comparison.runs import overlap, scores_by_block
from gcnbatch.text import figure
from gcnbatch.training.finished import FinishedFit


def verdict(header: Header, run: Sequence[FinishedFit], baseline: Sequence[FinishedFit]) -> dict[str, Any]:
    """Return the entry ``baseline`` of metrics.json: both test scores, the difference and a sentence.

    With several folds, ``low`` and ``high`` are the 95 % interval of the difference.
    """
    name = metrics.default_monitor(header.target, len(header.task_names))
    blocks = list(dict.fromkeys(fit.block for fit in run))
    own, other = (scores_by_block(fits, name) for fits in (run, baseline))
    known = [block for block in blocks if own.get(block) is not None and other.get(block) is not None]
    entry: dict[str, Any] = {"model": MODEL, "metric": name, "run": None, "baseline": None}
    if not known:
        sentence = f"The baseline ({MODEL}) has no {metrics.label(name)} on the test rows."
        return entry | {"winner": None, "verdict": sentence}
    scores = np.array([[own[block], other[block]] for block in known], dtype=np.float64)
    mine, its = (float(value) for value in scores.mean(axis=0))
    better = (mine > its) if metrics.higher_is_better(name) else (mine < its)
    winner = "none" if mine == its else "run" if better else "baseline"
    entry |= {"run": mine, "baseline": its, "difference": mine - its, "winner": winner}
    figures = f"test {metrics.label(name)} {figure(its)} against {figure(mine)} of this model"
    sentence = {
        "baseline": f"The baseline wins: a {MODEL} has {figures}",
        "run": f"The model beats the baseline: a {MODEL} has {figures}",
        "none": f"The baseline is as good: a {MODEL} has {figures}",
    }[winner]
    if len(known) > 1:
        found = differences(scores, overlap(run))[0]
        entry |= {"folds": len(known), "low": found.low, "high": found.high}
        mean, low, high = (figure(value, signed=True) for value in (found.mean, found.low, found.high))
        sentence += f" (mean of {len(known)} folds; difference {mean}, 95 % from {low} to {high}"
        sentence += f"{'' if found.shown else ': no difference shown'})"
    return entry | {"verdict": f"{sentence}."}
