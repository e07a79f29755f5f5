"""Configuration of a command: a TOML file, then named options, then ``--set``; the later source wins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcnbatch.backends import registry
from gcnbatch.config_tree import parse_assignment, put, read_toml

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.config_sections import CudaConfig

BACKENDS = f"{', '.join(registry.choices()[:-1])} or {registry.choices()[-1]}."
DeviceOption = Annotated[
    int | None,
    typer.Option("--device", metavar="N", help="GPU, of those that CUDA_VISIBLE_DEVICES shows.", show_default="0"),
]
ResidentOption = Annotated[
    str | None,
    typer.Option(
        "--resident", metavar="auto|on|off", help="Keep the data set in the GPU's memory.", show_default="auto"
    ),
]

JobsOption = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        metavar="auto|K",
        help="Models that train at once: together on a GPU, in K processes on the host.",
        show_default="auto: as many as the GPU takes, on the host 1",
    ),
]


def jobs_key(text: str | None) -> Any:
    """Return the value of key `jobs` for ``--jobs``: 0 for auto."""
    if text is None or not text.isdecimal():
        return 0 if text == "auto" else text
    return int(text)


def load(config: Path | None, options: dict[tuple[str, ...], Any], assignments: list[str]) -> Config:
    """Return the configuration merged by `gather`; a message about a key of the file names the file."""
    return check(gather(config, options, assignments), config, options, assignments)


def check(
    tree: dict[str, Any], config: Path | None, options: dict[tuple[str, ...], Any], assignments: list[str]
) -> Config:
    """Return the configuration of a tree that `gather` merged from the other arguments."""
    from gcnbatch.config import resolve

    if isinstance(train := tree.get("train"), dict) and train.get("from_run"):
        from gcnbatch.train.warm_start import with_model_of

        tree = with_model_of(tree)
    given = [path for path, value in options.items() if value is not None]
    given += [parse_assignment(text)[0] for text in assignments]
    return resolve(tree, str(config) if config is not None else "configuration", given)


def gather(config: Path | None, options: dict[tuple[str, ...], Any], assignments: list[str]) -> dict[str, Any]:
    """Merge TOML file, named options (None: not given) and ``--set``; without any, use the quickstart.

    A bare word that is not a file is the name of a shipped configuration. A run without a name gets that of its
    configuration, else that of its data.
    """
    from gcnbatch.resources import shipped_config

    given = {path: value for path, value in options.items() if value is not None}
    pairs = [parse_assignment(text) for text in assignments]
    named = {*given, *(path for path, _ in pairs)}
    if config is None and named.isdisjoint({("data", "path"), ("data", "synthetic")}):
        config = shipped_config("quickstart")
    elif config is not None and not config.suffix and not config.exists():
        config = shipped_config(str(config))
    tree = read_toml(config) if config is not None else {}
    if config is not None and "name" not in tree:
        tree["name"] = _run_name(config)
    elif config is None and ("data", "path") in given:
        tree["name"] = _run_name(Path(given["data", "path"]))
    for path, value in [*given.items(), *pairs]:
        put(tree, path, value)
    if ("data", "path") in given:
        put(tree, ("data", "synthetic"), "")
    return tree


def gather_cuda(resident: str | None, assignments: list[str]) -> CudaConfig:
    """Return the [cuda] section from ``--resident`` and ``--set cuda.key=value``; other sections are refused."""
    from gcnbatch.config import keys, resolve
    from gcnbatch.errors import InputError, nearest

    tree: dict[str, Any] = {}
    pairs = [parse_assignment(text) for text in assignments]
    for path, value in [*pairs, *([(("cuda", "resident"), resident)] if resident is not None else [])]:
        if path[0] != "cuda":
            known = [key for key in keys() if key.startswith("cuda.")]
            raise InputError(f"--set {'.'.join(path)}", "not a key of [cuda]", "cuda.key", nearest("", known))
        put(tree, path, value)
    return resolve(tree, where="--set").cuda


def _run_name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem)[:80]
