"""The mixture of a run: what it reads of a data set, and its file ``mixture.safetensors``.

The file has plain arrays: of the kernel, the trees, the transforms of targets and the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gcnbatch import folders, metrics, philox
from gcnbatch.backends.mixtures import Compared, Fingerprint
from gcnbatch.config_sections import ModelConfig
from gcnbatch.data.featurizer_options import ATOM_PAIR
from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.machine import cores
from gcnbatch.mixture import Members, Mixture, Molecules, Prepared, Problem, choose_kinds
from gcnbatch.mixture.folds import make_folds
from gcnbatch.mixture.similarity import masks
from gcnbatch.mixture.store import join, split
from gcnbatch.mixture.transforms import Kind
from gcnbatch.model.gcn import joins_graph_features
from gcnbatch.text import listed
from gcnbatch.timeline import span
from gcnbatch.training import checkpoint
from gcnbatch.training.checkpoint import Checkpoint
from gcnbatch.training.targets import Scaling

FILE, NETWORK = "mixture.safetensors", "gcn"
FITTED = "fitted.safetensors"  # of a run under way: the members beside the networks, and their out-of-fold outputs
_HINT = "Give the table of the molecules (gcnbatch train TABLE), or train the networks alone (--recipe gcn)."


@dataclass(frozen=True)
class Mixed:
    """A mixture as part of a model.

    Parameters
    ----------
    mixture : Mixture
    scaling : Scaling
        Of the targets of the training rows. Outputs of regression are rounded to its decimal places, as those of a
        network are.
    left_out : bool, (T,)
        Tasks that the training rows cannot teach.
    """

    mixture: Mixture
    scaling: Scaling
    left_out: NDArray[np.bool_]

    @property
    def needs_network(self) -> bool:
        """Whether the networks have a weight in any task."""
        names = self.mixture.names
        return NETWORK in names and bool(self.mixture.weights[names.index(NETWORK)].any())

    def outputs(self, of_members: Mapping[str, NDArray[Any]]) -> NDArray[np.floating]:
        """Return the mixture (R, K) of the members' outputs (R, K): float32 probabilities, or float64 values."""
        return self.rounded(self.mixture.combine(of_members))

    def rounded(self, outputs: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return outputs (R, K), or deviations of them, with the digits of the mixture's."""
        if self.mixture.members.target == "regression":
            return self.scaling.rounded(np.asarray(outputs, np.float64))
        return outputs.astype(np.float32)

    def deviation(
        self,
        outputs: NDArray[np.floating],
        of_members: Mapping[str, NDArray[Any]],
        of_networks: NDArray[np.floating] | None,
    ) -> NDArray[np.floating]:
        """Return the standard deviation (R, K) of a member that is drawn by the weights, about the mixture.

        The square of the deviation is the weighted mean of the members' squared distances from the mixture, and the
        networks' weight times their variance.

        Parameters
        ----------
        outputs : (R, K)
            The mixture.
        of_members : mapping
            The members' outputs (R, K).
        of_networks : (R, K) or None
            Standard deviation of the networks about their mean.
        """
        total: Any = np.zeros(outputs.shape)
        share: Any = np.zeros(outputs.shape)
        for name, weight in zip(self.mixture.names, self.mixture.weights, strict=True):
            if not weight.any():
                continue
            squares = (np.asarray(of_members[name], np.float64) - outputs) ** 2
            if name == NETWORK and of_networks is not None:
                squares = squares + np.nan_to_num(np.asarray(of_networks, np.float64)) ** 2
            known = np.isfinite(squares) & (weight > 0)
            total += np.where(known, weight * squares, 0)
            share += np.where(known, weight, 0)
        with np.errstate(invalid="ignore"):  # 0 / 0
            return self.rounded(np.sqrt(total / share))

    def save(self, folder: Path, header: Header) -> None:
        """Write the file of the run in this folder."""
        scaling = {"scaling.mean": self.scaling.mean, "scaling.std": self.scaling.std}
        names = [header.task_names[task] for task in np.flatnonzero(self.left_out)]
        about = {"mixture": self.mixture.metadata, "left_out": names}
        checkpoint.save(folder / FILE, Checkpoint(self.mixture.arrays() | scaling, about))

    @classmethod
    def load(cls, folder: Path, header: Header) -> Mixed:
        """Read the file of the run in this folder, whose models have this header.

        Raises
        ------
        InputError
            When it is damaged or does not fit the models.
        """
        path = folder / FILE
        stored = checkpoint.load(path, finite=False)  # a task that could not be learnt has the intercept NaN
        try:
            mixture = Mixture.from_arrays(stored.arrays, stored.about["mixture"])
            mean, std = stored.arrays["scaling.mean"], stored.arrays["scaling.std"]
            scaling = Scaling(mean, std, mixture.members.transforms)
            left_out = np.isin(header.task_names, stored.about["left_out"])
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                str(path), f"a damaged mixture ({error})", hint="Copy it again, or train again."
            ) from error
        columns = header.n_outputs
        shapes = mixture.weights.shape, scaling.mean.shape, len(mixture.members.transforms.each)
        tasks = 1 if header.target == "multiclass" else columns
        if mixture.members.target != header.target or shapes != ((len(mixture.names), tasks), (columns,), columns):
            raise InputError(str(path), "a mixture of other outputs", f"that of {listed(header.task_names)}")
        return cls(mixture, scaling, left_out)


