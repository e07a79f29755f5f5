"""Splits: rows for training, validation and test, once or for the k folds of cross-validation.

A split depends only on the seed and the data. The random numbers come from `gcnbatch.philox`, and this module and
`gcnbatch.data.division` contain the whole algorithm. So no other library's version changes a split, and a result can be
repeated years later.
(scikit-learn's stratified splitters also refuse strata of one row, which rare labels have.)

Row numbers of a part are int64 and ascending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.config_sections import SplitConfig
from gcnbatch.data.division import balanced_folds, cut_by_time, evenly_spaced, fill_at_random, fill_by_size, part_sizes
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.label_ranges import known_labels
from gcnbatch.data.schema import Level, Target
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError, nearest
from gcnbatch.moments import moments
from gcnbatch.text import counted, listed, printable, quoted

SIMILARITY: float = SplitConfig.model_fields["similarity"].default
GROUPED = ("scaffold", "cluster")  # kinds whose groups of rows stay whole
REGRESSION_BINS = 10  # quantile bins for stratified splits of a regression target


@dataclass(frozen=True)
class SplitRows:
    """The data that a split depends on.

    Parameters
    ----------
    subject : str
        Name of the data set in messages, usually its path.
    level : {"graph", "node"}
        Kind of the rows. A row without any label has no loss and no metric: it is in no split but a predefined one.
        The features of a node without labels are still used.
    target : {"binary", "multiclass", "regression"}
    y : (R, K) float with NaN where missing, or (R, 1) int32 with -1 where missing
    groups : int32, (R,) or None
        Group (molecular scaffold or cluster) of each row.
    splits : dict of Split
        The splits stored in the file.
    times : float64, (R,) or None
        Time of each row, larger is newer; NaN where missing.
    """

    subject: str
    level: Level
    target: Target
    y: NDArray[Any]
    groups: NDArray[np.int32] | None
    splits: dict[str, Split]
    times: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, data: Dataset, rule: str, similarity: float = SIMILARITY, quiet: bool = True) -> SplitRows:
        """Return the rows of an opened data set for splits by this rule: scaffolds and clusters need groups.

        `similarity` is that of clusters. `quiet`: show no progress.
        """
        header, groups = data.header, data.groups
        if rule == "scaffold":
            from gcnbatch.data.molecule_groups import scaffolds_of  # the featuriser, which no other split needs

            groups = scaffolds_of(data)
        elif rule == "cluster":
            from gcnbatch.data.molecule_groups import clusters_of

            groups = clusters_of(data, similarity, quiet)
        return cls(str(data.path), header.level, header.target, data.y, groups, data.splits, data.times)


def split_seed(config: SplitConfig, seed: int) -> int:
    """Return the seed of the split: the split's own, or the run's if that is -1."""
    return seed if config.seed == -1 else config.seed


def make_split(config: SplitConfig, seed: int, rows: SplitRows) -> Split:
    """Assign the rows to train, valid and test.

    random
        Each part has its share of rows within one row; a part with a share above 0 has at least one row.
    stratified
        As random; every stratum (see `strata`) is divided in the same shares, within two rows.
    scaffold
        Whole groups, the largest first, fill train, then valid, then test. Deterministic; the rule, the cutoffs and the
        order of ties (the group with the later first row first) are those of MoleculeNet and DeepChem.
    cluster
        Whole clusters of similar molecules, in a random order, go to test, then to valid, where they fit into the
        share; the others train.
    time
        The newest rows test, those before them validate. Rows of equal time are in one part: the cuts are those nearest
        to the shares.
    predefined
        The split stored in the file; `config.name` may be empty if the file has one split. Where it has no validation
        rows, the share `config.valid` of its labelled training rows validates, chosen as `config.valid_kind` says.

    Parameters
    ----------
    config : SplitConfig
    seed : int
        The run's seed, used when ``config.seed`` is -1.
    rows : SplitRows

    Raises
    ------
    InputError
        When a part with a share above 0 would be empty, or the groups or the named split are missing.
    """
    if config.kind == "predefined":
        split = _predefined(config, seed, rows)
        _refuse_empty(rows.subject, split, config.valid, 0.0)
    else:
        candidates = _candidates(config.kind, rows)
        if config.kind in GROUPED:
            _enough_groups(config.kind, rows, candidates, 1 + (config.valid > 0) + (config.test > 0))
        split = _deal(config, rows, candidates, config.test, _draws(config, seed))
        _refuse_empty(rows.subject, split, config.valid, config.test)
    return split


def make_splits(config: SplitConfig, seed: int, rows: SplitRows) -> list[Split]:
    """Return the splits of one repeat: those of all folds, or the only one.

    Raises
    ------
    InputError
        As `make_split` and `make_folds`; for folds and repeats of a predefined split, whose test rows are fixed.
    """
    for key in ("folds", "repeats"):
        if config.kind == "predefined" and getattr(config, key) > 1:
            got = f"{getattr(config, key)} with a predefined split, whose test rows are fixed"
            raise InputError(f"split.{key}", got, hint="For several models on it, set train.ensemble (--ensemble).")
    return make_folds(config, seed, rows) if config.folds else [make_split(config, seed, rows)]


def without_copies(split: Split, first_copies: Int64, times: NDArray[np.float64] | None = None) -> Split:
    """Return the split with all copies of a molecule in the part of the first of them.

    Parameters
    ----------
    split : Split
    first_copies : int64, (R,)
        Equal for rows of one molecule.
    times : (R,) or None
        The first copy is the oldest one; None: that of the lowest row.
    """
    rows = np.sort(np.concatenate(list(split.parts().values())))
    rows = rows if times is None else rows[np.argsort(times[rows], kind="stable")]
    _, first, molecule = np.unique(first_copies[rows], return_index=True, return_inverse=True)
    decisive = rows[first][molecule]
    return Split(**{part: np.sort(rows[np.isin(decisive, own)]) for part, own in split.parts().items()})


def describe(config: SplitConfig, seed: int, rows: SplitRows, split: Split) -> dict[str, Any]:
    """Return kind, seed and sizes of a split, for metrics.json; of a predefined one also its name.

    ``valid_kind`` says how validation rows were drawn from the training rows of a predefined split.
    """
    about: dict[str, Any] = {"kind": config.kind}
    if config.kind == "predefined":
        about["name"], stored = _stored(config.name, rows)
        if _lacks_validation(config, stored):
            about["valid_kind"] = config.valid_kind
    return {**about, "seed": split_seed(config, seed), "sizes": [len(part) for part in split.parts().values()]}


def title(about: Mapping[str, Any]) -> str:
    """Return kind and seed of a split that `describe` has described, or a run's file, as text."""
    named = f" {quoted(about['name'])}" if isinstance(about.get("name"), str) else ""
    drawn = f", {about['valid_kind']} validation rows" if isinstance(about.get("valid_kind"), str) else ""
    return printable(f"{about['kind']} split{named}{drawn}, seed {about['seed']}")


