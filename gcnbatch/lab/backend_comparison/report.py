"""The report: ``report.json``, its tables for the terminal, ``report.md`` and ``report.html``, and PNG charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gcnbatch import fileio
from gcnbatch.lab.backend_comparison import charts
from gcnbatch.lab.backend_comparison.charts import number, ratio
from gcnbatch.lab.backend_comparison.timeline import Trace
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import MISSING, Pictures, facts, paragraph, section, table
from gcnbatch.pages.origin import software
from gcnbatch.text import counted, markdown, markdown_table
from gcnbatch.training import run_files

JSON, MARKDOWN, HTML = "report.json", "report.md", "report.html"
NAMES = (JSON, MARKDOWN, HTML, *charts.NAMES)
PLACED = {
    "Training time": "training.png",
    "Inference time": "inference.png",
    "A training step": "timeline.png",
    "Operations": "operations.png",
}  # the chart below each table of the page
Content = dict[str, Any]
# The functions of full-batch training (Bettinelli: "Accelerate graph convolutional network on GPU", 2023).
_FAMILIES = {
    "Matmul": "MatMul",
    "SparseMatmul": "SparseMatMul",
    "GraphSum": "SpMM",
    "ReLU": "ReLU",
    "Dropout": "Dropout",
}
_DIRECTIONS = ("forward", "backward")
FUNCTIONS = {f"{name} {way}": f"{family} {way}" for name, family in _FAMILIES.items() for way in _DIRECTIONS}
FUNCTIONS["CrossEntropyLoss forward"] = "Loss"
STATES = "Backends"  # the title of the one table of texts


class ReportTable(NamedTuple):
    """A table with a title and a note; `words` are the columns of text besides the first one."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    words: tuple[int, ...] = ()


def build(content: Content) -> list[ReportTable]:
    """Return the tables of a report; without timings only those about parity."""
    found = [_backends(content), _parity(content)]
    if content["timing"]:
        found += [_pass(content, "training"), _pass(content, "inference"), _step(content), _operations(content)]
        found += [_functions(content)] if content["data"]["level"] == "node" else []
        found.append(_throughput(content))
        found += [_fast_math(content)] if content["fast_math"] else []
    return [*found, _losses(content)]


def verdict(content: Content) -> str:
    """Return the result in one or two sentences."""
    backends = content["parity"]["backends"]
    failed = [name for name, found in backends.items() if not found["passed"]]
    if failed:
        worst = backends[failed[0]]["worst"]
        more = f", and {backends[failed[0]]['failures'] - 1} more" if backends[failed[0]]["failures"] > 1 else ""
        return (
            f"{', '.join(failed)} does not agree with the reference: {worst['name']} ({worst['where']}) is off by "
            f"{number(worst['error'])}, allowed {number(worst['bound'])}{more}. No timing is shown."
        )
    names = list(backends)
    agree = f"{_and(names)} {'agree' if len(names) > 1 else 'agrees'} with the reference"
    speedup = content["speedup"]["training"]
    if not speedup:
        return f"{agree}."
    fastest = names[-1]
    over = _and(
        [f"{ratio(factors[fastest])} as fast as {base}" for base, factors in speedup.items() if fastest in factors]
    )
    return f"{agree}. {fastest} trains {over}."


