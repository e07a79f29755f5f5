"""Configuration of a call: a TOML file or tables, then named options, then single keys; the later source wins.

This module imports nothing large: `train` wakes the GPU and starts its workers before it checks the configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.backends import registry
from gcnbatch.config_tree import plain, put, read_toml
from gcnbatch.data.endings import is_dataset, is_table
from gcnbatch.errors import InputError, nearest
from gcnbatch.options.declaration import parameters

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.config_sections import CudaConfig
    from gcnbatch.data.graphs import GraphSet
    from gcnbatch.fileio import StrPath
    from gcnbatch.options.common import Say, Settings
    from gcnbatch.options.prediction import PlaceOptions
    from gcnbatch.options.sources import ConfigLike, DataLike

Options = dict[tuple[str, ...], Any]  # None: not given


def load(config: ConfigLike | None, options: Options, settings: Settings) -> Config:
    """Return the configuration merged by `gather`; a message about a key of the file names the file."""
    return check(gather(config, options, settings), config, options, settings)


def check(
    tree: dict[str, Any],
    config: ConfigLike | None,
    options: Options,
    settings: Settings,
    say: Say = lambda line: None,
) -> Config:
    """Return the configuration of a tree that `gather` merged from the other arguments.

    A run to start from gives the model, but for keys of [model] in `settings`.
    """
    from gcnbatch.config import resolve

    if isinstance(train := tree.get("train"), dict) and train.get("from_run"):
        from gcnbatch.training.warm_start import with_model_of

        chosen = {key.partition(".")[2] for key in settings if key.startswith("model.")}
        tree, unused = with_model_of(tree, chosen)
        if unused:
            keys = ", ".join(f"model.{key}" for key in unused)
            say(f"the model is that of {train['from_run']}; not used: {keys} of the configuration (--set changes it)")
    given = [path for path, value in options.items() if value is not None]
    given += [tuple(key.split(".")) for key in settings]
    checked = resolve(tree, str(config) if isinstance(config, str | os.PathLike) else "configuration", given)
    registry.report_unused(checked.backend, options.get(("device",)), options.get(("cuda", "resident")), say)
    return checked


def gather(config: ConfigLike | None, options: Options, settings: Settings) -> dict[str, Any]:
    """Merge configuration, named options (None: not given) and single keys; without any, use the quickstart.

    A bare word that is not a file is the name of a shipped configuration. A run without a name gets that of its
    configuration, else that of its data.
    """
    from gcnbatch.resources import shipped_config

    given = {path: plain(value) for path, value in options.items() if value is not None}
    named = {*given, *(tuple(key.split(".")) for key in settings)}
    if config is None and named.isdisjoint({("data", "path"), ("data", "synthetic"), ("train", "from_run")}):
        config = shipped_config("quickstart")
    name = Path(given.get(("data", "path"), "")).stem if config is None else ""
    if config is None:
        tree: dict[str, Any] = {}
    elif isinstance(config, str | os.PathLike):
        path = _not_data(Path(config))
        if not path.suffix and not path.exists():
            path = shipped_config(str(path))
        tree, name = read_toml(path), path.stem
    elif isinstance(config, Mapping):
        tree = plain(config)
    elif hasattr(config, "model_dump"):
        tree = config.model_dump(mode="json")
    else:
        raise InputError("config", type(config).__name__, "a path, tables or a Config", "Give data as data=…")
    if name and "name" not in tree:
        tree["name"] = run_name(name)
    for key_path, value in [*given.items(), *((tuple(key.split(".")), plain(one)) for key, one in settings.items())]:
        put(tree, key_path, value)
    if ("data", "path") in given:
        put(tree, ("data", "synthetic"), "")
    return tree


def run_name(text: str) -> str:
    """Return a text in the letters that the name of a run may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:80]


def keys_of(given: object) -> Options:
    """Return the keys of the configuration that the parameters of a command set; see `gcnbatch.options.declaration`."""
    found = [one for one in parameters(type(given)).values() if one.form.key]
    values = {tuple(one.form.key.split(".")): getattr(given, one.name) for one in found}
    return {path: str(value) if isinstance(value, os.PathLike) else value for path, value in values.items()}


def cuda(given: PlaceOptions) -> CudaConfig:
    """Return the [cuda] section of a command that predicts; keys of other sections are refused."""
    registry.report_unused(given.backend, given.device, given.resident, given.say)
    return section("cuda", given.settings or {}, {("cuda", "resident"): given.resident}).cuda


def section(name: str, settings: Settings, options: Options) -> Config:
    """Return a configuration that differs from the defaults in keys of one section; other keys are refused."""
    from gcnbatch.config import keys, resolve

    if other := next((key for key in settings if key.partition(".")[0] != name), ""):
        known = [key for key in keys() if key.startswith(f"{name}.")]
        raise InputError(f"--set {other}", f"not a key of [{name}]", f"{name}.key", nearest("", known))
    return resolve(gather({}, options, settings), where="--set")


def path_of(data: DataLike | None) -> str | None:
    """Return the value of key data.path: a path, "" for a set in memory, None where no data are given.

    Raises
    ------
    InputError
        For other types.
    """
    if data is None or isinstance(data, str | os.PathLike):
        return None if data is None else str(data)
    from gcnbatch.data.graphs import GraphSet

    if not isinstance(data, GraphSet):
        raise InputError("data", type(data).__name__, "a path or a GraphSet", "Make one with gcnbatch.from_smiles.")
    return ""


def graphs_of(data: DataLike | None) -> GraphSet | None:
    """Return a set in memory; None for a path or nothing."""
    return None if data is None or isinstance(data, str | os.PathLike) else data


def optional_path(path: StrPath | None) -> Path | None:
    """Return a path, or None where none is given."""
    return None if path is None else Path(path)


def _not_data(config: Path) -> Path:
    """Refuse data in place of the configuration, and say which command takes them."""
    if is_dataset(config):
        raise InputError(str(config), "a data set", "a TOML configuration", f"Give it as --data {config}.")
    if is_table(config):
        data = f"{config.name.lower().split('.')[0]}.h5"
        raise InputError(
            str(config),
            "a table of molecules",
            "a TOML configuration",
            f"Import it: gcnbatch data import smiles {config} -o {data}; then give --data {data}.",
        )
    return config