def notes(config: SplitConfig, rows: SplitRows) -> list[str]:
    """Return lines for the user: rows in no part, what a predefined split lacks, stored splits that nobody chose."""
    if config.kind != "predefined":
        count, lines = unlabelled(rows.y), []
        left_out = {"label": count}
        if config.kind == "time" and rows.times is not None:
            left_out["time"] = int((np.isnan(rows.times) & has_label(rows.y)).sum())
        for what, count in left_out.items():
            if count:
                have, are = ("has", "is") if count == 1 else ("have", "are")
                lines.append(f"{count:,} of {counted(len(rows.y), 'row')} {have} no {what} and {are} left out")
        if rows.splits and "kind" not in config.model_fields_set:
            names = listed(map(quoted, rows.splits))
            lines.append(
                f"{rows.subject} has a stored split ({names}), which this run does not use; it would with "
                "--set split.kind=predefined"
            )
        return lines
    name, stored = _stored(config.name, rows)
    lines = []
    if _lacks_validation(config, stored) and not config.folds and config.repeats == 1 and not config.cross_fit:
        lines.append(
            f"split {quoted(name)} has no validation rows: the share {config.valid:g} of its "
            f"{counted(len(stored.train), 'training row')} validates ({config.valid_kind}; see split.valid, "
            "split.valid_kind)"
        )
    if not len(stored.test):
        lines.append(f"split {quoted(name)} has no test rows: nothing is tested")
    return lines


def unlabelled(y: NDArray[Any]) -> int:
    """Return the number of rows of y (R, K) without any label."""
    return int((~has_label(y)).sum())


