"""The report as plain values and as files: ``report.json``, ``report.md``, ``report.html``, PNG charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.lab.backend_comparison import charts, page, report_tables
from gcnbatch.lab.backend_comparison.operations import Cost, Row
from gcnbatch.lab.backend_comparison.parity import Agreement, Deviation, Parity
from gcnbatch.lab.backend_comparison.timeline import Trace
from gcnbatch.lab.backend_comparison.timing import Measured
from gcnbatch.lab.backend_comparison.workload import Workload
from gcnbatch.text import QUOTED, printable
from gcnbatch.training import run_files

JSON, MARKDOWN, HTML = "report.json", "report.md", "report.html"
NAMES = (JSON, MARKDOWN, HTML, *charts.NAMES)


def data(workload: Workload) -> dict[str, Any]:
    """Return facts about the data set: name, size, digest, batches."""
    experiment = workload.experiment
    source, path = experiment.config.data, experiment.dataset.path
    return {
        "path": f"generated: {source.synthetic}" if source.synthetic else str(path.resolve()),
        "sha256": experiment.fingerprint,
        "name": experiment.header.name,
        "level": experiment.header.level,
        "graphs": experiment.source.n_graphs,
        "nodes": int(experiment.source.node_ptr[-1]),
        "training_graphs": sum(map(len, workload.batches)),
        "batch_size": workload.task.train.batch_size,
        "steps_per_epoch": len(workload.batches),
        "inference_batch_size": len(workload.inference[0]),
        "parameters": workload.task.model.layout().count(),
    }


def parity(rule: Parity, agreements: Mapping[str, Agreement]) -> dict[str, Any]:
    """Return the verdict, the rule, and every deviation of every backend."""
    return {
        "passed": all(agreement.passed for agreement in agreements.values()),
        "rule": rule.rule,
        "batches": [where for where, _ in rule.batches],
        "reference_losses": [_finite(loss) for loss in rule.losses],
        "backends": {
            name: {
                "passed": found.passed,
                "worst": _deviation(found.worst),
                "failures": sum(not deviation.agrees for deviation in found.deviations),
                "losses": [_finite(loss) for loss in found.losses],
                "deviations": [_deviation(deviation) for deviation in found.deviations],
            }
            for name, found in agreements.items()
        },
    }


def measurements(
    measured: Mapping[str, Measured], costs: Mapping[str, Mapping[Row, Cost]], traces: Sequence[Trace]
) -> dict[str, Any]:
    """Return timings, speedups and costs per operation; None for each if nothing was measured."""
    if not measured:
        return {"timing": None, "speedup": None, "operations": None}
    timing = {}
    busy = {trace.backend: trace.busy for trace in traces}
    for name, one in measured.items():
        step = one.training.per_batch.median
        timing[name] = {
            "training": one.training.to_json(),
            "inference": one.inference.to_json(),
            "own_inference": one.own_inference.to_json() if one.own_inference else None,
            "launches_per_step": one.launches,
            "busy_share": min(busy[name] / step, 1.0),
            "peak_bytes": one.peak_bytes,
        }
    return {
        "timing": timing,
        "speedup": {
            work: _speedups({name: getattr(one, work).seconds.median for name, one in measured.items()})
            for work in ("training", "inference")
        },
        "operations": {
            name: {row.label: {"family": row.family, **cost.to_json()} for row, cost in rows.items()}
            for name, rows in costs.items()
        },
    }


def write(folder: Path, content: dict[str, Any], traces: Sequence[Trace]) -> None:
    """Write all files of the report into `folder`; speeds only if the backends agree.

    The figures come first, so that a full disk leaves them.
    """
    fileio.write_json(folder / JSON, content)
    _write_pages(folder, content, charts.draw(folder, content, traces))


def rewrite(folder: Path) -> Path:
    """Write the texts of a report again from its figures and plots; return the path of the page.

    Raises
    ------
    InputError
        When ``report.json`` is damaged.
    """
    place = folder / JSON
    content = run_files.read_json(place, "the report of compare-backends")
    try:
        _write_pages(folder, content, [name for name in charts.NAMES if (folder / name).is_file()])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        got = f"{type(error).__name__}: {printable(str(error), QUOTED)}"
        raise InputError(str(place), got, "the report of compare-backends") from error
    return folder / HTML


def _write_pages(folder: Path, content: dict[str, Any], pictures: Sequence[str]) -> None:
    shown = report_tables.build(content)
    texts = {
        MARKDOWN: report_tables.markdown(content, shown, pictures),
        HTML: page.render(content, shown, [folder / name for name in pictures]),
    }
    for name, text in texts.items():
        fileio.write_text(folder / name, text)


def _speedups(seconds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return, per baseline, the speedup of every backend listed after it."""
    names = list(seconds)
    return {
        base: {name: seconds[base] / seconds[name] for name in names[number + 1 :]}
        for number, base in enumerate(names[:-1])
    }


def _deviation(deviation: Deviation) -> dict[str, Any]:
    return {
        "where": deviation.where,
        "name": deviation.name,
        "agrees": deviation.agrees,
        "error": _finite(deviation.error),
        "bound": _finite(deviation.bound),
        "scale": _finite(deviation.scale),
        "ratio": _finite(deviation.ratio),
    }


def _finite(value: float) -> float | None:
    """Return the value, or None for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
