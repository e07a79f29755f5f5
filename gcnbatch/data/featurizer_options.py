"""What a molecule becomes: options of the featuriser, and the names of the columns and channels that they give.

This module imports little, because worker processes import it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gcnbatch.config_tree import plain
from gcnbatch.data.atom_features import ATOM_FEATURES, BOND_PROPERTIES, EXTENDED, EXTENDED_NAMES, FEATURE_NAMES
from gcnbatch.data.refusals import MAX_ATOMS
from gcnbatch.errors import InputError
from gcnbatch.text import QUOTED, printable, quoted

BOND_CHANNELS = ("single", "double", "triple", "aromatic")
STANDARDIZERS = ("largest_fragment", "neutralize")
RDKIT2D = "rdkit2d"
FINGERPRINTS = MORGAN, CHIRAL, FEATURE, ATOM_PAIR = "morgan", "morgan-chiral", "morgan-feature", "atompair"
NORMAL_FORM, AS_WRITTEN = "molecule", "smiles"  # a header's kinds of featuriser: what a graph depends on
MAX_RADIUS, MAX_SIZE, MAX_WALK = 10, 1 << 16, 32
_WALK = re.compile(r"rw([1-9]\d?)")


@dataclass(frozen=True)
class FeaturizerOptions:
    """Options of the conversion of a molecule into a graph.

    Parameters
    ----------
    bond_channels : bool
        One channel per bond type (single, double, triple, aromatic; others count as single) instead of one channel.
    self_loops : bool
        Add I to the only channel, or as a fifth channel ``self``.
    normalize : bool
        Store D^-1/2 A D^-1/2 per channel as edge weights.
    max_nodes : int
        Molecules with more atoms are bad rows. Texts of more than MAX_ATOMS and `max_nodes` atoms are not parsed.
        0: no limit.
    largest_fragment : bool
        Keep only the largest part of a salt or mixture.
    neutralize : bool
        Remove charges where hydrogens can balance them.
    bond_properties : tuple of str
        Of BOND_PROPERTIES: further channels with the bonds that have a property, beside those of all bonds.
    atom_features : {"deepchem75", "extended86"}
        See `gcnbatch.data.atom_features`.
    walk : int
        Number of random-walk encodings: columns with the probability that a walk of 2, 3, … steps along bonds returns
        to the atom (Dwivedi et al., "Graph neural networks with learnable structural and positional representations",
        ICLR 2022; a walk of 1 step never returns).
    descriptors : {"", "rdkit2d"}
        Features of the whole molecule: all 2D descriptors of RDKit.
    fingerprints : tuple of str
        Of FINGERPRINTS, features of the whole molecule, each hashed to `size` columns: counts of circular fragments
        (Morgan) of at most `radius` bonds, the same with fragments that differ by the chirality of their atoms, too,
        the same of atoms that differ by their role alone (donor, acceptor, aromatic, halogen, basic, acidic), and
        counts of pairs of atoms by the bonds between them.
    radius, size : int
        Of the fingerprints.
    as_written : bool
        Features as older versions made them: they depend on how a SMILES is written, because the implicit valence of
        an atom in brackets is 0. Only for models and files of these versions.
    """

    bond_channels: bool = False
    self_loops: bool = True
    normalize: bool = False
    max_nodes: int = MAX_ATOMS
    largest_fragment: bool = False
    neutralize: bool = False
    bond_properties: tuple[str, ...] = ()
    atom_features: str = ATOM_FEATURES
    walk: int = 0
    descriptors: str = ""
    fingerprints: tuple[str, ...] = ()
    radius: int = 2
    size: int = 2048
    as_written: bool = False

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the adjacency channels, in order: of bonds, of self-loops, of properties."""
        return (*self.bond_channel_names, *(name for one in self.bond_properties for name in BOND_PROPERTIES[one]))

    @property
    def bond_channel_names(self) -> tuple[str, ...]:
        """Names of the channels of all bonds and of self-loops."""
        if not self.bond_channels:
            return ("bond",)
        return (*BOND_CHANNELS, "self") if self.self_loops else BOND_CHANNELS

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the atom features, in order."""
        extended = EXTENDED_NAMES if self.atom_features == EXTENDED else ()
        return (*FEATURE_NAMES, *extended, *(f"walk={steps + 2}" for steps in range(self.walk)))

    @cached_property
    def sees_stereo(self) -> bool:
        """Whether a feature depends on stereochemistry."""
        if "stereo" in self.bond_properties or self.descriptors:
            return True
        return self.atom_features == EXTENDED or CHIRAL in self.fingerprints

    @cached_property
    def asks_rdkit(self) -> bool:
        """Whether a feature takes calls of RDKit: other than of elements and types of bonds."""
        return self.asks_properties or self.of_molecules

    @property
    def asks_properties(self) -> bool:
        """Whether there are features of atoms and bonds that RDKit must be asked for."""
        return bool(self.bond_properties) or self.atom_features == EXTENDED

    @property
    def of_molecules(self) -> bool:
        """Whether there are features of whole molecules."""
        return bool(self.descriptors or self.fingerprints)

    def to_header(self) -> dict[str, Any]:
        """Return the entries of a header's `featurizer` that `from_header` reads; newer options only if set."""
        found: dict[str, Any] = {
            "kind": AS_WRITTEN if self.as_written else NORMAL_FORM,
            "bond_channels": self.bond_channels,
            "self_loops": self.self_loops,
            "normalize": self.normalize,
            "max_nodes": self.max_nodes,
            "largest_fragment": self.largest_fragment,
            "neutralize": self.neutralize,
            "atom_features": self.atom_features,
        }
        if self.bond_properties:
            found["bond_properties"] = list(self.bond_properties)
        if self.walk:
            found["positional"] = f"rw{self.walk}"
        if self.descriptors:
            found["descriptors"] = self.descriptors
        if self.fingerprints:
            found |= {"fingerprint": ",".join(self.fingerprints), "radius": self.radius, "size": self.size}
        return dict(plain(found))

    @classmethod
    def from_header(cls, featurizer: dict[str, Any] | None) -> FeaturizerOptions:
        """Return the options that a header records.

        Raises
        ------
        InputError
            When the set was not made from SMILES, or has an option that is unknown to this version.
        """
        values = featurizer or {}
        if not is_molecular(values) or values.get("atom_features") not in (ATOM_FEATURES, EXTENDED):
            raise InputError(
                "featurizer of the data set",
                f"kind {quoted(values.get('kind'))}, atom features {quoted(values.get('atom_features'))}",
                f"kind {NORMAL_FORM} or {AS_WRITTEN}, atom features {ATOM_FEATURES} or {EXTENDED}",
                "Only sets made by 'gcnbatch data import smiles' can be repeated from a CSV file; give an HDF5 file.",
            )
        flags = {name: values.get(name) for name in ("bond_channels", "self_loops", "normalize")}
        flags |= {name: values.get(name, False) for name in STANDARDIZERS}  # older files lack them
        for name, value in flags.items():
            _expect(name, value, isinstance(value, bool), "true or false")
        limit = values.get("max_nodes")
        _expect("max_nodes", limit, _is_count(limit, 0, 2**63), "a node count")
        written = values["kind"] == AS_WRITTEN
        found = cls(**flags, max_nodes=limit, atom_features=values["atom_features"], as_written=written)  # type: ignore[arg-type]
        return found.with_texts(
            values.get("bond_properties", ()),
            values.get("positional", ""),
            values.get("descriptors", ""),
            values.get("fingerprint", ""),
            values.get("radius", cls.radius),
            values.get("size", cls.size),
        )

    def with_texts(
        self, bond_properties: Any, positional: Any, descriptors: Any, fingerprint: Any, radius: Any, size: Any
    ) -> FeaturizerOptions:
        """Return these options with the further ones, as a header or a command line gives them.

        Raises
        ------
        InputError
        """
        known = isinstance(bond_properties, list | tuple) and set(map(str, bond_properties)) <= BOND_PROPERTIES.keys()
        known = known and len(set(bond_properties)) == len(bond_properties)
        _expect("bond_properties", bond_properties, known, f"different ones of {', '.join(BOND_PROPERTIES)}")
        walk = _WALK.fullmatch(positional) if isinstance(positional, str) else None
        known = positional == "" or (walk is not None and int(walk[1]) <= MAX_WALK)
        _expect("positional", positional, known, f"rw1 to rw{MAX_WALK}")
        _expect("descriptors", descriptors, descriptors in ("", RDKIT2D), RDKIT2D)
        kinds = tuple(map(str.strip, fingerprint.split(","))) if isinstance(fingerprint, str) and fingerprint else ()
        known = isinstance(fingerprint, str) and len(set(kinds) & set(FINGERPRINTS)) == len(kinds)
        _expect("fingerprint", fingerprint, known, f"different ones of {', '.join(FINGERPRINTS)}")
        _expect("radius", radius, _is_count(radius, 0, MAX_RADIUS), f"0 to {MAX_RADIUS}")
        _expect("size", size, _is_count(size, 16, MAX_SIZE), f"16 to {MAX_SIZE}")
        return replace(
            self,
            bond_properties=tuple(bond_properties),
            walk=int(walk[1]) if walk else 0,
            descriptors=descriptors,
            fingerprints=kinds,
            radius=radius,
            size=size,
        )


def is_molecular(featurizer: dict[str, Any] | None) -> bool:
    """Return whether a header's featuriser made the graphs from SMILES."""
    return (featurizer or {}).get("kind") in (NORMAL_FORM, AS_WRITTEN)


def _expect(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise InputError(f"featurizer, {name}", printable(repr(value), QUOTED), expected)


def _is_count(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
