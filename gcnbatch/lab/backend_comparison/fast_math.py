"""Speed and accuracy of a backend compiled with fast-math (cuda.fast_math)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch.backends.base import Backend, MemberEpoch
from gcnbatch.lab.backend_comparison.parity import Agreement, Parity
from gcnbatch.lab.backend_comparison.timing import Timing, measure
from gcnbatch.lab.backend_comparison.workload import Effort, Workload
from gcnbatch.model.predict import predict_rows
from gcnbatch.runners.choice import make_runner
from gcnbatch.training import metrics
from gcnbatch.training.fit import shuffled_batches
from gcnbatch.training.position import Plateau, learning_rate


@dataclass(frozen=True)
class FastMath:
    """Comparison of one backend with fast-math and with IEEE arithmetic.

    Parameters
    ----------
    training : Timing
        An epoch with fast-math.
    agreement : Agreement
        Deviations from the float64 reference; it need not agree.
    figure : str
        Name of the metric: roc_auc, accuracy or rmse.
    exact, fast : float or None
        The metric on the test rows after a complete training, with IEEE arithmetic and with fast-math.
    """

    training: Timing
    agreement: Agreement
    figure: str
    exact: float | None
    fast: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        worst = self.agreement.worst
        share = worst.ratio if np.isfinite(worst.ratio) else None
        return {
            "training": self.training.to_json(),
            "agrees": self.agreement.passed,
            "worst": {"where": worst.where, "name": worst.name, "share_of_bound": share},
            "figure": self.figure,
            "exact": self.exact,
            "fast": self.fast,
        }


def compare(exact: Backend, fast: Backend, parity: Parity, workload: Workload, effort: Effort) -> FastMath:
    """Measure `fast`; train on both for all configured epochs."""
    header = workload.experiment.header
    figure = metrics.default_monitor(header.target, len(header.task_names))
    scores = [_trained(backend, workload, figure) for backend in (exact, fast)]
    return FastMath(measure(fast, workload, effort).training, parity.check(fast), figure, *scores)


def _trained(backend: Backend, workload: Workload, figure: str) -> float | None:
    """Return the metric `figure` of the test rows after the last epoch."""
    experiment, split = workload.experiment, workload.split
    train, target = experiment.config.train, experiment.header.target
    graphs = experiment.source.graphs_of(split.train)
    runner = make_runner(backend, [workload.task])
    try:
        for epoch in range(train.epochs):
            batches = shuffled_batches(graphs, train.batch_size, experiment.config.seed, epoch)
            runner.begin_epoch([MemberEpoch(epoch, batches, learning_rate(train, epoch, Plateau()))])
            for step in range(len(batches)):
                runner.step(step)
        (logits,) = predict_rows(runner, experiment.source, [split.test], train.eval_batch_size)
    finally:
        runner.close()
    assert logits is not None
    outputs = workload.scaling.undo(logits) if target == "regression" else metrics.activate(target, logits)
    return metrics.score(figure, target, experiment.measured[split.test], outputs) if len(split.test) else None
