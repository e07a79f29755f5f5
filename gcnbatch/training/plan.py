"""The members of a run: repeats with other split seeds, folds, parts of cross-fitting, models with other seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config import Config
from gcnbatch.data import splits
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.shards import is_sharded
from gcnbatch.errors import InputError
from gcnbatch.mixture.folds import make_folds
from gcnbatch.text import is_storable, quoted
from gcnbatch.training.experiment import Experiment

GENERATED = "data.h5"  # a run's own data set: synthetic, of a table, or given in memory
_LEAST_OF_A_PART = 5  # rows that cross-fitting leaves out together
_SEEDS = 2**63  # seeds wrap around
_NAME = re.compile(r"(?:repeat(\d+))?-?(?:fold(\d+))?-?(?:part(\d+))?-?(?:model(\d+))?")


@dataclass(frozen=True)
class Planned:
    """A member of a run.

    Parameters
    ----------
    name : str
        Its folder in the run's folder; empty for the only member of a run.
    block : str
        The folder of the cross-fitted model that it is a part of, in the run's folder; empty for the run's.
    title : str
        Its name for users: "fold 2 of 5".
    experiment : Experiment
        With the member's own seeds: trained alone with this configuration, it ends with the same bits.
    split : Split
    """

    name: str
    title: str
    experiment: Experiment
    split: Split
    block: str = ""


def plan(experiment: Experiment) -> list[Planned]:
    """Return the members of a run in order: by repeat, then fold, then part, then model.

    Repeat r (from 1) has the split seed of the run plus r - 1, model m the run's seed plus m - 1. Models are counted on
    from part to part, so that all have different seeds. Of a cross-fitted run with folds or repeats, each of these is a
    cross-fitted model with a folder of its own, a block, in which its members' folders are.

    Raises
    ------
    InputError
        As `splits.make_splits`; when the rows cannot be cross-fitted.
    """
    config = experiment.config
    found: list[Planned] = []
    for repeat in range(config.split.repeats):
        whole = _splits(experiment, repeat)
        parted = [_cross_fitted(experiment, split, repeat) if config.split.cross_fit else [split] for split in whole]
        places = [(fold, part, split) for fold, parts in enumerate(parted) for part, split in enumerate(parts)]
        for (fold, part, split), model in product(places, range(config.train.ensemble)):
            numbers = list(_numbers(config, repeat, fold, (part, len(parted[fold])), model))
            words = {what: f"{what}{number + 1}" for what, number, _ in numbers}
            block = "-".join(words.pop(what) for what in ("repeat", "fold") if config.split.cross_fit and what in words)
            name = "/".join(filter(None, (block, "-".join(words.values()))))
            title = ", ".join(f"{what} {number + 1} of {count}" for what, number, count in numbers)
            own = seeded(config, repeat, part * config.train.ensemble + model)
            member = experiment.like(own) if numbers else experiment
            found.append(Planned(name, title, member, split, block))
    return found


def blocks(planned: Sequence[Planned]) -> dict[str, list[Planned]]:
    """Return the members of each cross-fitted model of a run, by its folder."""
    found: dict[str, list[Planned]] = {}
    for one in planned:
        found.setdefault(one.block, []).append(one)
    return found


def different_splits(planned: Sequence[Planned]) -> list[Split]:
    """Return the splits of members, each once: models of an ensemble share one."""
    return list({id(one.split): one.split for one in planned}.values())


def has_members(config: Config) -> bool:
    """Return whether the members of a run have folders of their own."""
    return models(config) > 1


def models(config: Config) -> int:
    """Return the number of members of a run; cross-fitted, it may have fewer."""
    return max(config.split.folds, 1) * config.split.repeats * max(config.split.cross_fit, 1) * config.train.ensemble


def has_blocks(config: Config) -> bool:
    """Return whether a run has several cross-fitted models."""
    return config.split.cross_fit > 0 and (config.split.folds > 0 or config.split.repeats > 1)


def member_folders(folder: Path) -> list[Path]:
    """Return the folders of a run's members, or of its blocks, that are there, in the order of `plan`."""
    found = {path: numbers for path in folder.glob("*[0-9]") if (numbers := member_numbers(path.name))}
    return sorted(found, key=found.__getitem__)


