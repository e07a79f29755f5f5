"""Converts one chunk of SMILES into arrays, in a worker process; imports NumPy and RDKit only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import ATOM_FEATURES, AtomTable
from gcnbatch.data.rdkit_binary import AROMATIC, DOUBLE, SINGLE, TRIPLE, MoleculeReader, Structure
from gcnbatch.data.refusals import MAX_ATOMS, complaint, excess, first_line
from gcnbatch.data.scaffolds import Scaffolds
from gcnbatch.errors import InputError, MachineError
from gcnbatch.text import QUOTED, printable, quoted

BOND_CHANNELS = ("single", "double", "triple", "aromatic")
STANDARDIZERS = ("largest_fragment", "neutralize")
_CHANNELS = {SINGLE: 0, DOUBLE: 1, TRIPLE: 2, AROMATIC: 3}  # places in BOND_CHANNELS
# Atoms that RDKit changes where it looks at stereochemistry: a centre that is none gets its hydrogen back, and
# hydrogens of their own are joined to their neighbours.
# A text with a blank is refused with them.
_STEREO = re.compile(r"[@\s]|\[\d*(?:H|#1)")


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
    """

    bond_channels: bool = False
    self_loops: bool = True
    normalize: bool = False
    max_nodes: int = MAX_ATOMS
    largest_fragment: bool = False
    neutralize: bool = False

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the adjacency channels, in order."""
        if not self.bond_channels:
            return ("bond",)
        return (*BOND_CHANNELS, "self") if self.self_loops else BOND_CHANNELS

    def to_header(self) -> dict[str, Any]:
        """Return the entries of a header's `featurizer` that `from_header` reads."""
        return {
            "kind": "smiles",
            "bond_channels": self.bond_channels,
            "self_loops": self.self_loops,
            "normalize": self.normalize,
            "max_nodes": self.max_nodes,
            "largest_fragment": self.largest_fragment,
            "neutralize": self.neutralize,
            "atom_features": ATOM_FEATURES,
        }

    @classmethod
    def from_header(cls, featurizer: dict[str, Any] | None) -> FeaturizerOptions:
        """Return the options that a header records.

        Raises
        ------
        InputError
            When the set was not made from SMILES, or its atom features are unknown to this version.
        """
        values = featurizer or {}
        if values.get("kind") != "smiles" or values.get("atom_features") != ATOM_FEATURES:
            raise InputError(
                "featurizer of the data set",
                f"kind {quoted(values.get('kind'))}, atom features {quoted(values.get('atom_features'))}",
                f"kind smiles, atom features {ATOM_FEATURES}",
                "Only sets made by 'gcnbatch data import smiles' can be repeated from a CSV file; give an HDF5 file.",
            )
        flags = {name: values.get(name) for name in ("bond_channels", "self_loops", "normalize")}
        flags |= {name: values.get(name, False) for name in STANDARDIZERS}  # older files lack them
        limit = values.get("max_nodes")
        wrong = [name for name, value in flags.items() if not isinstance(value, bool)]
        if wrong or not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            name = wrong[0] if wrong else "max_nodes"
            got = printable(repr(values.get(name)), QUOTED)
            raise InputError(f"featurizer of the data set: {name}", got, "true, false or a node count")
        return cls(**flags, max_nodes=limit)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BadMolecule:
    """A SMILES that gives no graph: its position in the input, the reason, and whether the reason is its size."""

    index: int
    reason: str
    too_large: bool = False


@dataclass(frozen=True)
class MoleculeArrays:
    """The graphs of a chunk, flat as in GraphSet: G molecules, N atoms, E stored edges.

    `rows (G,)` are positions in the input. `scaffolds` is empty or has the Murcko scaffold of each molecule ("" for one
    without rings). `bad` lists the molecules without a graph.
    """

    rows: NDArray[np.int64]
    node_ptr: NDArray[np.int64]
    edge_ptr: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    x: NDArray[np.int8]
    scaffolds: tuple[str, ...]
    bad: tuple[BadMolecule, ...]


def load_rdkit() -> Any:
    """Return ``rdkit.Chem``; RDKit's log is switched off.

    Raises
    ------
    MachineError
        When RDKit is not installed.
    """
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise MachineError("RDKit", "not installed", hint="Install it: pip install 'gcnbatch[chem]'") from error
    rdBase.DisableLog("rdApp.*")
    return Chem


class _Featurizer:
    """What is made once per process: RDKit, its steps, known atoms and known scaffolds."""

    def __init__(self) -> None:
        self.chem = load_rdkit()
        self.reader = MoleculeReader(self.chem)
        self.scaffolds = Scaffolds(self.chem, self.reader.table.atoms)
        steps = self.chem.SanitizeFlags
        chirality = steps.SANITIZE_CLEANUPCHIRALITY | steps.SANITIZE_CLEANUPATROPISOMERS
        self._steps, self._done = int(steps.SANITIZE_ALL) & ~int(chirality), steps.SANITIZE_NONE
        self._organic_steps = self._steps & ~int(steps.SANITIZE_CLEANUP_ORGANOMETALLICS)

    def read(self, text: str, options: FeaturizerOptions) -> Any:
        """Return what `read_molecule` returns without the stereochemistry of bonds, a third of RDKit's time.

        Atoms, bonds and scaffolds are the same.
        """
        if options.largest_fragment or options.neutralize or _STEREO.search(text):
            return read_molecule(text, options)
        molecule = self.chem.MolFromSmiles(text, sanitize=False)
        steps = self._steps if "[" in text else self._organic_steps  # metals are written in brackets
        if molecule is None or self.chem.SanitizeMol(molecule, steps, catchErrors=True) != self._done:
            return None
        return molecule

    def convert(self, text: str, options: FeaturizerOptions) -> tuple[Any, Structure | None, str]:
        """Return molecule, structure and ""; without a structure, the reason, with a molecule if that is its size."""
        if reason := excess(text, options.max_nodes):
            return text, None, reason
        molecule = self.read(text, options)
        count = 0 if molecule is None else molecule.GetNumAtoms()
        if count == 0:
            return None, None, complaint(self.chem, text)
        if 0 < options.max_nodes < count:
            return molecule, None, f"{count} atoms, more than {options.max_nodes}"
        return molecule, self.reader.read(molecule), ""


