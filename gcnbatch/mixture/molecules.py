"""Molecules as the members of the mixture read them: counts of fragments and normal scores of descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gcnbatch.errors import InputError
from gcnbatch.mixture.normal_scores import Arrays, NormalScores

_KNOTS = 256
_LEAST, _SHARE = 3, 0.01  # training rows that have a fragment; splits on rarer ones cost time and are not better
LARGEST_COUNT = 255


@dataclass(frozen=True)
class Molecules:
    """Features of n molecules.

    Parameters
    ----------
    counts : tuple of CSR arrays (n, F), uint8
        Fingerprints of counts, such as circular fragments and atom pairs. The kernel reads all.
    descriptors : (n, D) float
        NaN where missing.
    of_trees : tuple of bool
        Which fingerprints trees read.
    """

    counts: tuple[Any, ...]
    descriptors: NDArray[Any]
    of_trees: tuple[bool, ...]

    @classmethod
    def of(cls, counts: Sequence[Any], descriptors: NDArray[Any], of_trees: Sequence[bool] | None = None) -> Molecules:
        """Return molecules of dense or sparse counts; trees read all fingerprints, or those that `of_trees` says.

        Raises
        ------
        InputError
            When there is no fingerprint, or numbers of rows differ.
        """
        rows = {len(descriptors), *(of.shape[0] for of in counts)}
        if not counts or len(rows) > 1:
            got = f"{len(counts)} fingerprints, rows: {', '.join(map(str, sorted(rows)))}"
            raise InputError("features of molecules", got, "at least one fingerprint, the same rows in all")
        small = tuple(_small(sparse.csr_array(of)) for of in counts)
        return cls(small, np.asarray(descriptors), tuple(of_trees or [True] * len(small)))

    def __len__(self) -> int:
        return len(self.descriptors)

    def __getitem__(self, rows: Any) -> Molecules:
        """Return the molecules of a slice or an array of positions."""
        if _is_all(rows, len(self)):
            return self
        return Molecules(tuple(of[rows] for of in self.counts), self.descriptors[rows], self.of_trees)


@dataclass(frozen=True)
class Prepared:
    """What members read of n molecules.

    Parameters
    ----------
    counts : tuple of CSR arrays (n, F), uint8
    scores : float32, (n, S)
        Normal scores of the descriptors that vary, rounded to float16; 0, the median, where missing.
    """

    counts: tuple[Any, ...]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: Any) -> Prepared:
        """Return the molecules of a slice or an array of positions."""
        return self if _is_all(rows, len(self)) else Prepared(tuple(of[rows] for of in self.counts), self.scores[rows])

    @classmethod
    def joined(cls, parts: Sequence[Prepared]) -> Prepared:
        """Return the molecules of all parts, at least one, one after the other."""
        if len(parts) == 1:
            return parts[0]
        counts = zip(*(part.counts for part in parts), strict=True)
        scores = np.concatenate([part.scores for part in parts])
        return cls(tuple(sparse.vstack(of, format="csr") for of in counts), scores)

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes; half as large as float32."""
        found: Arrays = {"scores": self.scores.astype(np.float16)}
        for number, of in enumerate(self.counts):
            found[f"{number}.columns"] = np.array([of.shape[1]], np.int64)
            found[f"{number}.rows"] = of.indptr.astype(np.int64)
            found[f"{number}.fragments"] = of.indices.astype(np.uint16 if of.shape[1] <= 1 << 16 else np.uint32)
            found[f"{number}.counts"] = of.data
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Prepared:
        """Return the object that `arrays` was called on."""
        counts: list[Any] = []
        while (key := f"{len(counts)}.") + "rows" in arrays:
            rows, columns = arrays[f"{key}rows"], int(arrays[f"{key}columns"][0])
            parts = arrays[f"{key}counts"], arrays[f"{key}fragments"].astype(np.int32), rows
            counts.append(sparse.csr_array(parts, shape=(len(rows) - 1, columns)))
            counts[-1].check_format()  # of a file that is not ours, products would read beyond the arrays
        return cls(tuple(counts), arrays["scores"].astype(np.float32))


