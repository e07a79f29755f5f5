"""The members of a run: repeats with other split seeds, folds, and models of an ensemble with other weight seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from gcnbatch.config import Config
from gcnbatch.data import splits
from gcnbatch.data.graphs import Split
from gcnbatch.errors import InputError
from gcnbatch.figures import DRAWN_MEMBERS
from gcnbatch.text import is_storable, quoted
from gcnbatch.training.experiment import Experiment

GENERATED = "data.h5"  # a run's own synthetic set
_SEEDS = 2**63  # seeds wrap around
_NAME = re.compile(r"(?:repeat(\d+))?-?(?:fold(\d+))?-?(?:model(\d+))?")


@dataclass(frozen=True)
class Planned:
    """A member of a run.

    Parameters
    ----------
    name : str
        Its folder in the run's folder; empty for the only member of a run.
    title : str
        Its name for users: "fold 2 of 5".
    experiment : Experiment
        With the member's own seeds: trained alone with this configuration, it ends with the same bits.
    split : Split
    number : int
        Its place in the run, from 0.
    """

    name: str
    title: str
    experiment: Experiment
    split: Split
    number: int

    @property
    def is_drawn(self) -> bool:
        """Whether training draws the member's figures."""
        return self.number < DRAWN_MEMBERS


def plan(experiment: Experiment) -> list[Planned]:
    """Return the members of a run in order: by repeat, then fold, then model.

    Repeat r (from 1) has the split seed of the run plus r - 1, model m the run's seed plus m - 1.
    """
    config = experiment.config
    found: list[Planned] = []
    for repeat in range(config.split.repeats):
        parts = _splits(experiment, repeat)
        for (fold, split), model in product(enumerate(parts), range(config.train.ensemble)):
            numbers = list(_numbers(config, repeat, fold, model))
            name = "-".join(f"{what}{number + 1}" for what, number, _ in numbers)
            title = ", ".join(f"{what} {number + 1} of {count}" for what, number, count in numbers)
            own = experiment.like(seeded(config, repeat, model)) if numbers else experiment
            found.append(Planned(name, title, own, split, len(found)))
    return found


def different_splits(planned: Sequence[Planned]) -> list[Split]:
    """Return the splits of members, each once: models of an ensemble share one."""
    return list({id(one.split): one.split for one in planned}.values())


def has_members(config: Config) -> bool:
    """Return whether the members of a run have folders of their own."""
    return models(config) > 1


def models(config: Config) -> int:
    """Return the number of members of a run."""
    return max(config.split.folds, 1) * config.split.repeats * config.train.ensemble


def member_folders(folder: Path) -> list[Path]:
    """Return the folders of a run's members that are there, in the order of `plan`."""
    found = {path: numbers for path in folder.glob("*[0-9]") if (numbers := member_numbers(path.name))}
    return sorted(found, key=found.__getitem__)


def member_numbers(name: str) -> tuple[int, ...] | None:
    """Return repeat, fold and model of a member's folder from 1, 0 for each that is not in its name; else None."""
    match = _NAME.fullmatch(name)
    return tuple(int(number or 0) for number in match.groups()) if match else None


def data_file(config: Config, folder: Path) -> Path:
    """Return the data set of the run in this folder."""
    return folder / GENERATED if config.data.synthetic else Path(config.data.path)


def with_absolute_paths(config: Config) -> Config:
    """Return the configuration with paths that hold in any working folder.

    Raises
    ------
    InputError
        When config.toml cannot hold such a path.
    """
    found = config
    for section, key in (("data", "path"), ("train", "from_run")):
        table = getattr(config, section)
        if path := getattr(table, key):
            absolute = str(Path(path).resolve())
            if not is_storable(absolute):
                raise InputError(f"{section}.{key}", quoted(absolute), "a path in UTF-8", "Rename that folder.")
            found = found.model_copy(update={section: table.model_copy(update={key: absolute})})
    return found


def _splits(experiment: Experiment, repeat: int) -> list[Split]:
    config = seeded(experiment.config, repeat, 0)
    about = (config.split, config.seed, experiment.split_rows)
    return splits.make_splits(*about)


def _numbers(config: Config, repeat: int, fold: int, model: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, number from 0 and count of each of repeat, fold and model that there are several of."""
    counts = config.split.repeats, config.split.folds, config.train.ensemble
    for what, number, count in zip(("repeat", "fold", "model"), (repeat, fold, model), counts, strict=True):
        if count > 1:
            yield what, number, count


def seeded(config: Config, repeat: int, model: int) -> Config:
    """Return the configuration with the seeds of a member."""
    seed = (splits.split_seed(config.split, config.seed) + repeat) % _SEEDS
    split = config.split.model_copy(update={"seed": seed})
    return config.model_copy(update={"seed": (config.seed + model) % _SEEDS, "split": split})
