"""Speed and accuracy of a backend compiled with fast-math (cuda.fast_math)."""

from __future__ import annotations

from typing import Any

from gcnbatch import metrics
from gcnbatch.backends.base import Backend, MemberEpoch
from gcnbatch.lab.backend_comparison.parity import Parity, or_none
from gcnbatch.lab.backend_comparison.timing import measure
from gcnbatch.lab.backend_comparison.workload import Effort, Workload
from gcnbatch.model.predict import predict_rows
from gcnbatch.runners.choice import make_runner
from gcnbatch.training.fit import shuffled_batches
from gcnbatch.training.position import Plateau, learning_rate


def compare(exact: Backend, fast: Backend, parity: Parity, workload: Workload, effort: Effort) -> dict[str, Any]:
    """Measure `fast` and its deviations from the reference; train on both backends for all configured epochs.

    Returns
    -------
    dict
        - ``training``: of an epoch with fast-math, as `timing.measure` returns it;
        - ``agrees``, ``worst``: parity, which fast-math need not have;
        - ``figure``, ``exact``, ``fast``: name of a metric, and its value on the test rows after training with IEEE
          arithmetic and with fast-math.
    """
    header = workload.experiment.header
    figure = metrics.default_monitor(header.target, len(header.task_names))
    scores = {name: _trained(one, workload, figure) for name, one in (("exact", exact), ("fast", fast))}
    training, agreement = measure(fast, workload, effort)["training"], parity.check(fast)
    worst = agreement.worst
    return {
        "training": training,
        "agrees": agreement.passed,
        "worst": {"where": worst.where, "name": worst.name, "share_of_bound": or_none(worst.ratio)},
        "figure": figure,
        **scores,
    }


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
