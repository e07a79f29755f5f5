"""Converts one chunk of SMILES into arrays, in a worker process; imports NumPy and RDKit only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import EXTENDED, EXTENDED_NAMES, AtomTable
from gcnbatch.data.extended_features import extended_atoms, property_bonds, random_walks
from gcnbatch.data.featurizer_options import BOND_CHANNELS, FeaturizerOptions
from gcnbatch.data.molecule_features import graph_feature_names, molecule_features
from gcnbatch.data.rdkit_binary import AROMATIC, DOUBLE, SINGLE, TRIPLE, MoleculeReader, Structure
from gcnbatch.data.refusals import complaint, excess, first_line
from gcnbatch.data.scaffolds import Scaffolds
from gcnbatch.errors import MachineError

__all__ = [
    "BadMolecule",
    "FeaturizerOptions",
    "MoleculeArrays",
    "featurize_chunk",
    "load_rdkit",
    "read_molecule",
]
_CHANNELS = {SINGLE: 0, DOUBLE: 1, TRIPLE: 2, AROMATIC: 3}  # places in BOND_CHANNELS
# Atoms that RDKit changes where it looks at stereochemistry: a centre that is none gets its hydrogen back, and
# hydrogens of their own are joined to their neighbours.
# A text with a blank is refused with them.
_STEREO = re.compile(r"[@\s]|\[\d*(?:H|#1)")


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
    without rings). `graph_features` (G, D) is None without options for them. `bad` lists the molecules without a graph.
    """

    rows: NDArray[np.int64]
    node_ptr: NDArray[np.int64]
    edge_ptr: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    x: NDArray[np.int8] | NDArray[np.float32]
    graph_features: NDArray[np.float32] | None
    scaffolds: tuple[str, ...]
    bad: tuple[BadMolecule, ...]


@dataclass(frozen=True)
class _Molecule:
    """A molecule that was read: its structure; atoms (N, 11), bonds of properties and features (D,) where asked for."""

    structure: Structure
    atoms: NDArray[np.float32] | None
    properties: tuple[list[int], list[int]]
    features: NDArray[np.float32] | None

    @classmethod
    def of(cls, structure: Structure, molecule: Any, options: FeaturizerOptions) -> _Molecule:
        """Ask RDKit for what the structure lacks."""
        return cls(
            structure,
            extended_atoms(molecule) if options.atom_features == EXTENDED else None,
            property_bonds(molecule, options.bond_properties) if options.bond_properties else ([], []),
            molecule_features(molecule, options) if options.of_molecules else None,
        )


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
        if options.reads_all or _STEREO.search(text):
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
    found: list[_Molecule] = []
    for index, text in enumerate(smiles, first):
        try:
            molecule, structure, refusal = tools.convert(text, options)
            if structure is not None:
                found.append(_Molecule.of(structure, molecule, options))
        except MemoryError:
            raise
        except Exception as error:  # of RDKit's C++ code
            bad.append(BadMolecule(index, first_line(error)))
            continue
        if structure is None:
            bad.append(BadMolecule(index, refusal, too_large=molecule is not None))
            continue
        rows.append(index)
        if scaffolds:
            molecules.append(molecule)
    structures = [molecule.structure for molecule in found]
    cores, failures = tools.scaffolds.of(molecules, structures) if scaffolds else ([], {})
    for place, reason in reversed(failures.items()):
        bad.append(BadMolecule(rows.pop(place), reason))
        del found[place], cores[place]
    return MoleculeArrays(
        rows=np.array(rows, dtype=np.int64),
        **_arrays(found, tools.reader.table, options),
        graph_features=_graph_features(found, options),
        scaffolds=tuple(cores),
        bad=tuple(sorted(bad, key=lambda row: row.index)),
    )


def _arrays(found: list[_Molecule], table: AtomTable, options: FeaturizerOptions) -> dict[str, NDArray[Any]]:
    """Return the arrays of `MoleculeArrays`: both directions of each bond, then the self-loops of each molecule.

    Bonds of a property follow the bonds of their molecule.
    """
    base = len(options.bond_channel_names)
    n_atoms = np.array([len(one.structure.atoms) for one in found], np.int64)
    n_bonds = np.array([len(one.structure.types) + len(one.properties[1]) for one in found], np.int64)
    n_edges = 2 * n_bonds + (n_atoms if options.self_loops else 0)
    node_ptr, bond_ptr, edge_ptr = (_pointers(counts) for counts in (n_atoms, n_bonds, n_edges))
    ends = np.array(
        [end for one in found for part in (one.structure.ends, one.properties[0]) for end in part], np.int32
    )
    ends = ends.reshape(-1, 2)
    codes = _CHANNELS if options.bond_channels else dict.fromkeys(_CHANNELS, 0)
    of_bond = [
        channel
        for one in found
        for channel in (*(codes[kind] for kind in one.structure.types), *(base + place for place in one.properties[1]))
    ]
    src, dst = np.zeros((2, edge_ptr[-1]), np.int32)
    channel = np.zeros(edge_ptr[-1], np.uint8)
    at = 2 * np.arange(len(ends)) + np.repeat(edge_ptr[:-1] - 2 * bond_ptr[:-1], n_bonds)
    src[at], dst[at], src[at + 1], dst[at + 1] = ends[:, 0], ends[:, 1], ends[:, 1], ends[:, 0]
    channel[at] = channel[at + 1] = np.array(of_bond, np.uint8)
    if options.self_loops:
        node = np.arange(node_ptr[-1]) - np.repeat(node_ptr[:-1], n_atoms)
        at = node + np.repeat(edge_ptr[:-1] + 2 * n_bonds, n_atoms)
        src[at] = dst[at] = node
        channel[at] = len(BOND_CHANNELS) if options.bond_channels else 0
    bonds = (ends + np.repeat(node_ptr[:-1], n_bonds)[:, None])[np.array(of_bond, np.int64) < base]
    return {
        "node_ptr": node_ptr,
        "edge_ptr": edge_ptr,
        "src": src,
        "dst": dst,
        "channel": channel,
        "x": _atoms(found, table, options, node_ptr, bonds),
    }


def _atoms(
    found: list[_Molecule], table: AtomTable, options: FeaturizerOptions, node_ptr: NDArray[np.int64], bonds: Any
) -> Any:
    """Return the atom features (N, F): int8, or float32 with those that are not whole numbers.

    `bonds` (B, 2) are the ends of all bonds, counted over the atoms of all molecules.
    """
    degrees = np.bincount(bonds.ravel(), minlength=int(node_ptr[-1]))
    atoms = np.array([row for one in found for row in one.structure.atoms], np.int64)
    columns: list[Any] = [table.features(atoms, degrees)]
    if options.atom_features == EXTENDED:
        columns.append(np.concatenate([np.zeros((0, len(EXTENDED_NAMES)), np.float32), *(one.atoms for one in found)]))
    if options.walk:
        columns.append(random_walks(node_ptr, bonds, options.walk))
    return np.concatenate(columns, axis=1) if len(columns) > 1 else columns[0]


def _graph_features(found: list[_Molecule], options: FeaturizerOptions) -> NDArray[np.float32] | None:
    if not options.of_molecules:
        return None
    rows = [one.features for one in found if one.features is not None]
    return np.stack(rows) if rows else np.zeros((0, len(graph_feature_names(options))), np.float32)


def _pointers(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