def write(folder: Path, content: Content, traces: Sequence[Trace]) -> None:
    """Write all files of the report into `folder`; speeds only if the backends agree.

    ``report.json`` comes first, so that a full disk leaves it.
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
    with run_files.damaged(place, "the report of compare-backends"):
        _write_pages(folder, content, [name for name in charts.NAMES if (folder / name).is_file()])
    return folder / HTML


def _write_pages(folder: Path, content: Content, pictures: Sequence[str]) -> None:
    shown = build(content)
    texts = {MARKDOWN: _markdown(content, shown, pictures), HTML: _html(content, shown, folder, pictures)}
    for name, text in texts.items():
        fileio.write_text(folder / name, text)


def _html(content: Content, shown: Sequence[ReportTable], folder: Path, pictures: Sequence[str]) -> str:
    """Return the report as one self-contained page; each chart is below its table."""
    images = Pictures()
    body = [paragraph(_about(content), "lead"), paragraph(verdict(content), "verdict")]
    for one in shown:
        parts = [table(one.header, one.rows, words=(0, *one.words), sortable=False)]
        parts += [paragraph(one.note, "note")] if one.note else []
        chart = PLACED.get(one.title, "")
        parts += [images.show(folder / chart, one.title)] if chart in pictures else []
        body.append(section(one.title, *parts))
    body.append(section("Environment", facts(environment(content))))
    return document(f"Backends compared: {content['name']}", body, failed=not content["parity"]["passed"])


def _markdown(content: Content, shown: Sequence[ReportTable], pictures: Sequence[str]) -> str:
    """Return the report as Markdown; its images are separate files."""
    lines = [f"# Backends compared: {markdown(content['name'])}", "", verdict(content), "", markdown(_about(content))]
    for one in shown:
        lines += ["", f"## {one.title}", "", *markdown_table(one.header, one.rows, (0, *one.words))]
        lines += ["", one.note] if one.note else []
    lines += ["", *(f"![{name.removesuffix('.png')}]({name})" for name in pictures)]
    lines += ["", "## Environment", "", *(f"- {name}: {value}" for name, value in environment(content))]
    return "\n".join(lines).rstrip() + "\n"


def environment(content: Content) -> list[tuple[str, str]]:
    """Return the facts about backends and machine as names and values."""
    found = content["environment"]
    facts = [(f"{one['name']} ran on", _facts(one["about"])) for one in content["backends"] if one.get("about")]
    facts += [(f"GPU {index}", _facts(gpu)) for index, gpu in enumerate(found["gpus"])]
    facts += [] if found["gpus"] else [("GPU", f"none: {found['gpu_note']}")]
    facts += [
        *software(found),
        ("data", f"{content['data']['path']}, sha256 {content['data']['sha256']}"),
        ("command", "gcnbatch " + " ".join(content["command"])),
        ("made", f"{content['created']}, in {content['seconds']:g} s"),
    ]
    return facts


def _backends(content: Content) -> ReportTable:
    rows = [
        [one["name"], "compared" if one["ready"] else f"left out: {one['reason']}. {one['hint']}".rstrip()]
        for one in content["backends"]
    ]
    return ReportTable(STATES, ["backend", "state"], rows, words=(1,))


def _parity(content: Content) -> ReportTable:
    parity = content["parity"]
    rows = []
    for name, found in parity["backends"].items():
        worst = found["worst"]
        state = "agrees" if found["passed"] else f"FAILS in {found['failures']}"
        off = [number(worst["error"]), number(worst["bound"]), _share(worst["ratio"])]
        rows.append([name, state, str(len(found["deviations"])), f"{worst['name']}, {worst['where']}", *off])
    note = (
        f"The rule: {parity['rule']}. Compared: parameters before training; loss and every gradient of "
        f"{_and(parity['batches'])}; losses of the first "
        f"{counted(len(parity['reference_losses']), 'training step')}; parameters "
        "and running statistics after them."
    )
    header = ["backend", "parity", "arrays", "worst", "off by", "allowed", "of it"]
    return ReportTable("Parity", header, rows, note, words=(1, 3))


def _losses(content: Content) -> ReportTable:
    parity = content["parity"]
    every = {"reference": parity["reference_losses"], **{n: f["losses"] for n, f in parity["backends"].items()}}
    steps = zip(*every.values(), strict=True)
    rows = [[str(step), *(_loss(value) for value in losses)] for step, losses in enumerate(steps, 1)]
    return ReportTable("Loss of the first steps", ["step", *every], rows)


def _pass(content: Content, work: str) -> ReportTable:
    """Return the table of training or inference, as the papers' tables II and III: one column per backend."""
    data, timing = content["data"], content["timing"]
    names, figures = list(timing), [one[work] for one in timing.values()]
    training = work == "training"
    unit, batch = ("epoch", "step") if training else ("data set", "batch")
    rows = [
        [f"seconds per {unit}", *(number(one["seconds"]["median"]) for one in figures)],
        ["  20 % – 80 %", *(_spread(one["seconds"]) for one in figures)],
        [f"us per {batch}", *(number(one["microseconds_per_batch"]["median"]) for one in figures)],
        ["graphs per second", *(number(one["graphs_per_second"]) for one in figures)],
    ]
    for base, factors in content["speedup"][work].items():
        rows.append([f"speedup over {base}", *(ratio(factors[n]) if n in factors else MISSING for n in names)])
    own = [None if training else timing[name]["own_inference"] for name in names]
    if any(own):
        rows.append(["graphs per second, own batches", *(number(of and of["graphs_per_second"]) for of in own)])
        rows.append(["  graphs in such a batch", *(_whole(of and of["batch_size"]) for of in own)])
    one = figures[0]
    graphs = data["training_graphs"] if training else data["graphs"]
    size = data["batch_size"] if training else data["inference_batch_size"]
    timed = f"{one['timed_batches']} of {counted(one['batches'], 'batch', 'batches')} timed, the rest in proportion"
    timed = "all of it timed" if one["timed_batches"] == one["batches"] else timed
    note = f"{counted(graphs, 'graph')} in batches of {size}; {timed}; median of {one['repetitions']} after warm-up."
    note += " Own batches: as many graphs as a backend takes unless train.eval_batch_size is given." if any(own) else ""
    return ReportTable(f"{work.capitalize()} time", [content["name"], *names], rows, note)