Fitted = tuple[Members, dict[str, NDArray[np.float64]]]


def compared(molecules: Prepared) -> Compared:
    """Return what a backend compares molecules by."""
    fingerprints = (Fingerprint(of.indptr, of.indices, masks(of), of.shape[1]) for of in molecules.counts)
    return Compared(tuple(fingerprints), molecules.scores)


def keep(folder: Path, fitted: Fitted) -> None:
    """Write fitted members, so that a resumed run goes on with them."""
    members, left_out = fitted
    folders.make(folder)
    arrays = join({"members": members.arrays(), "left_out": left_out})
    checkpoint.save(folder / FITTED, Checkpoint(arrays, {"target": members.target}))


def kept(folder: Path) -> Fitted | None:
    """Return the members that `keep` wrote; None without a file, or with that of another version."""
    try:
        stored = checkpoint.load(folder / FITTED, finite=False)
        parts = split(stored.arrays)
        return Members.from_arrays(parts["members"], stored.about["target"]), parts["left_out"]
    except (InputError, KeyError, ValueError, TypeError, IndexError):
        return None


def check(dataset: Dataset, model: ModelConfig) -> None:
    """Refuse a run whose data or network a mixture cannot read.

    Raises
    ------
    InputError
    """
    check_features("train.mixture", dataset, _HINT)
    if not joins_graph_features(model, dataset.header):
        got = "model.graph_features = 'off'"
        raise InputError("train.mixture", got, "a network that reads fingerprint and descriptors, too", "Leave it out.")


def check_features(key: str, dataset: Dataset, hint: str) -> None:
    """Refuse the value of a key of the configuration for data without fingerprint or descriptors.

    Raises
    ------
    InputError
    """
    counts = dataset.header.graph_feature_counts
    lacking = [] if counts else ["fingerprint"]
    lacking += [] if len(dataset.header.graph_feature_names) > counts else ["descriptors"]
    if lacking:
        raise InputError(key, f"{dataset.path} has no {listed(lacking)}", "molecules with both", hint)


def problem(dataset: Dataset, rows: Int64, folds: NDArray[np.int8], metric: str, seed: int) -> Problem:
    """Return the problem of the measured targets of these rows, in these parts; its error is a metric of ours."""
    header = dataset.header
    sign = -1 if metrics.higher_is_better(metric) else 1

    def error(y: NDArray[Any], outputs: NDArray[Any]) -> float | None:
        found = metrics.score(metric, header.target, y, outputs)
        return None if found is None else sign * found

    return Problem(header.target, dataset.measured[rows], folds, error, len(header.class_names), seed, cores())


def molecules(header: Header, tables: Iterable[FeatureTable]) -> Molecules:
    """Return the molecules of tables of features."""
    table, fingerprints = FeatureTable.joined([*tables]), header.fingerprints
    is_of_pairs = [header.graph_feature_names[of.start].startswith(ATOM_PAIR) for of in fingerprints]
    of_trees = [all(is_of_pairs) or not pairs for pairs in is_of_pairs]  # pairs cost their time and do not help
    counts = (table.counts_of(columns) for columns in fingerprints)
    arrays = [sparse.csr_array((of.data, of.indices, of.indptr), shape=(len(table), of.n_cols)) for of in counts]
    return Molecules.of(arrays, table.measured, of_trees)


_MOST = 2000  # rows of each task from which a kernel chooses transforms


def choose_transforms(dataset: Dataset, rows: Int64, groups: NDArray[Any], metric: str, seed: int) -> tuple[Kind, ...]:
    """Return the kind of transform of each target with the least error of the metric, in the user's units.

    A kernel that is fitted to left-out rows, before any network trains, chooses it.

    Parameters
    ----------
    rows : (n,)
        Training and validation rows, ascending.
    groups : (n,)
        Rows of equal groups, such as copies of a molecule, are left out together.
    """
    labelled = ~np.isnan(dataset.measured[rows])
    order = philox.generator(seed, "transforms").permutation(len(rows))
    drawn = (labelled[order] & (np.cumsum(labelled[order], axis=0) <= _MOST)).any(axis=1)
    some = np.sort(order[drawn])
    if len(np.unique(groups[some])) < 2:  # nothing can be left out
        return ("none",) * labelled.shape[1]
    folds = make_folds(groups[some], np.zeros(len(some)), seed)
    given = problem(dataset, rows[some], folds, metric, seed)
    with span("choose transforms"):
        return choose_kinds(given, lambda: molecules(dataset.header, dataset.feature_tables(rows[some])))
