"""``gcnbatch export``: a run in, an ONNX file and a Python file out, checked against our predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gcnbatch import __version__, fileio, outputs
from gcnbatch.data.atom_features import BOND_PROPERTIES, EXTENDED, HYBRIDISATIONS, RING_SIZES, SYMBOLS
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer_options import FeaturizerOptions, is_molecular
from gcnbatch.data.molecule_features import graph_feature_names
from gcnbatch.data.normal_form import load_rdkit
from gcnbatch.data.schema import Header
from gcnbatch.errors import CheckFailed, GcnbatchError, InputError
from gcnbatch.inference.models import Found, Model, Whole, found_together, load_wholes
from gcnbatch.metrics import label
from gcnbatch.mixture.members import KERNEL, TREES
from gcnbatch.mixture.trees import Trees
from gcnbatch.onnx_export import outputs as computed
from gcnbatch.onnx_export.graph import Graph, load_onnx
from gcnbatch.onnx_export.networks import Arrays, Inputs, inputs_of
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.predictions import output_names
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.text import counted, listed
from gcnbatch.training import run_files
from gcnbatch.training.cross_fit import out_of_fold_scores
from gcnbatch.training.finished import RunData
from gcnbatch.training.mixed import NETWORK, Mixed
from gcnbatch.training.reports import METRICS

PLAIN = Path(__file__).with_name("plain.py")
ONNX = Kind("an ONNX model", begins_with(rb"\x08[\x03-\x20]"), (".onnx",))
PYTHON = Kind("the Python file of an export", begins_with(rb'"""Makes the inputs of the ONNX model'), (".py",))
TOLERANCE = 1e-5  # of values, in the units of `_difference`, or of probabilities
MOST_NODES = 40_000_000  # of all trees: an ONNX file has at most 2 GB, a node takes about 26 bytes
_BATCH = 256
Say = Callable[[str], object]


@dataclass(frozen=True)
class ExportSummary:
    """What was written.

    Parameters
    ----------
    model : str
        The ONNX file.
    python : str
        The Python file beside it; "" for a run that was not trained on SMILES.
    bytes : int
        Of the model.
    members : tuple of str
        Of a mixture, those in the file; else the networks alone.
    left_out : tuple of str
        Of a mixture, those that are not in the file.
    checked : int
        Rows of the run's data on which ONNX Runtime gives our predictions.
    difference : float or None
        The largest difference there, in standard deviations of the target, or of probabilities.
    """

    model: str
    python: str
    bytes: int
    members: tuple[str, ...]
    left_out: tuple[str, ...]
    checked: int = 0
    difference: float | None = None


def export(
    run: Path, out: Path, *, without: Sequence[str] = (), check: int = 1000, say: Say = lambda line: None
) -> ExportSummary:
    """Write a run as an ONNX model, and beside it a Python file that makes its inputs from SMILES.

    Parameters
    ----------
    run : Path
    out : Path
    without : sequence of str
        Members of a mixture to leave out; the weights of the others are normalised.
    check : int
        Most rows of the run's data on which the model is compared with ours; 0: none.
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        When the run has no model of graphs, and for members that cannot be left out.
    CheckFailed
        When the predictions of ONNX Runtime differ from ours; then nothing is written.
    MachineError
        When the package onnx is missing.
    """
    load_onnx()
    target = outputs.check(out, ONNX, [run])
    beside = outputs.check(out.with_suffix(".py"), PYTHON, [run])
    wholes = load_wholes([run], say)
    header = wholes[0].models[0].header
    if header.level == "node":
        raise InputError(str(run), "predicts nodes of a graph", "a model of graphs")
    wholes, left_out = _without(wholes, without, say)
    reads_features = any(one.mixed or model.joins_graph_features for one in wholes for model in one.models)
    features = bool(header.graph_feature_names) and reads_features
    model = _model(run, wholes, features, left_out)
    python = plain(wholes[0].models[0], features, _names(header, model)) if _has_python(header) else ""
    content = model.SerializeToString()
    checked, difference = _check(run, wholes, content, python, features, check, say)
    if python:
        fileio.write_text(beside, python)
    with fileio.atomic_path(target) as temporary:
        temporary.write_bytes(content)
    members = tuple(name for name in _members(wholes) if name not in left_out)
    return ExportSummary(str(out), str(beside) if python else "", len(content), members, left_out, checked, difference)


def _model(run: Path, wholes: Sequence[Whole], features: bool, left_out: Sequence[str]) -> Any:
    header = wholes[0].models[0].header
    graph = Graph()
    found = computed.predictions(graph, wholes, Inputs.of(graph, header, features))
    graph.output("value", found.value, np.float64, "B", header.n_outputs)
    if found.deviation is not None:
        graph.output("deviation", found.deviation, np.float64, "B", header.n_outputs)
    about = {
        "outputs": json.dumps(output_names(header)),
        "target": header.target,
        "units": json.dumps(header.units),
        "channels": json.dumps(header.channel_names),
        "members": json.dumps([name for name in _members(wholes) if name not in left_out]),
        "left_out": json.dumps(left_out),
    }
    return graph.model(("gcnbatch", __version__), f"{run.resolve().name}: {header.target}", about)