@cache
def _featurizer() -> _Featurizer:
    return _Featurizer()


def read_molecule(text: str, options: FeaturizerOptions) -> Any:
    """Return the complete RDKit molecule, standardised as `options` say; None where the SMILES cannot be read."""
    # RDKit would drop everything after a blank, as the name of the molecule.
    molecule = None if len(text.split()) > 1 else load_rdkit().MolFromSmiles(text)
    if molecule is None or not (options.largest_fragment or options.neutralize):
        return molecule
    choose, uncharge = _standardizers()
    if options.largest_fragment:
        molecule = choose(molecule)
    return uncharge(molecule) if options.neutralize else molecule


@cache
def _standardizers() -> tuple[Any, Any]:
    from rdkit.Chem.MolStandardize import rdMolStandardize

    return rdMolStandardize.LargestFragmentChooser().choose, rdMolStandardize.Uncharger().uncharge


def featurize_chunk(smiles: Iterable[str], first: int, options: FeaturizerOptions, scaffolds: bool) -> MoleculeArrays:
    """Convert SMILES into graphs; `first` is the position of the chunk in the whole input.

    A SMILES is taken from `smiles` when the one before is done.
    """
    tools = _featurizer()
    rows: list[int] = []
    bad: list[BadMolecule] = []
    molecules: list[Any] = []
    structures: list[Structure] = []
    for index, text in enumerate(smiles, first):
        try:
            molecule, structure, refusal = tools.convert(text, options)
        except MemoryError:
            raise
        except Exception as error:  # of RDKit's C++ code
            bad.append(BadMolecule(index, first_line(error)))
            continue
        if structure is None:
            bad.append(BadMolecule(index, refusal, too_large=molecule is not None))
            continue
        rows.append(index)
        structures.append(structure)
        if scaffolds:
            molecules.append(molecule)
    cores, failures = tools.scaffolds.of(molecules, structures) if scaffolds else ([], {})
    for place, reason in reversed(failures.items()):
        bad.append(BadMolecule(rows.pop(place), reason))
        del structures[place], cores[place]
    return MoleculeArrays(
        rows=np.array(rows, dtype=np.int64),
        **_arrays(structures, tools.reader.table, options),
        scaffolds=tuple(cores),
        bad=tuple(sorted(bad, key=lambda row: row.index)),
    )


def _arrays(structures: list[Structure], table: AtomTable, options: FeaturizerOptions) -> dict[str, NDArray[Any]]:
    """Return the arrays of `MoleculeArrays`: both directions of each bond, then the self-loops of each molecule."""
    n_atoms = np.array([len(structure.atoms) for structure in structures], np.int64)
    n_bonds = np.array([len(structure.types) for structure in structures], np.int64)
    n_edges = 2 * n_bonds + (n_atoms if options.self_loops else 0)
    node_ptr, bond_ptr, edge_ptr = (_pointers(counts) for counts in (n_atoms, n_bonds, n_edges))
    ends = np.array([end for structure in structures for end in structure.ends], np.int32).reshape(-1, 2)
    src, dst = np.zeros((2, edge_ptr[-1]), np.int32)
    channel = np.zeros(edge_ptr[-1], np.uint8)
    at = 2 * np.arange(len(ends)) + np.repeat(edge_ptr[:-1] - 2 * bond_ptr[:-1], n_bonds)
    src[at], dst[at], src[at + 1], dst[at + 1] = ends[:, 0], ends[:, 1], ends[:, 1], ends[:, 0]
    if options.bond_channels:
        types = np.array([_CHANNELS[kind] for structure in structures for kind in structure.types], np.uint8)
        channel[at] = channel[at + 1] = types
    if options.self_loops:
        node = np.arange(node_ptr[-1]) - np.repeat(node_ptr[:-1], n_atoms)
        at = node + np.repeat(edge_ptr[:-1] + 2 * n_bonds, n_atoms)
        src[at] = dst[at] = node
        channel[at] = len(BOND_CHANNELS) if options.bond_channels else 0
    degrees = np.bincount((ends + np.repeat(node_ptr[:-1], n_bonds)[:, None]).ravel(), minlength=int(node_ptr[-1]))
    atoms = np.array([row for structure in structures for row in structure.atoms], np.int64)
    return {
        "node_ptr": node_ptr,
        "edge_ptr": edge_ptr,
        "src": src,
        "dst": dst,
        "channel": channel,
        "x": table.features(atoms, degrees),
    }


def _pointers(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
