"""What an import reports about its molecules: copies, salts, and chemistry that the features do not see."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import EXTENDED
from gcnbatch.data.copies import Copies, Names, groups_of, keys, names_of
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays
from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.data.normal_form import STEREO
from gcnbatch.text import counted, listed
from gcnbatch.workers.pool import Workers

_NAMED = 5  # features that a note names
_ISOTOPE = re.compile(r"\[\d")
_BONDS = {kind: re.compile(signs) for kind, signs in (("dative", "->|<-"), ("quadruple", r"\$"), ("unspecified", "~"))}


class MoleculeNotes:
    """Collects the molecules of an import, chunk by chunk; `lines` then describes them.

    `workers` are processes of `early_workers`; None: a fork of this process compares the molecules.
    """

    def __init__(self, smiles: Sequence[str], options: FeaturizerOptions, workers: Workers | None = None) -> None:
        self._smiles, self._options, self._workers = smiles, options, workers
        self._names: list[str] = []
        self._looks: list[Int64] = []
        self._rows: list[Int64] = []
        self._alike: Counter[str] = Counter()
        self._bonds: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()  # features of molecules

    def add(self, arrays: MoleculeArrays, part: GraphSet) -> None:
        """Add a chunk of molecules, and their graphs."""
        self._looks.append(np.fromiter(keys(part, whole=True), np.int64, part.n_graphs))
        self._names += arrays.names
        self._rows.append(arrays.rows)
        self._alike.update(arrays.alike)
        if part.graph_features is not None:
            missing = np.isnan(part.graph_features.measured).sum(axis=0).tolist()
            self._missing.update(dict(zip(part.header.graph_feature_names, missing, strict=False)))
        together = " ".join(arrays.names)
        for kind, sign in _BONDS.items():
            if sign.search(together):
                self._bonds[kind] += _matching(sign, arrays.names)

    def lines(self, y: NDArray[Any], splits: Mapping[str, Split]) -> list[str]:
        """Return notes for the user; arguments as for `Copies.lines`, rows in the order in which they were added."""
        rows = np.concatenate(self._rows)
        texts = [self._smiles[row] for row in rows]
        more = (
            self._about_salts(texts),
            _about_stereo(texts, self._options),
            about_elements(self._alike),
            _about_bonds(self._bonds),
            _about_missing(self._missing),
        )
        return [*self._copies(texts).lines(y, splits), *filter(None, more)]

    def _copies(self, texts: Sequence[str]) -> Copies:
        """Compare molecules whose names without stereochemistry, or whose features agree."""
        names, looks, signed = list(self._names), np.concatenate(self._looks), _seen(self._options)
        if self._options.sees_stereo:  # then names have stereochemistry
            rows = [row for row, text in enumerate(texts) if any(sign in text for sign in signed)]
            known = self._named(rows, texts)
            for row in rows:
                if texts[row] in known:
                    names[row] = known[texts[row]][1]
        groups = groups_of(np.fromiter(map(hash, names), np.int64, len(names)))
        groups += [group for group in groups_of(looks) if len({names[row] for row in group}) > 1]
        rows = sorted({row for group in groups for row in group})
        return Copies.of(rows, texts, self._named(rows, texts), looks, self._options)

    def _named(self, rows: Sequence[int], texts: Sequence[str]) -> Names:
        """Return the names of these rows; without stereochemistry in its text, a molecule has its name already."""
        known = {} if self._options.as_written else {texts[row]: self._names[row] for row in rows}
        plain = {text: (name, name) for text, name in known.items() if not STEREO.search(text)}
        others = dict.fromkeys(texts[row] for row in rows if texts[row] not in plain)
        return plain | names_of(list(others), self._options, self._workers)

    def _about_salts(self, texts: Iterable[str]) -> str:
        count = sum("." in text for text in texts)
        if not count or self._options.largest_fragment:
            return ""
        rows = counted(count, "row has", "rows have")
        return f"salts: {rows} several molecules in one SMILES; --largest-fragment keeps the largest"


def about_elements(alike: Counter[str]) -> str:
    """Return the note for elements that share a feature, from the number of molecules with each; "" without any."""
    if not alike:
        return ""
    shown = f"elements without a feature of their own: {_counts(alike)}; a model sees all such elements as the same one"
    return f"{shown}; an import with --atom-features extended86 tells them apart by mass"


def _about_bonds(bonds: Counter[str]) -> str:
    return f"bonds that count as single bonds: {_counts(bonds)}" if +bonds else ""


def _about_missing(features: Counter[str]) -> str:
    found = [f"{name} in {counted(count, 'row')}" for name, count in features.most_common() if count]
    rest = f", and {counted(len(found) - _NAMED, 'more feature')}" if len(found) > _NAMED else ""
    shown = f"{', '.join(found[:_NAMED])}{rest}"
    return f"missing features, taken as the mean of the training rows: {shown}" if found else ""


def _counts(molecules: Counter[str]) -> str:
    """Return names with numbers of molecules, the highest number first."""
    found = sorted((+molecules).items(), key=lambda one: (-one[1], one[0]))
    return listed(f"{name} in {counted(count, 'molecule')}" for name, count in found)


def _about_stereo(texts: Sequence[str], options: FeaturizerOptions) -> str:
    unseen = "".join(sign for sign, seen in _seen(options).items() if not seen)
    stereo = _matching(re.compile(f"[{re.escape(unseen)}]"), texts) if unseen else 0
    isotopes = 0 if options.atom_features == EXTENDED else _matching(_ISOTOPE, texts)
    parts = [f"{count:,} with {what}" for count, what in ((stereo, "stereochemistry"), (isotopes, "isotopes")) if count]
    return f"not seen by the features: {' and '.join(parts)}" if parts else ""


def _matching(pattern: re.Pattern[str], texts: Iterable[str]) -> int:
    return sum(map(bool, map(pattern.search, texts)))


def _seen(options: FeaturizerOptions) -> dict[str, bool]:
    """Return whether the features show what each sign of a SMILES stands for: chirality, turns of double bonds."""
    chirality, turns = options.atom_features == EXTENDED, "stereo" in options.bond_properties
    return {"@": chirality, "/": turns, "\\": turns}
