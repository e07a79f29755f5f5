"""What was trained on what, and where: names and values for the page and the model card."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gcnbatch.config import Config
from gcnbatch.data.splits import title
from gcnbatch.model.gcn import build, joins_graph_features
from gcnbatch.pages.origin import software
from gcnbatch.run_report.figures import number
from gcnbatch.run_report.held_out import HeldOut
from gcnbatch.run_report.record import Record
from gcnbatch.text import counted, listed
from gcnbatch.training.fit_report import METRICS


def trained(record: Record) -> list[tuple[str, str]]:
    """Return facts about data, split, model and training."""
    file = f"{record.data}, sha256 {record.digest}"
    about = [("Data", data(record)), ("File", file), ("Split", split(record))]
    return [*about, ("Model", _model(record)), ("Trained", _course(record))]


def data(record: Record) -> str:
    """Return name, size and targets of the data set."""
    tested = record.tested
    if tested is None:
        return record.data.name
    header = tested.header
    size = counted(tested.graphs, "graph") if header.level == "graph" else "one graph, a row per node"
    tasks = counted(len(header.task_names), f"{header.target} task")
    return f"{header.name}: {size}, {tasks} ({listed(header.task_names)})"


def split(record: Record) -> str:
    """Return kind, name, seed and sizes of the split."""
    found = record.metrics["split"]
    if len(record.fits) > 1:
        return f"{title(found)}, {record.models}"
    sizes = zip(("training", "validation", "test"), found["sizes"], strict=False)
    return f"{title(found)}: " + ", ".join(f"{count:,} {part}" for part, count in sizes)


def environment(record: Record) -> Iterator[tuple[str, str]]:
    """Yield facts about the machine and the software."""
    yield "Backend", _backend(record)
    yield from software(record.environment)
    finished = (record.folder / METRICS).stat().st_mtime
    yield "Finished", time.strftime("%Y-%m-%d %H:%M", time.localtime(finished))


def _model(record: Record) -> str:
    if record.config is None:
        return str(record.metrics.get("model", "unknown"))
    model = record.config.model
    shape = f"{model.kind}, widths {', '.join(map(str, model.widths))}, {model.adjacency} adjacency"
    return shape + (_parameters(record.config, record.tested) if record.tested else "")


def _parameters(config: Config, tested: HeldOut) -> str:
    header = tested.header
    joined = joins_graph_features(config.model, header)
    features = (
        f"; {counted(len(header.graph_feature_names), 'feature')} of graphs joined to the readout" if joined else ""
    )
    return f"{features}; {counted(build(config.model, header, tested.graphs == 1).layout().count(), 'parameter')}"


def _course(record: Record) -> str:
    seconds = f"{number(record.metrics['seconds'])} s on {_backend(record)}"
    if record.config is None:
        return seconds
    train, best = record.config.train, record.metrics.get("best_epoch")
    chosen = f" (best: {best})" if isinstance(best, int) else ""
    rate = f"learning rate {train.learning_rate:g}, {train.schedule}"
    count = record.metrics.get("epochs")
    epochs = counted(count, "epoch") if isinstance(count, int) else f"{number(count)} epochs"
    return (
        f"{epochs}{chosen}, batch {train.batch_size}, {train.optimizer}, {rate}, seed {record.config.seed}; {seconds}"
    )


def _backend(record: Record) -> str:
    about = [record.metrics.get(key) for key in ("backend", "device", "precision")]
    return ", ".join(str(value) for value in about if isinstance(value, str))
