"""A benchmark: a run for every set, split and model, in a folder that a later call goes on with.

The folder holds ``benchmark.json`` (the settings), ``data/`` (tables and imported sets), a run per model in
``<set>/<split>/<model>/``, of a recipe one per seed in ``<set>/<split>/<recipe>/seed<k>/``, and the results:
``results.json``, ``results.csv``, ``results.png``, ``report.html``, ``env.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gcnbatch import fileio, folders, tables
from gcnbatch.baselines import start as start_baseline
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import put, read_toml
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.tables.formats import open_table
from gcnbatch.errors import InputError
from gcnbatch.lab.benchmark import comparison, report, results
from gcnbatch.lab.benchmark.results import Place, Result
from gcnbatch.lab.benchmark.suite import GIVEN, DataSet, Model, Suite, check_names, find_sets, load
from gcnbatch.options.lab import AdmetOptions, MoleculeaceOptions, MoleculenetOptions, RecipeOptions
from gcnbatch.resources import shipped_config
from gcnbatch.text import is_storable
from gcnbatch.training import run, run_files
from gcnbatch.training.plan import GENERATED
from gcnbatch.training.reports import METRICS

SETTINGS, DATA, SPLIT = "benchmark.json", "data", "split"
AnySuite = MoleculenetOptions | MoleculeaceOptions | AdmetOptions


@dataclass(frozen=True)
class Settings:
    """What all runs of a folder have in common.

    Parameters
    ----------
    suite : str
    seeds : int
        Random splits with different seeds; for the scaffold split and a given one, models with other weights.
    epochs : int or None
        None: those of each configuration.
    """

    suite: str = "moleculenet"
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    epochs: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class _Case:
    """A run of the benchmark. Of a recipe there is one for each seed, which imports its table with `make`."""

    set: str
    split: str
    model: str
    seed: int | None = None
    tree: dict[str, Any] = field(default_factory=dict)
    make: run.Make | None = None

    def folder(self, target: Path) -> Path:
        place = target / self.set / self.split / self.model
        return place if self.seed is None else place / f"seed{self.seed}"


def start(name: str, given: AnySuite) -> tuple[Path, list[Result]]:
    """Run what is missing of a suite in a folder; return the folder and the results of all that is finished there.

    Results are written after each set.

    Raises
    ------
    InputError
        For unknown names, tables that are not there, and a folder of something else or of other settings.
    """
    suite, out = load(name), None if given.out is None else Path(given.out)
    for option, place in (("-o", out or "runs"), ("--data", given.data)):
        if not is_storable(str(Path(place).resolve())):
            raise InputError(f"{option} {place}", "a path that is not UTF-8", "one in UTF-8, as configurations are")
    if isinstance(given, RecipeOptions):
        shipped_config(given.recipe)  # refuses an unknown one
        suite, models, splits = suite.with_recipes([given.recipe]), [given.recipe], suite.splits
    else:
        models, splits = list(given.models), tuple(given.splits) or suite.splits
        check_names("--models", models, list(suite.models))
        check_names("--splits", splits, suite.splits)
    tables_of = find_sets(suite, Path(given.data), given.sets)
    with ExitStack() as stack:
        target = _enter(stack, out, Settings(name, given.seeds, given.epochs))
        benchmark = _Benchmark(suite, target, given)
        for of_set, paths in tables_of.items():
            ran = False
            for case in benchmark.cases(of_set, paths, splits, models):
                if benchmark.source(case) is None:
                    benchmark.run(case)
                    ran = True
            if ran or of_set == [*tables_of][-1]:
                found = benchmark.finished()
                report.write(target, suite, found)
        return target, found


def _enter(stack: ExitStack, out: Path | None, settings: Settings) -> Path:
    """Lock the folder and return it: a new one, or one with the same settings."""
    if out is None or not (out / SETTINGS).exists():
        target = stack.enter_context(folders.results(out, settings.suite)).folder
        fileio.write_json(target / SETTINGS, asdict(settings))
        return target
    stack.enter_context(folders.locked(out, wait=folders.ORPHANS_SECONDS))
    run_files.refuse_links(out)
    known = run_files.read_as(out / SETTINGS, Settings, "the settings of a benchmark")
    if known.suite != settings.suite:
        raise InputError(f"-o {out}", f"results of {known.suite}", f"those of {settings.suite}", "Choose another -o.")
    for name, value in asdict(settings).items():
        if value != getattr(known, name):
            got = "as each configuration has" if value is None else str(value)
            raise InputError(f"--{name}", got, f"{getattr(known, name)}, as in {out}", "Choose another -o.")
    return out


@dataclass(frozen=True)
class _Benchmark:
    """The runs of a folder: which there are, and where they are."""

    suite: Suite
    target: Path
    given: AnySuite

    def cases(self, name: str, paths: Sequence[Path], splits: Sequence[str], models: Sequence[str]) -> Iterator[_Case]:
        """Yield the runs of a set; what they share is made of its tables first."""
        for split in splits:
            chosen = self.suite.with_parts(models)
            # Other models may be part of an ensemble.
            for key in sorted(chosen, key=lambda key: -self.suite.models[key].ensemble):
                if self.suite.models[key].is_recipe:
                    yield from self._of_recipe(name, paths, split, key)
                else:
                    yield self._of_repeats(name, paths[0], split, key)

    def _of_recipe(self, name: str, paths: Sequence[Path], split: str, key: str) -> Iterator[_Case]:
        """Yield the runs of a recipe: one for each seed, on drawn splits on the rows of the other models."""
        one = self.suite.sets[name]
        table = _one_table(one, self.target / DATA / f"{name}.csv", paths)
        for seed in self._seeds(split):
            given: dict[tuple[str, ...], Any] = {
                ("seed",): seed,
                ("data", "path"): str(table),
                ("split", "kind"): "predefined" if split == GIVEN else split,
                ("split", "copies_together"): split == GIVEN,
                ("train", "monitor"): one.metric or "auto",
            }
            make = partial(_make, one, table, (one.split or SPLIT) if split == GIVEN else "")
            yield _Case(name, split, key, seed, self._tree(name, split, key, given), make)

    def _seeds(self, split: str) -> range:
        """The seeds of the runs of a recipe; there is one scaffold split."""
        return range(1 if split == "scaffold" else self.given.seeds)

    def _of_repeats(self, name: str, table: Path, split: str, key: str) -> _Case:
        """Return the run of a model on random splits or the scaffold split."""
        model = self.suite.models[key]
        # There is one scaffold split; models on it differ in their weights, and a forest or ensemble in nothing.
        alone = model.ensemble > 1 or not model.config
        repeats, models = (self.given.seeds, 1) if split == "random" else (1, 1 if alone else self.given.seeds)
        given: dict[tuple[str, ...], Any] = {
            ("data", "path"): str(self._imported(name, table, model.features)),
            ("split", "kind"): split,
            ("split", "repeats"): repeats,
            ("train", "ensemble"): models * model.ensemble,
        }
        return _Case(name, split, key, tree=self._tree(name, split, key, given))

    def _tree(self, name: str, split: str, key: str, given: dict[tuple[str, ...], Any]) -> dict[str, Any]:
        """Return the configuration of a run, with these keys."""
        model = self.suite.models[key]
        tree: dict[str, Any] = read_toml(model.shipped(name)) if model.config else {}
        given |= {("name",): f"{name}-{split}-{key}"}
        given |= {(part,): getattr(self.given, part) for part in ("backend", "device", "jobs")}
        if self.given.epochs is not None:
            given["train", "epochs"] = self.given.epochs
        for keys, value in given.items():
            put(tree, keys, value)
        return tree

    def _imported(self, name: str, table: Path, features: str) -> Path:
        """Return the set of a table with these features, which is made if it is not there."""
        path = self.target / DATA / f"{name}-{features}.h5"
        if not path.exists():
            self.given.say(f"{self.suite.sets[name].title}: import of {table.name}")
            folders.make(path.parent)
            _import(self.suite.sets[name], table, path, self.suite.features[features], name)
        return path

    def run(self, case: _Case) -> None:
        """Train and test, or go on with it."""
        folder, model, say = case.folder(self.target), self.suite.models[case.model], self.given.say
        seed = "" if case.seed is None or self.given.seeds == 1 else f", seed {case.seed}"
        say(f"{self.suite.sets[case.set].title}, {case.split} split: {model.title}{seed}")
        config: Config = resolve(case.tree, where=f"{case.set}, {case.model}")
        if (folder / run_files.CONFIG).is_file():
            run.resume(folder, config.backend, config.device, quiet=self.given.quiet, say=say, jobs=config.jobs)
            return
        if folder.is_dir():
            folders.empty(folder)  # of a killed call, which begins anew
        if model.config:
            run.start(config, folder, self.given.quiet, say, make=case.make)
        else:
            start_baseline(config, folder)

    def source(self, case: _Case) -> Place | None:
        """Return where the finished run with a case's models is, or None."""
        model, folder = self.suite.models[case.model], case.folder(self.target)
        data = self.target / DATA / f"{case.set}-{model.features}.h5" if model.features else folder / GENERATED
        if (folder / METRICS).is_file():
            return Place(folder, data)
        if not (other := model.part_of):
            return None
        folder = replace(case, model=other).folder(self.target)
        count = 1 if case.split == "random" else self.given.seeds
        if count <= self.suite.models[other].ensemble and (folder / METRICS).is_file():
            return Place(folder, data, count)
        return None

    def finished(self) -> list[Result]:
        """Return the results of every finished run, and of every mean of such runs, as the suite lists them.

        Of given splits, the results are of all recipes in the folder, and means over sets come last.
        """
        models = dict(self.suite.models)
        if GIVEN in self.suite.splits:
            earlier = {path.name for path in self.target.glob(f"*/{GIVEN}/*") if path.is_dir()} - models.keys()
            models |= self.suite.with_recipes(sorted(earlier)).models
        places = product(self.suite.sets, self.suite.splits, models.items())
        found = [one for name, split, (key, model) in places for one in self._read(name, split, key, model)]
        return [*found, *comparison.means(self.suite, found)] if GIVEN in self.suite.splits else found

    def _read(self, name: str, split: str, key: str, model: Model) -> list[Result]:
        if model.is_recipe:
            folders_of = (_Case(name, split, key, seed).folder(self.target) for seed in self._seeds(split))
            there = [Place(folder, folder / GENERATED) for folder in folders_of if (folder / METRICS).is_file()]
            return results.read(there, name, split, key, metric=self.suite.sets[name].metric) if there else []
        parts = model.mean_of or (key,)
        places = [place for part in parts if (place := self.source(_Case(name, split, part)))]
        if len(places) < len(parts):
            return []
        if model.mean_of:
            return [results.read_mean(places, name, split, key)]
        return results.read(places, name, split, key, model.ensemble > 1)


