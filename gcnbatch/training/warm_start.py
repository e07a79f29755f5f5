"""A warm start: the weights of a trained run as initial weights of another (fine-tuning).

They are copied into the new run's folder, so that a resumed run and members that begin later start from the same bits,
whatever becomes of the run that they come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gcnbatch.config import Config
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.model.gcn import build
from gcnbatch.text import listed, printable
from gcnbatch.training import checkpoint
from gcnbatch.training.checkpoint import Arrays, Checkpoint
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.trained import Trained, check_fit, model_folders, read_trained, same_outputs

INITIAL = "initial.safetensors"
OUTPUT = "output"  # the layer whose columns are the tasks
_OF_TRAINING = ("dropout", "input_dropout", "batch_norm_momentum")  # keys of [model] that change no parameter
_ONE_MODEL = "the folder of one model"


def weights(config: Config, header: Header, folder: Path | None = None) -> Arrays:
    """Return the weights to start from by parameter name: those kept in `folder`, else those of `train.from_run`.

    Raises
    ------
    InputError
        As `source`; when the file in the folder is damaged, or the run has other inputs than `header`.
    """
    if not config.train.from_run:
        return {}
    if folder is not None and (folder / INITIAL).exists():
        kept = checkpoint.load(folder / INITIAL).arrays
        checkpoint.check_weights(folder / INITIAL, build(config.model, header).layout(), kept)
        return kept
    trained = source(config.train.from_run)
    _check_alike(config, header, trained)
    taken = dict(trained.weights)
    if not same_outputs(header, trained.header):
        taken = {name: value for name, value in taken.items() if name.partition(".")[0] != OUTPUT}
    return taken


def keep(config: Config, folder: Path, values: Arrays) -> None:
    """Write the weights to start from into the run's folder, if there are any."""
    if values:
        checkpoint.save(folder / INITIAL, Checkpoint(values, {"run": config.train.from_run}))


def check_kept(config: Config, folder: Path) -> None:
    """Refuse to resume a run whose weights to start from are gone.

    Raises
    ------
    InputError
    """
    if config.train.from_run and not (folder / INITIAL).exists():
        raise InputError(str(folder / INITIAL), "missing", "the weights that the run began with", "Restore the file.")


def source(run: str) -> Trained:
    """Return the model of the run to start from.

    Raises
    ------
    InputError
        When the folder has no weights, those of several models, or damaged ones.
    """
    folders = model_folders(Path(run))
    if len(folders) > 1:
        raise InputError(run, f"{len(folders)} models in it", _ONE_MODEL, f"Choose one, such as {folders[0]}.")
    return read_trained(folders[0])


def with_model_of(tree: Mapping[str, Any], chosen: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration tree with `train.from_run` and the model of that run, and the keys that are not used.

    Parameters
    ----------
    tree : mapping
    chosen : collection of str
        Keys of [model] that change the model of the run. Of the others in the tree, those of `_OF_TRAINING` are used,
        and a kind of its own, which `weights` refuses.
    """
    run, model = tree["train"]["from_run"], tree.get("model", {})
    if not isinstance(run, str) or not isinstance(model, dict):
        return dict(tree), []
    known = source(run).about.model.model_dump(mode="json")
    if model.get("kind", known["kind"]) != known["kind"]:
        return dict(tree), []
    own = {key: value for key, value in model.items() if key not in known or key in {*chosen, *_OF_TRAINING}}
    unused = [key for key, value in model.items() if key not in own and value not in (known[key], *_only(known[key]))]
    return {**tree, "model": {**known, **own}}, unused


def _only(value: Any) -> list[Any]:
    """Return the value of a list of one, which may stand in its place."""
    return value if isinstance(value, list) and len(value) == 1 else []


def describe(experiment: Experiment) -> str:
    """Return a line that says which layers are taken from the run, new and frozen."""
    model, taken, run = experiment.model, experiment.initial, experiment.config.train.from_run
    slots = model.layout().slots
    new = _layers(name for name in slots if name not in taken)
    frozen = f"; frozen: {_layers(model.frozen_parameters())}" if model.frozen else ""
    return f"weights from {printable(run)}: {_layers(taken)}; new: {new}{frozen}"


def _layers(parameters: Iterable[str]) -> str:
    """Return the layers of these parameters."""
    return listed(dict.fromkeys(name.rpartition(".")[0] for name in parameters)) or "none"


def _check_alike(config: Config, header: Header, trained: Trained) -> None:
    """Refuse data with other inputs, and a model of another kind or adjacency, than those of the run."""
    check_fit(trained, "--from", header, "Import the data as for that run.", outputs=False)
    known = trained.about.model
    for key, got, expected in (
        ("kind", config.model.kind, known.kind),
        ("adjacency", config.model.adjacency, known.adjacency),
    ):
        if got != expected:
            raise InputError(f"model.{key}", f"'{got}'", f"'{expected}', as in {trained.place}")