def block_folders(folder: Path) -> list[Path]:
    """Return the folders of a run's cross-fitted models that are there, in the order of `plan`; else its own."""
    return [place for place in member_folders(folder) if member_folders(place)] or [folder]


def all_folders(folder: Path) -> list[Path]:
    """Return the folders of a run, of its blocks and of its members that are there."""
    of_members = member_folders(folder)
    return [folder, *of_members, *(path for place in of_members for path in member_folders(place))]


def member_numbers(name: str) -> tuple[int, ...] | None:
    """Return repeat, fold, part and model of a member's folder from 1, 0 for each that its name lacks; else None."""
    match = _NAME.fullmatch(name)
    return tuple(int(number or 0) for number in match.groups()) if match else None


def data_file(config: Config, folder: Path) -> Path:
    """Return the data set of the run in this folder: its own, also where the folder was moved, or that of `config`."""
    own = folder / GENERATED
    return own if config.data.synthetic or own.is_file() else Path(config.data.path)


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
    config, rows = seeded(experiment.config, repeat, 0), experiment.split_rows
    own = config.split.model_copy(update={"valid": 0.0}) if config.split.cross_fit else config.split
    found = splits.make_splits(own, config.seed, rows)
    if (copies := copies_of(experiment)) is not None:
        times = rows.times if own.kind == "time" else None
        return [splits.without_copies(split, copies, times) for split in found]
    return found


def copies_of(experiment: Experiment) -> Int64 | None:
    """Return the first row with the molecule of each graph (G,), if a split keeps copies together."""
    split = experiment.config.split
    wanted = split.copies_together and split.kind != "predefined" and experiment.header.level == "graph"
    return experiment.first_copies if wanted else None


def cross_fit_parts(experiment: Experiment) -> list[Split]:
    """Return the splits of the parts of a cross-fitted run without folds and repeats; see `plan`."""
    (split,) = _splits(experiment, 0)
    return _cross_fitted(experiment, split, 0)


def _cross_fitted(experiment: Experiment, split: Split, repeat: int) -> list[Split]:
    """Return a split for each part of the training and validation rows: it validates, and the others train.

    Copies of a molecule are in one part, and so are groups of a split by scaffold or cluster. A part has at least 5
    rows, if two parts do.
    """
    config, header, dataset = seeded(experiment.config, repeat, 0), experiment.header, experiment.dataset
    for got in ("nodes" if header.level == "node" else "", "shards" if is_sharded(dataset.path) else ""):
        if got:
            expected = "one file of graphs, as of molecules"
            hint = "Name a configuration without it, such as cora for nodes."
            raise InputError("split.cross_fit", f"given for a data set of {got}", expected, hint)
    rows = np.sort(np.concatenate([split.train, split.valid]))
    rows = rows[splits.has_label(experiment.y[rows])]
    is_regression = header.target == "regression"  # whose parts do not depend on targets
    labels = np.zeros(len(rows)) if is_regression else splits.strata(header.target, experiment.y[rows])
    seed = splits.split_seed(config.split, config.seed)
    count = min(config.split.cross_fit, max(len(rows) // _LEAST_OF_A_PART, 2))
    part: NDArray[np.integer[Any]]
    if config.split.rule in splits.GROUPED:
        part = splits.group_parts(config.split, config.seed, experiment.split_rows, rows, count)
    else:
        part = make_folds(experiment.first_copies[rows], labels, seed, count)
    return [Split(train=rows[part != k], valid=rows[part == k], test=split.test) for k in range(part.max() + 1)]


def _numbers(
    config: Config, repeat: int, fold: int, part: tuple[int, int], model: int
) -> Iterator[tuple[str, int, int]]:
    """Yield name, number from 0 and count of each of repeat, fold, part and model that there are several of."""
    counts = config.split.repeats, config.split.folds, part[1], config.train.ensemble
    numbers = repeat, fold, part[0], model
    for what, number, count in zip(("repeat", "fold", "part", "model"), numbers, counts, strict=True):
        if count > 1:
            yield what, number, count


def seeded(config: Config, repeat: int, model: int) -> Config:
    """Return the configuration with the seeds of a member."""
    seed = (splits.split_seed(config.split, config.seed) + repeat) % _SEEDS
    split = config.split.model_copy(update={"seed": seed})
    return config.model_copy(update={"seed": (config.seed + model) % _SEEDS, "split": split})
