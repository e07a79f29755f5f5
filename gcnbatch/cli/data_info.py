"""Text output of ``gcnbatch data info``: facts, distributions, channels, labels, splits."""

from __future__ import annotations

from gcnbatch.cli.text_tables import facts, size, table
from gcnbatch.data.describe import Description, TaskLabels
from gcnbatch.text import counted

_CLASSES = 20  # largest classes to list
_NAMED = 3  # graph features to name


def lines(description: Description) -> list[str]:
    """Return the description as lines of text, with blank lines between its tables."""
    blocks = [
        _facts(description),
        _distributions(description),
        table(("channel", "edges"), list(description.channels.items())),
        _labels(description),
        _splits(description),
    ]
    return [line for block in blocks if block for line in ("", *block)][1:]


def _facts(description: Description) -> list[str]:
    header, features = description.header, description.features
    outputs = (
        counted(len(header.class_names), "class", "classes")
        if header.class_names
        else counted(len(header.task_names), "task")
    )
    density = "" if features.density is None else f", {100 * features.density:.3g} % nonzero"
    groups = "" if description.groups is None else f"{description.groups:,} of kind {header.group_kind or 'unnamed'}"
    groups = groups or (header.group_kind and f"{header.group_kind}, computed when a split asks for it")
    featurizer = ", ".join(f"{key} {value}" for key, value in (header.featurizer or {}).items())
    labels = "; ".join(f"{task}: {no} = 0, {yes} = 1" for task, (no, yes) in header.label_names.items())
    return facts(
        [
            ("name", header.name),
            (
                "file",
                f"{description.path} ({size(description.file_bytes)}; {size(description.memory_bytes)} in memory)",
            ),
            ("level", header.level),
            ("target", f"{header.target}, {outputs}"),
            ("graphs", f"{description.graphs:,}"),
            ("nodes", f"{description.nodes:,}"),
            ("edges", f"{description.edges:,} stored, {description.self_loops:,} of them self-loops"),
            ("edge weights", description.edge_weights),
            ("features", f"{features.columns:,}, {features.storage}{density}"),
            ("graph features", _graph_features(description)),
            ("unlabelled", _unlabelled(description.unlabelled)),
            ("labels", labels),
            ("groups", groups),
            ("times", "" if description.timed is None else f"of {counted(description.timed, 'graph')}"),
            ("featurizer", featurizer),
            *((f"source: {key}", value) for key, value in header.source.items()),
        ]
    )


def _unlabelled(rows: int) -> str:
    return f"{counted(rows, 'row')} without any label" if rows else ""


def _graph_features(description: Description) -> str:
    found, names = description.graph_features, description.header.graph_feature_names
    if found is None:
        return ""
    measured = names[: found.columns - found.counts]
    shown = ", ".join(measured[:_NAMED]) + (", …" if len(measured) > _NAMED else "")
    parts = [f"{len(measured):,} ({shown})"] if measured else []
    parts += [f"{counted(found.counts, 'count')} of fragments ({names[-found.counts]}, …)"] if found.counts else []
    return f"{' and '.join(parts)}; {counted(found.missing, 'missing value')}"


def _distributions(description: Description) -> list[str]:
    named = {"neighbours per node": description.degree}
    if description.graphs != 1:
        named = {
            "nodes per graph": description.nodes_per_graph,
            "edges per graph": description.edges_per_graph,
            **named,
        }
    rows = [(name, *(distribution.summary() or (None,) * 6)) for name, distribution in named.items()]
    return table(("distribution", "min", "5 %", "median", "mean", "95 %", "max"), rows)


def _labels(description: Description) -> list[str]:
    tasks, target = description.tasks, description.header.target
    if target == "multiclass":
        return _classes(tasks[0])
    columns = list(tasks[0].values)
    if target == "regression":
        rows = [(t.name, *t.values.values(), t.missing) for t in tasks]
        return table(("task", *columns, "missing"), rows, left=1 + ("unit" in columns))
    rows = [
        (t.name, *t.values.values(), t.missing, _percent(t.values["positive"], sum(t.values.values()))) for t in tasks
    ]
    return table(("task", *columns, "missing", "positive %"), rows)


def _percent(part: int, whole: int) -> str | None:
    return f"{100 * part / whole:.1f}" if whole else None


def _classes(task: TaskLabels) -> list[str]:
    ordered = sorted(task.values.items(), key=lambda item: -item[1])
    total = sum(task.values.values())
    rows = [(name, count, _percent(count, total)) for name, count in ordered[:_CLASSES]]
    rest = ordered[_CLASSES:]
    block = table(("class", "rows", "%"), rows)
    if rest:
        block.append(f"and {counted(len(rest), 'class', 'classes')} of {rest[-1][1]:,} to {counted(rest[0][1], 'row')}")
    if task.missing:
        block.append(f"{counted(task.missing, 'row')} without a class")
    return block


def _splits(description: Description) -> list[str]:
    if not description.splits:
        return []
    rows = [(name, *parts.values()) for name, parts in description.splits.items()]
    return table(("split", "train", "valid", "test"), rows)