def _names(header: Header, model: Any) -> list[str]:
    """Return the names of all columns of the outputs."""
    names = list(output_names(header))
    return names + [f"{name}_std" for name in names] if len(model.graph.output) > 1 else names


# ------------------------------------------------------------------------------------------------ members


def _members(wholes: Sequence[Whole]) -> tuple[str, ...]:
    """Return the members of mixtures that have a weight; else the networks."""
    mixtures = [one.mixed.mixture for one in wholes if one.mixed]
    if not mixtures:
        return (NETWORK,)
    weights = sum(mixture.weights.sum(axis=1) for mixture in mixtures)
    return tuple(name for name, weight in zip(mixtures[0].names, weights, strict=True) if weight)


def _without(wholes: list[Whole], asked: Sequence[str], say: Say) -> tuple[list[Whole], tuple[str, ...]]:
    """Return the models without some members of the mixtures, and the names of these."""
    mixtures = [one.mixed.mixture for one in wholes if one.mixed]
    known = _members(wholes) if mixtures else ()
    for name in asked:
        if name not in known:
            raise InputError("--without", f"'{name}'", listed(known) or "nothing: the run is not a mixture")
    dropped = set(asked)
    if (nodes := sum(_nodes(mixture.members.trees) for mixture in mixtures)) > MOST_NODES:
        say(f"{TREES} left out: {nodes:,} nodes do not fit into an ONNX file")
        dropped.add(TREES)
    if not dropped:
        return wholes, ()
    changed = [replace(one, mixed=_reduced(one.mixed, dropped)) for one in wholes if one.mixed]
    say(_cost(wholes, changed, sorted(dropped)))
    return changed, tuple(sorted(dropped))


def _reduced(mixed: Mixed, dropped: Collection[str]) -> Mixed:
    """Return a mixture without some members; the weights of the others are normalised."""
    mixture = mixed.mixture
    weights = np.where(np.isin(mixture.names, list(dropped))[:, None], 0.0, mixture.weights)
    if not weights.any(axis=0).all():
        raise InputError("--without", listed(sorted(dropped)), "fewer: a task would have no member with a weight")
    kept = replace(
        mixture.members,
        kernel=None if KERNEL in dropped else mixture.members.kernel,
        trees=None if TREES in dropped else mixture.members.trees,
    )
    return replace(mixed, mixture=replace(mixture, members=kept, weights=weights / weights.sum(axis=0)))


def _nodes(trees: Trees | None) -> int:
    return sum(int(forest.nodes.sum()) for _, forest in trees.forests) if trees else 0


def _cost(wholes: Sequence[Whole], changed: Sequence[Whole], dropped: Sequence[str]) -> str:
    """Return a line with the weight of members and the out-of-fold score without them, both means over the mixtures."""
    pairs = [(one.place, one.mixed, other.mixed) for one, other in zip(wholes, changed, strict=True)]
    mixtures = [(place, old, new) for place, old, new in pairs if old and new]
    weight = np.mean([old.mixture.weights[np.isin(old.mixture.names, dropped)].sum(axis=0) for _, old, _ in mixtures])
    line = f"without {listed(dropped)}, of weight {weight:.2f}: "
    try:
        header = wholes[0].models[0].header
        scores = [out_of_fold_scores(place, header, (old, new)) for place, old, new in mixtures]
        before, after = np.mean(np.array(scores, np.float64), axis=0)
        metric = run_files.read_figures(mixtures[0][0] / METRICS)["metric"]
    except GcnbatchError as error:
        return f"{line}the score without them is not known ({error})"
    return f"{line}out-of-fold {label(metric)} {after:.4g} in place of {before:.4g}"


# ------------------------------------------------------------------------------------------------ Python


def _has_python(header: Header) -> bool:
    return is_molecular(header.featurizer) and not FeaturizerOptions.from_header(header.featurizer).as_written


def plain(model: Model, features: bool, names: Sequence[str]) -> str:
    """Return the text of the Python file that makes the inputs of a model from SMILES."""
    header = model.header
    options = FeaturizerOptions.from_header(header.featurizer)
    computed = graph_feature_names(options) if options.of_molecules else ()
    columns = len(header.graph_feature_names) - len(computed)
    found = {
        "outputs": names,
        "symbols": SYMBOLS[:-1],
        "hybridisations": HYBRIDISATIONS,
        "ring_sizes": list(RING_SIZES),
        "extended": options.atom_features == EXTENDED,
        "walk": options.walk,
        "channels": header.n_channels,
        "bond_channels": options.bond_channels,
        "self_loops": options.self_loops,
        "bond_properties": [name for one in options.bond_properties for name in BOND_PROPERTIES[one]],
        "normalized": header.normalized or model.adjacency == "symmetric",
        "largest_fragment": options.largest_fragment,
        "neutralize": options.neutralize,
        "max_nodes": options.max_nodes,
        "stereo": options.sees_stereo,
        "again": options.asks_rdkit,
        "features": features,
        "columns": header.graph_feature_names[:columns],
        "descriptors": bool(options.descriptors),
        "fingerprints": options.fingerprints,
        "radius": options.radius,
        "size": options.size,
    }
    return PLAIN.read_text(encoding="utf-8").replace('r"""{}"""', f'r"""{json.dumps(found)}"""')