def _one_table(one: DataSet, path: Path, paths: Sequence[Path]) -> Path:
    """Return the table of a set with a given split; of two tables it is made, with a column for the split."""
    if len(paths) == 1:
        return paths[0]
    if not path.exists():
        columns: dict[str, list[str]] = {name: [] for name in (one.smiles, *one.targets, SPLIT)}
        for part, source in zip(("train", "test"), paths, strict=True):
            with open_table(source) as table:
                found = table.columns()
            for name in (one.smiles, *one.targets):
                if name not in found:
                    raise InputError(str(source), f"no column '{name}'", "a table of the suite")
                columns[name] += found[name]
            columns[SPLIT] += [part] * len(found[one.smiles])
        folders.make(path.parent)
        tables.write(path, columns)
    return path


def _make(one: DataSet, table: Path, split_column: str, config: Config, out: Path) -> Config:
    """Import the table of a set, as the configuration says of molecules."""
    of = config.molecules
    options = FeaturizerOptions(of.bond_channels, atom_features=of.atom_features).with_texts(
        list(of.bond_properties),
        of.positional,
        of.descriptors,
        of.fingerprint,
        of.fingerprint_radius,
        of.fingerprint_size,
    )
    _import(one, table, out, options, config.name, split_column)
    return config


def _import(
    one: DataSet, table: Path, out: Path, options: FeaturizerOptions, name: str, split_column: str = ""
) -> None:
    import_smiles(
        table,
        out,
        options,
        smiles_column=one.smiles,
        target_columns=list(one.targets),
        split_column=split_column,
        skip_bad_rows=True,
        name=name,
    )
