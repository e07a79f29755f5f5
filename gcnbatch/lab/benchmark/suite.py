"""A suite: data sets, models and published figures, from its TOML file in this folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from gcnbatch.config_tree import read_toml
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.errors import InputError, closest
from gcnbatch.resources import shipped_config
from gcnbatch.text import listed

GIVEN = "given"  # the split that a suite's tables have
NAMES = ("moleculenet", "moleculeace", "admet")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSet(_Entry):
    """A table of molecules: its possible file names, and its columns.

    A given split is in the column `split`, or `test_files` are the table of its test rows. `metric` is what chooses and
    scores models; empty: the usual one of the target.
    """

    title: str
    files: tuple[str, ...]
    test_files: tuple[str, ...] = ()
    targets: tuple[str, ...]
    smiles: str = ""
    split: str = ""
    metric: str = ""


class Model(_Entry):
    """A model: the features of its import, a shipped configuration (``{set}``: name of the set); none: the baseline.

    Without `features`, a configuration is a recipe: it names them, and each run keeps the data set of the table.
    `part_of` names an ensemble of models that are equal to this one, so that a run of the ensemble has its scores.
    `mean_of` names the models whose mean output this one is; it has no run of its own.
    """

    title: str
    features: str = ""
    config: str = ""
    ensemble: int = 1
    part_of: str = ""
    mean_of: tuple[str, ...] = ()

    @property
    def is_recipe(self) -> bool:
        """Whether each run imports the table as its configuration says."""
        return bool(self.config) and not self.features

    def shipped(self, name: str) -> Path:
        """Return the configuration for this set."""
        return shipped_config(self.config.format(set=name))


class Source(_Entry):
    """Where published figures stand, and how they were measured."""

    title: str
    url: str


class Published(NamedTuple):
    """A published score of a model."""

    source: str
    model: str
    score: float


class Suite(_Entry):
    """All of a suite's file.

    Parameters
    ----------
    title : str
    about : str
        What its page says of splits and scores.
    splits : tuple of str
    table : dict
        What tables of all sets have in common; in names of files, ``{set}`` stands for the set.
    sets, sources : dict
    models : dict
        Empty where recipes are the models.
    features : dict of FeaturizerOptions
    published : dict
        Source -> split -> set -> model -> score.
    means : dict
        The same for mean scores over all sets of the suite: source -> split -> model -> score.
    """

    title: str
    about: str
    splits: tuple[str, ...]
    table: dict[str, Any] = {}
    sets: dict[str, DataSet]
    features: dict[str, FeaturizerOptions] = {}
    models: dict[str, Model] = {}
    sources: dict[str, Source]
    published: dict[str, dict[str, dict[str, dict[str, float]]]]
    means: dict[str, dict[str, dict[str, float]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _whole_sets(cls, tree: dict[str, Any]) -> dict[str, Any]:
        common = {"title": "{set}", **tree.get("table", {})}

        def named(value: Any, name: str) -> Any:
            if isinstance(value, list):
                return [named(one, name) for one in value]
            return value.format(set=name)

        sets = {
            name: {key: named(value, name) for key, value in {**common, **own}.items()}
            for name, own in tree["sets"].items()
        }
        return {**tree, "sets": sets}

    def with_parts(self, wanted: Sequence[str]) -> list[str]:
        """Return the models that are run for the wanted ones (none: for all), those of a mean in its place."""
        parts = [part for key in wanted or self.models for part in self.models[key].mean_of or (key,)]
        return list(dict.fromkeys(parts))

    def with_recipes(self, names: Iterable[str]) -> Suite:
        """Return the suite with these shipped configurations as its models."""
        return self.model_copy(update={"models": {name: Model(title=name, config=name) for name in names}})

    def scores(self, name: str, split: str) -> list[Published]:
        """Return the published scores of a set and split; without a name, the mean scores over all sets."""
        means = {source: splits.get(split, {}) for source, splits in self.means.items()}
        of_set = {source: splits.get(split, {}).get(name, {}) for source, splits in self.published.items()}
        tables = (of_set if name else means).items()
        return [Published(source, model, score) for source, models in tables for model, score in models.items()]


@cache
def load(name: str = NAMES[0]) -> Suite:
    """Return a suite that ships with the package."""
    return TypeAdapter(Suite).validate_python(read_toml(Path(__file__).with_name(f"{name}.toml")))


def find_sets(suite: Suite, folder: Path, wanted: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Return the tables in a folder by set: all that are there, or the wanted ones.

    A set has one table, or one of training and one of test rows.

    Raises
    ------
    InputError
        When there is none, or a wanted one is unknown or missing.
    """
    check_names("--sets", wanted, list(suite.sets))
    if not folder.is_dir():
        raise InputError(str(folder), "no such folder", "a folder with tables of molecules")
    found = {}
    for name, one in suite.sets.items():
        if wanted and name not in wanted:
            continue
        needed = [files for files in (one.files, one.test_files) if files]
        there = [next((folder / file for file in files if (folder / file).is_file()), None) for files in needed]
        tables = tuple(path for path in there if path is not None)
        if len(tables) == len(needed):
            found[name] = tables
        elif wanted or tables:
            files = needed[there.index(None)]
            raise InputError(str(folder), f"no {listed(files, ' or ')} in it", f"the table of {one.title}")
    if not found:
        known = [one.files[0] for one in suite.sets.values()]
        raise InputError(str(folder), "no table of the suite in it", f"some of {listed(known)}")
    return found


def check_names(option: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a name that is not known."""
    for name in wanted:
        if name not in known:
            raise InputError(option, f"'{name}'", ", ".join(known), closest(name, known))