def _step(content: Content) -> ReportTable:
    timing = content["timing"]
    rows = [
        ["launches per step", *(_whole(one["launches_per_step"]) for one in timing.values())],
        ["busy share of the time", *(_share(one["busy_share"]) for one in timing.values())],
        ["peak memory, MiB", *(number(one["peak_bytes"] / 2**20) for one in timing.values())],
    ]
    note = (
        "Launches: kernels of one training step, including the gather of its batch. Busy: time in the kernels of one "
        "step (in the operations, if nothing is launched) over the wall time of a step. Memory: peak of the "
        "arrays of a runner with its data, steps and inference, without a data set in host memory. The timeline shows "
        "a step with every call and kernel recorded, which slows the host down."
    )
    return ReportTable("A training step", ["", *timing], rows, note)


def _operations(content: Content) -> ReportTable:
    """Return microseconds per operation, as the papers' table IV, with the last backend's speedups."""
    operations = content["operations"]
    names = list(operations)
    launching = [one["name"] for one in content["backends"] if one.get("clock") == "device"]
    header = ["us per training step", *names, *(f"{name} launches" for name in launching)]
    header += [f"{names[-1]} over {base}" for base in names[:-1]]
    costs = {label: {name: operations[name].get(label) for name in names} for label in _labels(content)}
    keys = ("microseconds", "launches")
    costs["sum"] = {name: {key: sum(cost[key] for cost in operations[name].values()) for key in keys} for name in names}
    rows = []
    for label, of in costs.items():
        times = [cost["microseconds"] if cost else None for cost in of.values()]
        launches = [_whole(cost["launches"]) if (cost := of[name]) else MISSING for name in launching]
        speedups = [ratio(time / times[-1]) if time and times[-1] else MISSING for time in times[:-1]]
        rows.append([label, *map(number, times), *launches, *speedups])
    read = _and([f"{name} by {'device events' if name in launching else 'the host clock'}" for name in names])
    note = (
        f"Median over {counted(content['effort']['profiled'], 'step')}; {read}, an operation's launches queued before "
        "they run. "
        "MatMul, Add, ReLU and Dropout are timed separately here; a training step fuses them if its backend can."
    )
    return ReportTable("Operations", header, rows, note)