def has_label(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows of y (R, K) have a label."""
    return np.asarray(known_labels(y).any(axis=1))


def make_folds(config: SplitConfig, seed: int, rows: SplitRows) -> list[Split]:
    """Return ``config.folds`` splits; each row is in exactly one of their test parts.

    Sizes of test parts differ by at most one row (random, stratified). With scaffolds and clusters, test parts hold
    whole groups: the largest remaining group goes to the smallest fold, of equal clusters a random one. Of the other
    rows of a fold, the share ``config.valid`` validates, chosen as in `make_split`. Parameters and errors are those of
    `make_split`; more folds than rows or groups are refused.
    """
    candidates, draws = _candidates(config.kind, rows), _draws(config, seed)
    if config.kind in GROUPED:
        groups = _enough_groups(config.kind, rows, candidates, config.folds)
        order, fold = candidates, balanced_folds(config.kind, groups, config.folds, draws)
    else:
        _refuse_more_folds(rows.subject, config.folds, len(candidates))
        order = _shuffled_by_stratum(config, rows, candidates, draws)
        fold = np.arange(len(order)) % config.folds
    folds = []
    for number in range(config.folds):
        inner = _deal(config, rows, np.sort(order[fold != number]), 0.0, draws)
        split = Split(train=inner.train, valid=inner.valid, test=np.sort(order[fold == number]))
        _refuse_empty(f"{rows.subject}, fold {number + 1} of {config.folds}", split, config.valid, 1.0)
        folds.append(split)
    return folds


def group_parts(config: SplitConfig, seed: int, rows: SplitRows, own: Int64, parts: int) -> Int64:
    """Return the part of each of the rows `own` in cross-fitting by scaffold or cluster: groups stay whole.

    There are fewer `parts` where there are fewer groups.

    Raises
    ------
    InputError
        When there is one group.
    """
    groups = _enough_groups(config.rule, rows, own, 2)
    draws = philox.generator(split_seed(config, seed), "split.parts")
    return balanced_folds(config.rule, groups, min(parts, len(np.unique(groups))), draws)


def strata(target: Target, y: NDArray[Any]) -> Int64:
    """Return a stratum number per row, (R,).

    - multiclass: the class.
    - binary: the row's rarest positive task (rarest over all rows; the first of equals), or "no positive". With one
      task, these are positive and negative.
    - regression: one of ten quantile bins of the target; with several tasks, of the mean of their standard scores.

    Rows without any label form one more stratum.
    """
    stratum: Int64
    known = known_labels(y)
    labelled, tasks = known.any(axis=1), y.shape[1]
    if target == "multiclass":
        stratum = y[:, 0].astype(np.int64)
    elif target == "binary":
        positive = known & (y == 1)
        rarest_first = np.argsort(positive.sum(axis=0), kind="stable")
        rarest = rarest_first[np.argmax(positive[:, rarest_first], axis=1)]
        of_labelled = np.where(positive.any(axis=1), rarest, tasks)
        stratum = np.where(labelled, of_labelled, tasks + 1)
    else:
        score = _mean_standard_score(y, known)
        inner = np.linspace(0.0, 1.0, REGRESSION_BINS + 1)[1:-1]
        edges = np.quantile(score[labelled], inner) if labelled.any() else inner
        stratum = np.where(labelled, np.searchsorted(edges, score, side="right"), REGRESSION_BINS)
    return stratum


def _mean_standard_score(y: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    mean, deviation = moments(y)
    half = np.where(known, y / 2 - mean / 2, 0.0)  # a difference of large numbers can overflow
    score: NDArray[np.float64] = (half / np.where(deviation > 0, deviation, 1.0)).sum(axis=1)
    return 2 * score / np.maximum(known.sum(axis=1), 1)


# ------------------------------------------------------------------------------------------------ rules


def _deal(config: SplitConfig, rows: SplitRows, candidates: Int64, test: float, draws: np.random.Generator) -> Split:
    sizes = part_sizes(len(candidates), config.valid, test)
    if config.kind == "scaffold":
        return fill_by_size(candidates, _groups(config.kind, rows)[candidates], sizes)
    if config.kind == "cluster":
        return fill_at_random(candidates, _groups(config.kind, rows)[candidates], sizes, draws)
    if config.kind == "time":
        return cut_by_time(rows.subject, candidates, _times(rows)[candidates], sizes)
    order = _shuffled_by_stratum(config, rows, candidates, draws)
    tested = evenly_spaced(len(order), sizes.test, draws)
    rest = order[~tested]
    validated = evenly_spaced(len(rest), sizes.valid, draws)
    return Split(train=np.sort(rest[~validated]), valid=np.sort(rest[validated]), test=np.sort(order[tested]))


def _shuffled_by_stratum(config: SplitConfig, rows: SplitRows, candidates: Int64, draws: np.random.Generator) -> Int64:
    """Return the candidates in random order; for stratified splits, one stratum after the other."""
    shuffled = draws.permutation(candidates)
    if config.kind == "random":
        return shuffled
    return shuffled[np.argsort(strata(rows.target, rows.y)[shuffled], kind="stable")]


def _predefined(config: SplitConfig, seed: int, rows: SplitRows) -> Split:
    """Return the stored split, with validation rows drawn from its training rows where it has none."""
    _, stored = _stored(config.name, rows)
    if not _lacks_validation(config, stored):
        return stored
    own = config.model_copy(update={"kind": config.valid_kind, "name": ""})
    candidates = np.intersect1d(stored.train, _candidates(own.kind, rows))
    valid = _deal(own, rows, candidates, 0.0, _draws(config, seed)).valid
    return Split(train=np.setdiff1d(stored.train, valid), valid=valid, test=stored.test)


def _lacks_validation(config: SplitConfig, stored: Split) -> bool:
    return not len(stored.valid) and config.valid > 0.0


def _stored(name: str, rows: SplitRows) -> tuple[str, Split]:
    """Return name and split of the file that `name` chooses; empty: the only one."""
    known = rows.splits
    if not known:
        hint = "Set split.kind to random, or store a split."
        raise InputError(rows.subject, "the file carries no split", "one under /splits", hint)
    if not name and len(known) > 1:
        raise InputError(
            rows.subject, f"the file carries {len(known)} splits", "split.name to say which", nearest("", known)
        )
    chosen = name or next(iter(known))
    if chosen not in known:
        raise InputError(rows.subject, f"no split named '{chosen}'", "a split of the file", nearest(chosen, known))
    parts = {part: np.sort(np.asarray(numbers, np.int64)) for part, numbers in known[chosen].parts().items()}
    return chosen, Split(**parts)


# ------------------------------------------------------------------------------------------------ input


def _draws(config: SplitConfig, seed: int) -> np.random.Generator:
    return philox.generator(split_seed(config, seed), "split")


def _candidates(kind: str, rows: SplitRows) -> Int64:
    labelled = np.flatnonzero(known_labels(rows.y).any(axis=1)).astype(np.int64)
    if len(rows.y) and not len(labelled):
        hint = "Name the targets with --target-columns at import."
        raise InputError(rows.subject, "no row has a label", "targets to train on", hint)
    return labelled[~np.isnan(_times(rows)[labelled])] if kind == "time" else labelled


def _groups(kind: str, rows: SplitRows) -> NDArray[np.int32]:
    if rows.groups is None:
        raise InputError(
            rows.subject,
            "the file has no groups" if kind == "scaffold" else "the file has no molecules",
            f"a {kind} per row for split.kind = {kind}",
            "Import molecules with 'gcnbatch data import smiles', or set split.kind to random or stratified.",
        )
    return rows.groups


def _times(rows: SplitRows) -> NDArray[np.float64]:
    if rows.times is None or np.isnan(rows.times).all():
        got, expected = "the file has no times", "a time per row for split.kind = time"
        raise InputError(
            rows.subject, got, expected, "Name the column of dates with --time-column, at import or train."
        )
    return rows.times


def _refuse_more_folds(subject: str, folds: int, rows: int) -> None:
    if folds > rows:
        hint = "Lower split.folds." if rows > 1 else "Use more rows."
        raise InputError(subject, f"split.folds = {folds} for {counted(rows, 'row')}", "at most one fold per row", hint)


def _enough_groups(kind: str, rows: SplitRows, own: Int64, parts: int) -> NDArray[np.int32]:
    """Return the groups of the rows `own`; refuse fewer (scaffolds or clusters) than parts, each of which needs one."""
    groups = _groups(kind, rows)[own]
    count = len(np.unique(groups))
    if count >= parts or not len(groups):
        return groups
    got, expected = f"{count} groups ({kind}s) for {parts} parts", "a group per part"
    if count == 1:
        got = f"all {len(groups):,} rows are in one group (a {kind}), which no split by {kind} divides"
        expected = f"at least {parts} groups"
    raise InputError(rows.subject, got, expected, 'Set split.kind to "random" or "stratified".')


def _refuse_empty(subject: str, split: Split, valid: float, test: float) -> None:
    """Refuse an empty part, unless its share is 0."""
    sizes = {part: len(numbers) for part, numbers in split.parts().items()}
    shares = {"train": 1.0, "valid": valid, "test": test}
    for part, size in sizes.items():
        if size == 0 and shares[part] > 0.0:
            shown = ", ".join(f"{name} {count}" for name, count in sizes.items())
            hint = "Use more rows or another split" + ("." if part == "train" else f", or set split.{part} to 0.")
            raise InputError(subject, f"the {part} part of the split has no row ({shown})", "at least one row", hint)
