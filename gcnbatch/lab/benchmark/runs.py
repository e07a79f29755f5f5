"""A benchmark: a run for every set, split and model, in a folder that a later call goes on with.

The folder holds ``benchmark.json`` (the settings), ``data/`` (imported sets), a run per model in
``<set>/<split>/<model>/``, and the results: ``results.json``, ``results.csv``, ``results.png``, ``report.html``,
``env.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from gcnbatch import fileio, folders
from gcnbatch.baselines import start as start_baseline
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import put, read_toml
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.errors import InputError
from gcnbatch.lab.benchmark import results
from gcnbatch.lab.benchmark.results import Result
from gcnbatch.lab.benchmark.suite import SPLITS, Suite, check_names, find_sets, load
from gcnbatch.text import is_storable
from gcnbatch.training import run, run_files
from gcnbatch.training.reports import METRICS

SETTINGS, DATA = "benchmark.json", "data"
Say = Callable[[str], object]


@dataclass(frozen=True)
class Settings:
    """What all runs of a folder have in common.

    Parameters
    ----------
    suite : str
    seeds : int
        Random splits with different seeds; for the scaffold split, of which there is one, models with other weights.
    epochs : int or None
        None: those of each configuration.
    """

    suite: str = "moleculenet"
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    epochs: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Choice:
    """What to run, by name; empty: everything."""

    sets: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """Where to run; see the keys of the configuration."""

    backend: str = "auto"
    device: int = 0
    jobs: int = 0


@dataclass(frozen=True)
class _Case:
    """A run of the benchmark."""

    set: str
    split: str
    model: str
    tree: dict[str, Any] = field(default_factory=dict)

    def folder(self, target: Path) -> Path:
        return target / self.set / self.split / self.model


def start(
    data: Path,
    out: Path | None,
    settings: Settings,
    choice: Choice,
    machine: Machine,
    say: Say = lambda line: None,
    quiet: bool = False,
) -> tuple[Path, list[Result]]:
    """Run what is missing in the folder `out`; return the folder and the results of all that is finished there.

    Raises
    ------
    InputError
        For unknown names, tables that are not there, and a folder of something else or of other settings.
    """
    suite = load()
    if not is_storable(str(Path(out or "runs").resolve())):
        raise InputError(f"-o {out or 'runs'}", "a path that is not UTF-8", "one in UTF-8, as configurations are")
    check_names("--models", choice.models, list(suite.models))
    check_names("--splits", choice.splits, SPLITS)
    tables = find_sets(suite, data, choice.sets)
    with ExitStack() as stack:
        target = _enter(stack, out, settings)
        for name, path in tables.items():
            for case in _cases(suite, target, name, path, settings, choice, machine, say):
                if _source(suite, target, settings, case) is None:
                    say(f"{suite.sets[name].title}, {case.split} split: {suite.models[case.model].title}")
                    _run(case, target, say, quiet)
        found = list(_finished(suite, target, settings))
        results.write(target, suite, found)
        return target, found


def _enter(stack: ExitStack, out: Path | None, settings: Settings) -> Path:
    """Lock the folder and return it: a new one, or one with the same settings."""
    if out is None or not (out / SETTINGS).exists():
        target = stack.enter_context(folders.results(out, settings.suite)).folder
        fileio.write_json(target / SETTINGS, asdict(settings))
        return target
    stack.enter_context(folders.locked(out, wait=folders.ORPHANS_SECONDS))
    run_files.refuse_links(out)
    expected = "the settings of a benchmark"
    held = run_files.read_json(out / SETTINGS, expected)
    known: Settings = run_files.checked(str(out / SETTINGS), held, TypeAdapter(Settings), expected)
    for name, value in asdict(settings).items():
        if value != getattr(known, name):
            got = "as each configuration has" if value is None else str(value)
            raise InputError(f"--{name}", got, f"{getattr(known, name)}, as in {out}", "Choose another -o.")
    return out


def _cases(
    suite: Suite,
    target: Path,
    name: str,
    table: Path,
    settings: Settings,
    choice: Choice,
    machine: Machine,
    say: Say,
) -> Iterator[_Case]:
    """Yield the runs of a set; its table is imported for the first one."""
    for split in choice.splits or SPLITS:
        chosen = suite.with_parts(choice.models)
        for key in sorted(chosen, key=lambda key: -suite.models[key].ensemble):  # others may be part of an ensemble
            model = suite.models[key]
            path = _imported(suite, target, name, table, model.features, say)
            tree: dict[str, Any] = read_toml(model.shipped(name)) if model.config else {}
            # There is one scaffold split; models on it differ in their weights, and a forest or ensemble in nothing.
            alone = model.ensemble > 1 or not model.config
            repeats, models = (settings.seeds, 1) if split == "random" else (1, 1 if alone else settings.seeds)
            given: dict[tuple[str, ...], Any] = {
                ("name",): f"{name}-{split}-{key}",
                ("data", "path"): str(path),
                ("split", "kind"): split,
                ("split", "repeats"): repeats,
                ("train", "ensemble"): models * model.ensemble,
                **{(part,): value for part, value in asdict(machine).items()},
            }
            if settings.epochs is not None:
                given["train", "epochs"] = settings.epochs
            for keys, value in given.items():
                put(tree, keys, value)
            yield _Case(name, split, key, tree)


def _imported(suite: Suite, target: Path, name: str, table: Path, features: str, say: Say) -> Path:
    """Return the set of a table with these features, which is made if it is not there."""
    path = target / DATA / f"{name}-{features}.h5"
    if not path.exists():
        say(f"{suite.sets[name].title}: import of {table.name}")
        folders.make(path.parent)
        one = suite.sets[name]
        columns = {"smiles_column": one.smiles, "target_columns": list(one.targets)}
        import_smiles(table, path, suite.features[features], **columns, skip_bad_rows=True, name=name)  # type: ignore[arg-type]
    return path


def _run(case: _Case, target: Path, say: Say, quiet: bool) -> None:
    folder = case.folder(target)
    config: Config = resolve(case.tree, where=f"{case.set}, {case.model}")
    if (folder / run_files.CONFIG).is_file():
        run.resume(folder, config.backend, config.device, quiet=quiet, say=say, jobs=config.jobs)
        return
    if not load().models[case.model].config:
        if folder.is_dir():
            folders.empty(folder)  # of a killed fit, which begins anew
        start_baseline(config, folder)
        return
    run.start(config, folder, quiet, say)


def _source(suite: Suite, target: Path, settings: Settings, case: _Case) -> tuple[Path, Path, int] | None:
    """Return folder, data set and models of each split (0: all) of the finished run with a case's models, or None."""
    model = suite.models[case.model]
    data = target / DATA / f"{case.set}-{model.features}.h5"
    if (case.folder(target) / METRICS).is_file():
        return case.folder(target), data, 0
    other = model.part_of
    folder = replace(case, model=other).folder(target)
    count = 1 if case.split == "random" else settings.seeds
    if other and count <= suite.models[other].ensemble and (folder / METRICS).is_file():
        return folder, data, count
    return None


def _finished(suite: Suite, target: Path, settings: Settings) -> Iterator[Result]:
    """Yield the result of every finished run in the folder, and of every mean of such runs, as the suite lists them."""
    for name, split, (key, model) in product(suite.sets, SPLITS, suite.models.items()):
        parts = model.mean_of or (key,)
        places = [_source(suite, target, settings, _Case(name, split, part)) for part in parts]
        found = [place for place in places if place is not None]
        if len(found) < len(parts):
            continue
        if model.mean_of:
            yield results.read_mean([place[:2] for place in found], name, split, key)
        else:
            folder, data, first = found[0]
            yield results.read(folder, data, name, split, key, model.ensemble > 1, first)