def _functions(content: Content) -> ReportTable:
    """Return milliseconds per epoch by function, as in papers on full-batch training, CPU first."""
    operations, epoch = content["operations"], content["data"]["steps_per_epoch"] / 1e3
    names = list(operations)
    times: dict[str, list[float | None]] = {}
    for function, label in FUNCTIONS.items():
        costs = [operations[name].get(label) for name in names]
        if any(costs):
            times[function] = [cost["microseconds"] * epoch if cost else None for cost in costs]
    times["sum"] = [sum(column) for column in zip(*([t or 0.0 for t in row] for row in times.values()), strict=True)]
    wall = [content["timing"][name]["training"]["seconds"]["median"] * 1e3 for name in names]
    times["total training time"] = list(wall)
    rows = [
        [function, *map(number, row), *(ratio(row[0] / time) if row[0] and time else MISSING for time in row[1:])]
        for function, row in times.items()
    ]
    header = ["ms per epoch", *names, *(f"{name} over {names[0]}" for name in names[1:])]
    note = (
        "GraphSum is the adjacency product, with its normalisation; SparseMatmul exists where features are sparse. "
        "CrossEntropyLoss forward yields its gradient too. The total is wall time and includes the optimiser."
    )
    return ReportTable("Functions", header, rows, note)


def _fast_math(content: Content) -> ReportTable:
    rows = []
    for name, found in content["fast_math"].items():
        exact, fast = (one["training"]["seconds"]["median"] for one in (content["timing"][name], found))
        scores = [_loss(found[key]) for key in ("exact", "fast")]
        rows.append(
            [name, number(exact), number(fast), ratio(exact / fast), _share(found["worst"]["share_of_bound"]), *scores]
        )
    figure = next(iter(content["fast_math"].values()))["figure"]
    header = ["", "s per epoch", "with fast-math", "speedup", "worst error of what parity allows"]
    header += [f"test {figure}", "with fast-math"]
    note = (
        "cuda.fast_math compiles the kernels with --use_fast_math: approximate division, roots, exponentials, and "
        "denormal numbers as 0. Test figures are those after the last of "
        f"{counted(content['config']['train']['epochs'], 'epoch')}, same seed."
    )
    return ReportTable("Fast-math", header, rows, note)


def _throughput(content: Content) -> ReportTable:
    operations = content["operations"]
    header = ["operation", *(f"{name} {unit}" for unit in ("GB/s", "GFLOP/s") for name in operations)]
    rows = []
    for label in _labels(content):
        costs = [of.get(label) or {} for of in operations.values()]
        keys = ("gigabytes_per_second", "gigaflops")
        rows.append([label, *(number(cost.get(key)) for key in keys for cost in costs)])
    note = (
        "Compulsory bytes (every input read once, every result written once) and floating-point operations of the "
        "formula, over the time above. A kernel may move more bytes, or fewer if a cache holds them."
    )
    return ReportTable("Throughput", header, rows, note)


def _labels(content: Content) -> list[str]:
    return list(dict.fromkeys(label for rows in content["operations"].values() for label in rows))


def _about(content: Content) -> str:
    data = content["data"]
    return (
        f"{data['name']}: {counted(data['graphs'], 'graph')}, {counted(data['nodes'], 'node')} · "
        f"{content['config']['model']['kind']}, {counted(data['parameters'], 'parameter')}, "
        f"batch {data['batch_size']} · {content['created']}"
    )


def _facts(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _spread(figure: dict[str, float]) -> str:
    return f"{number(figure['p20'])} – {number(figure['p80'])}"


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.0f} %"


def _loss(value: float | None) -> str:
    return MISSING if value is None else f"{value:.6f}"


def _whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"
