"""Replay of an active-learning campaign on measured molecules: how fast a strategy finds the best of them.

It begins with 4 % of the rows, which represent the others. In each round a model is fitted to the known rows, and the
next batch becomes known. There are two baselines with as many rows: the expectation of a random choice, and the rows
that a random forest predicts best. All begin with the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import tables
from gcnbatch.config import Config
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.graphs import Int64
from gcnbatch.data.similarity import KnownMolecules
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.figures import BLUE, GREEN, GREY, legend_above, panels, save
from gcnbatch.progress import counter
from gcnbatch.selection import acquisition
from gcnbatch.selection.acquisition import HIGH, SHOWN, Acquisition
from gcnbatch.selection.candidates import different, representative
from gcnbatch.selection.choice import Criteria, Say
from gcnbatch.selection.surrogates import Kernel, RandomForest, Recipe, Surrogate, features
from gcnbatch.text import counted, listed
from gcnbatch.training import mixed

DATA, TABLE, PICTURE = "molecules.h5", "campaign.csv", "campaign.png"
START, END, BEST = 0.04, 0.2, 0.05  # shares of the rows: known at first, at the end by default, and to be found
_LEAST = 40  # rows; a campaign on fewer shows nothing
GREEDY_FOREST = "greedy_forest"


@dataclass(frozen=True)
class Campaign:
    """A replayed campaign.

    Parameters
    ----------
    folder : Path
        Holds ``campaign.csv``, ``campaign.png`` and the molecules, ``molecules.h5``.
    columns : dict of arrays
        A row for each round, from 0: ``round``, ``measured`` rows, and the share of the best 5 % that ``strategy``,
        ``greedy_forest`` and ``random`` have found.
    by : str
    rows : int
        Rows of the table.
    """

    folder: Path
    columns: dict[str, NDArray[Any]]
    by: str
    rows: int

    @property
    def summary(self) -> dict[str, Any]:
        """The last round, for JSON."""
        last = {name: float(self.columns[name][-1]) for name in ("strategy", GREEDY_FOREST, "random")}
        measured = int(self.columns["measured"][-1])
        return {"folder": str(self.folder), "by": self.by, "rows": self.rows, "measured": measured, **last}

    def text(self) -> str:
        """Return a line for the user."""
        last = self.summary
        return (
            f"after {last['measured']:,} of {counted(self.rows, 'row')}: {last['strategy']:.0%} of the best "
            f"{BEST:.0%} found by {SHOWN[self.by]}, {last[GREEDY_FOREST]:.0%} by a greedy forest, "
            f"{last['random']:.0%} at random"
        )


def replay(
    folder: Path, criteria: Criteria, n: int | None, rounds: int, config: Config | None, quiet: bool, say: Say
) -> Campaign:
    """Replay a campaign on the molecules in a folder; write its table and picture there.

    Parameters
    ----------
    folder : Path
        Has the data set DATA with fingerprints and descriptors.
    criteria
        Only rule, objective, diversity, deviations and seed are read.
    n : int or None
        Rows of a batch; None: so many that a fifth of the rows is known at the end.
    rounds : int
    config : Config or None
        Configuration to train in each round; None: the kernel of a mixture alone.

    Raises
    ------
    InputError
        When there are no measured numbers, or too few rows.
    """
    with Dataset(folder / DATA) as dataset:
        known_rows = _check(dataset)
        sign = -1.0 if criteria.minimise else 1.0
        y = np.where(known_rows, sign * dataset.measured[:, 0].astype(np.float64), np.nan)
        pool = np.flatnonzero(known_rows)
        by = acquisition.named(criteria.by or "expected-improvement")
        molecules = mixed.molecules(dataset.header, dataset.feature_tables())
        own: Surrogate = Recipe(config, dataset) if config else Kernel(molecules, sign * y)
        forest = RandomForest(dataset, features(molecules), criteria.seed)
        smiles = dataset.smiles()
        assert smiles is not None  # of an import of SMILES
        options = FeaturizerOptions.from_header(dataset.header.featurizer)
        near = KnownMolecules([], options)
        prints = [near.fingerprint(text) for text in smiles]
        first = max(round(START * len(pool)), 2)
        end = first + n * rounds if n else max(round(END * len(pool)), first + rounds)
        if end > len(pool):
            raise InputError("--rounds, --n", f"{first} + {end - first} of {counted(len(pool), 'row')}", "fewer rows")
        measured = np.linspace(first, end, rounds + 1).round().astype(np.int64)
        start = pool[representative([prints[row] for row in pool.tolist()], first, criteria.seed)]
        threshold = np.sort(y[pool])[-max(round(BEST * len(pool)), 1)]
        wanted = np.flatnonzero(y >= threshold)
        batches = counted(rounds, "batch", "batches")
        say(f"{counted(len(pool), 'row')}: {first} at first, {end} after {batches}, by {SHOWN[by]}")
        found = {"strategy": [_share(start, wanted)], GREEDY_FOREST: [_share(start, wanted)]}
        known = dict.fromkeys(found, start)
        rules: dict[str, tuple[Surrogate, Acquisition, float]] = {
            "strategy": (own, by, criteria.diversity),
            GREEDY_FOREST: (forest, "greedy", 1.0),
        }
        with counter(2 * rounds, " fits", "rounds", quiet=quiet) as bar:
            for step, size in enumerate(np.diff(measured).tolist()):
                for name, (surrogate, rule, most_similar) in rules.items():
                    mean, deviation = surrogate(known[name])
                    left = np.setdiff1d(pool, known[name])
                    high = float(np.quantile(y[known[name]], HIGH))
                    draws = acquisition.normal(criteria.seed + step, 0, len(y))[left]
                    score = acquisition.scores(
                        rule, sign * mean[left], deviation[left], high, criteria.deviations, draws
                    )
                    order = left[np.argsort(-score, kind="stable")]
                    batch = _batch(order, prints, size, most_similar)
                    known[name] = np.sort(np.concatenate([known[name], batch]))
                    found[name].append(_share(known[name], wanted))
                    bar.update()
    by_chance = found["strategy"][0] + (1 - found["strategy"][0]) * (measured - first) / (len(pool) - first)
    columns: dict[str, NDArray[Any]] = {
        "round": np.arange(rounds + 1).astype(np.str_),
        "measured": measured.astype(np.str_),
        **{name: np.array(shares) for name, shares in found.items()},
        "random": by_chance,
    }
    tables.write(folder / TABLE, columns)
    campaign = Campaign(folder, columns, by, len(pool))
    _draw(campaign, folder / PICTURE)
    return campaign


def _check(dataset: Dataset) -> NDArray[np.bool_]:
    """Return which rows (N,) have a measured value."""
    header = dataset.header
    known = ~np.isnan(dataset.measured[:, 0])
    if known.sum() < _LEAST:
        got = f"{counted(int(known.sum()), 'measured row')} in {dataset.path}"
        raise InputError("--campaign", got, f"at least {_LEAST}")
    if header.target != "regression":  # without a name, only columns of labels are taken together
        got = f"labels, no numbers: {listed(header.task_names)}"
        raise InputError("--campaign", got, "a column of measured numbers", "Name it with --maximise or --minimise.")
    return np.asarray(known)


def _batch(order: Int64, prints: Sequence[Any], size: int, most_similar: float) -> Int64:
    """Return the first rows that are diverse; if these are too few, also the first of the others."""
    batch = different([prints[row] for row in order.tolist()], size, most_similar)
    chosen = order[batch]
    return np.concatenate([chosen, np.setdiff1d(order, chosen, assume_unique=True)[: size - len(chosen)]])


def _share(known: Int64, wanted: Int64) -> float:
    return float(np.isin(wanted, known).mean())


def _draw(campaign: Campaign, path: Path) -> None:
    figure, (ax,) = panels(1, 1, width=5.4, height=4.0)
    columns = campaign.columns
    measured = 100 * columns["measured"].astype(np.float64) / campaign.rows
    lines = (("strategy", SHOWN[campaign.by], BLUE), (GREEDY_FOREST, "greedy, random forest", GREEN))
    for name, label, colour in (*lines, ("random", "random", GREY)):
        ax.plot(measured, 100 * columns[name], "o-", color=colour, markersize=3, label=label)
    ax.set(xlabel="measured rows, %", ylabel=f"found of the best {BEST:.0%}, %", ylim=(0, 102))
    legend_above(ax, columns=3)
    save(figure, path)