# ------------------------------------------------------------------------------------------------ check


def _check(
    run: Path, wholes: Sequence[Whole], content: bytes, python: str, features: bool, most: int, say: Say
) -> tuple[int, float | None]:
    """Compare the model with ours on rows of the run's data; return their number and the largest difference."""
    if not most:
        return 0, None
    try:
        import onnxruntime
    except ImportError:
        say("not checked: onnxruntime is not installed (pip install onnxruntime)")
        return 0, None
    try:
        with RunData.of(run).open() as dataset:
            rows = np.unique(np.linspace(0, dataset.n_graphs - 1, min(most, dataset.n_graphs)).round().astype(np.int64))
            graphs, smiles = dataset.read(rows), dataset.smiles()
    except GcnbatchError as error:
        say(f"not checked: {error}")
        return 0, None
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, settings)
    form = wholes[0].models[0].input_form
    source = BatchSource(graphs, *form)
    blocks = np.split(np.arange(len(rows)), range(_BATCH, len(rows), _BATCH))
    of_graphs = graphs.graph_features.dense() if features and graphs.graph_features is not None else None
    feeds = [inputs_of(source.batch(of), None if of_graphs is None else of_graphs[of]) for of in blocks]
    ours = found_together(wholes, BackendChoice("cpu"), cache(partial(BatchSource, graphs)), _BATCH)
    difference = _difference(wholes, ours, _run(session, feeds))
    if not difference <= TOLERANCE:
        got = f"{difference:.2g} from ours on {counted(len(rows), 'row')} of its data"
        raise CheckFailed("values of ONNX Runtime", got, f"at most {TOLERANCE:g}", "Please report this run.")
    say(f"{counted(len(rows), 'row')} of the run's data: ONNX Runtime differs from ours by at most {difference:.1e}")
    if python and smiles is not None:
        of_python = _feeds_of(python, [[smiles[rows[row]] for row in of] for of in blocks], graphs, blocks)
        say(_about_inputs(feeds, of_python, _difference(wholes, ours, _run(session, of_python))))
    return len(rows), difference


def _run(session: Any, feeds: Sequence[Arrays]) -> list[Any]:
    parts = [session.run(None, feed) for feed in feeds]
    return [np.concatenate(found) for found in zip(*parts, strict=True)]


def _difference(wholes: Sequence[Whole], ours: Found, theirs: Sequence[Any]) -> float:
    """Return the largest difference of values and deviations; infinite where one of two is NaN.

    Of a regression, the unit is the standard deviation of outputs or, if larger, of the targets of training, and of an
    output that is farther from the mean than that, its distance: float32 resolves no more.
    """
    model = wholes[0].models[0]
    unit: Any = 1.0
    if model.header.target == "regression":
        is_plain = np.array(model.scaling.kinds) == "none"  # else, its deviation is that of another scale
        deviation = np.nanstd(ours.outputs, axis=0)
        deviation = np.where(is_plain, np.maximum(model.scaling.std, deviation), deviation)
        unit = np.fmax(np.abs(ours.outputs - np.nanmean(ours.outputs, axis=0)), deviation)
    expected = [ours.outputs, *([] if ours.deviation is None else [ours.deviation])]
    largest = 0.0
    for own, other in zip(expected, theirs, strict=True):
        if not np.array_equal(np.isnan(own), np.isnan(other)):
            return np.inf
        largest = max(largest, float(np.nanmax(np.abs(own - other) / unit, initial=0)))
    return largest


def _feeds_of(python: str, smiles: Sequence[Sequence[str]], graphs: Any, blocks: Sequence[Any]) -> list[Arrays]:
    """Return the inputs that the Python file makes."""
    load_rdkit()  # without its log
    module = ModuleType("model")
    exec(compile(python, "model.py", "exec"), vars(module))  # noqa: S102  our own text, as it will be written
    width = len(module.OPTIONS["columns"])
    columns = graphs.graph_features.measured[:, :width] if width else None
    return [
        module.inputs(texts, None if columns is None else columns[of]) for texts, of in zip(smiles, blocks, strict=True)
    ]


def _about_inputs(feeds: Sequence[Arrays], others: Sequence[Arrays], difference: float) -> str:
    """Return a line that compares the inputs that the Python file makes with ours."""
    unequal = sorted(
        {
            name
            for own, other in zip(feeds, others, strict=True)
            for name, values in own.items()
            if not np.array_equal(values, other[name], equal_nan=values.dtype.kind == "f")
        }
    )
    if not unequal:
        return "the Python file makes the same inputs from SMILES, to the bit"
    return (
        f"the Python file makes the same inputs from SMILES, but for rounding of {listed(unequal)}: "
        f"predictions differ by at most {difference:.1e}"
    )
