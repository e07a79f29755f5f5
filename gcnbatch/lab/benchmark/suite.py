"""A suite: data sets, models and published figures, from its TOML file in this folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from gcnbatch.config_tree import read_toml
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.errors import InputError, nearest
from gcnbatch.resources import shipped_config
from gcnbatch.text import listed

MOLECULENET = Path(__file__).with_name("moleculenet.toml")
SPLITS = ("random", "scaffold")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSet(_Entry):
    """A table of molecules: its possible file names, and its columns."""

    title: str
    files: tuple[str, ...]
    targets: tuple[str, ...]
    smiles: str = ""


class Model(_Entry):
    """A model: the features of its import, a shipped configuration (``{set}``: name of the set); none: the baseline.

    `part_of` names an ensemble of models that are equal to this one, so that a run of the ensemble has its scores.
    `mean_of` names the models whose mean output this one is; it has no run of its own.
    """

    title: str
    features: str = ""
    config: str = ""
    ensemble: int = 1
    part_of: str = ""
    mean_of: tuple[str, ...] = ()

    def shipped(self, name: str) -> Path:
        """Return the configuration for this set."""
        return shipped_config(self.config.format(set=name))


class Source(_Entry):
    """Where published figures stand, and how they were measured."""

    title: str
    url: str


class Suite(_Entry):
    """All of a suite's file.

    Parameters
    ----------
    sets, models, sources : dict
    features : dict of FeaturizerOptions
    published : dict
        Source -> split -> set -> model -> score.
    """

    sets: dict[str, DataSet]
    features: dict[str, FeaturizerOptions]
    models: dict[str, Model]
    sources: dict[str, Source]
    published: dict[str, dict[str, dict[str, dict[str, float]]]]

    def with_parts(self, wanted: Sequence[str]) -> list[str]:
        """Return the models that are run for the wanted ones (none: for all), those of a mean in its place."""
        parts = [part for key in wanted or self.models for part in self.models[key].mean_of or (key,)]
        return list(dict.fromkeys(parts))


@cache
def load(path: Path = MOLECULENET) -> Suite:
    """Return a suite that ships with the package."""
    return TypeAdapter(Suite).validate_python(read_toml(path))


def find_sets(suite: Suite, folder: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """Return the tables in a folder by set: all that are there, or the wanted ones.

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
        there = [folder / file for file in one.files if (folder / file).is_file()]
        if there and (name in wanted or not wanted):
            found[name] = there[0]
        elif name in wanted:
            raise InputError(str(folder), f"no {listed(one.files, ' or ')} in it", f"the table of {one.title}")
    if not found:
        files = [one.files[0] for one in suite.sets.values()]
        raise InputError(str(folder), "no table of the suite in it", f"some of {listed(files)}")
    return found


def check_names(option: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a name that is not known."""
    for name in wanted:
        if name not in known:
            raise InputError(option, f"'{name}'", listed(known), nearest(name, known))