@dataclass(frozen=True)
class Preparation:
    """The maps from molecules to what members read, fitted to training rows; targets play no part.

    Parameters
    ----------
    scores : NormalScores
        Of all descriptors.
    fragments : int64 array
        Columns that trees read, of all fingerprints side by side, ascending: at least 1 % of the training rows have
        such a fragment.
    fingerprints : int
        Their number.
    """

    scores: NormalScores
    fragments: NDArray[np.int64]
    fingerprints: int

    @classmethod
    def fit(cls, molecules: Molecules) -> Preparation:
        """Return the maps for training molecules."""
        rows = [
            np.bincount(of.indices, minlength=of.shape[1]) * is_read
            for of, is_read in zip(molecules.counts, molecules.of_trees, strict=True)
        ]
        least = max(_LEAST, round(_SHARE * len(molecules)))
        return cls(
            NormalScores.fit(_finite(molecules.descriptors), _KNOTS),
            np.flatnonzero(np.concatenate(rows) >= least),
            len(molecules.counts),
        )

    def fragments_of(self, widths: Sequence[int]) -> list[NDArray[np.int64]]:
        """Return the columns of each fingerprint that trees read, for the numbers of columns of all."""
        ends = np.cumsum(widths)
        parts = np.split(self.fragments, np.searchsorted(self.fragments, ends[:-1]))
        return [part - (end - width) for part, end, width in zip(parts, ends, widths, strict=True)]

    def apply(self, molecules: Molecules) -> Prepared:
        """Return what members read.

        Raises
        ------
        InputError
            When the molecules have other numbers of features than the training rows.
        """
        if len(self.scores.starts) - 1 != molecules.descriptors.shape[1]:
            got = f"{molecules.descriptors.shape[1]} descriptors"
            raise InputError("features of molecules", got, f"{len(self.scores.starts) - 1}, as in training")
        if self.fingerprints != len(molecules.counts):
            got = f"{len(molecules.counts)} fingerprints"
            raise InputError("features of molecules", got, f"{self.fingerprints}, as in training")
        scores = self.scores.apply(_finite(molecules.descriptors))[:, self.scores.varied]
        rounded = np.nan_to_num(scores, nan=0.0).astype(np.float16)
        # Row after row: sums of a row then do not depend on the number of rows.
        return Prepared(molecules.counts, rounded.astype(np.float32, order="C"))

    def table(self, molecules: Prepared) -> NDArray[np.float16]:
        """Return the columns (n, P) that trees read: fragments that are not rare, then scores. No number is rounded."""
        fragments = self.fragments_of([of.shape[1] for of in molecules.counts])
        counts = [of[:, own].toarray() for of, own in zip(molecules.counts, fragments, strict=True) if len(own)]
        return np.concatenate([*counts, molecules.scores], axis=1, dtype=np.float16, casting="same_kind")

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes."""
        own = {"fragments": self.fragments, "fingerprints": np.array([self.fingerprints], np.int64)}
        return self.scores.arrays() | own

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Preparation:
        """Return the object that `arrays` was called on."""
        return cls(NormalScores.from_arrays(arrays), arrays["fragments"], int(arrays["fingerprints"][0]))


def _is_all(rows: Any, count: int) -> bool:
    """Whether these are all rows in order; SciPy takes 50 us for a slice of one row."""
    return isinstance(rows, slice) and rows.indices(count) == (0, count, 1)


def _small(counts: Any) -> Any:
    counts = counts.copy()
    counts.eliminate_zeros()
    counts.sort_indices()
    counts.data = np.clip(counts.data, 0, LARGEST_COUNT).astype(np.uint8)
    return counts


def _finite(descriptors: NDArray[Any]) -> NDArray[np.float64]:
    wide = np.asarray(descriptors, np.float64)
    return np.where(np.isfinite(wide), wide, np.nan)
