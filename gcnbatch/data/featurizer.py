"""Converts one chunk of SMILES into arrays, in a worker process; imports NumPy and RDKit only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import EXTENDED, EXTENDED_NAMES, AtomTable
from gcnbatch.data.extended_features import extended_atoms, property_bonds, random_walks
from gcnbatch.data.featurizer_options import BOND_CHANNELS, FeaturizerOptions
from gcnbatch.data.molecule_features import graph_feature_names, molecule_features
from gcnbatch.data.rdkit_binary import AROMATIC, DOUBLE, SINGLE, TRIPLE, Ints, MoleculeReader, Structures
from gcnbatch.data.refusals import complaint, excess, first_line
from gcnbatch.data.scaffolds import Scaffolds
from gcnbatch.errors import MachineError
from gcnbatch.text import counted

__all__ = [
    "BadMolecule",
    "FeaturizerOptions",
    "MoleculeArrays",
    "featurize_chunk",
    "load_rdkit",
    "read_molecule",
]
_CHANNELS = np.zeros(5, np.int64)  # places in BOND_CHANNELS, by the type of a bond
_CHANNELS[[SINGLE, DOUBLE, TRIPLE, AROMATIC]] = range(4)
_HYDROGEN = re.compile(r"\[\d*(?:H|#1)")  # of its own: RDKit joins it to its neighbour when it reads in one step
_METAL = re.compile(r"\[(?!\d*(?:[BCNOFPSIbcnops](?![a-z])|Cl|Br))")  # also other elements that are rare in molecules


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


class _Molecule(NamedTuple):
    """A molecule that `MoleculeReader` began; atoms (N, 11), bonds of properties and features (D,) if asked for."""

    begun: bytes | Structures
    atoms: NDArray[np.float32] | None = None
    properties: tuple[Sequence[int], Sequence[int]] = ((), ())
    features: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, begun: bytes | Structures, molecule: Any, options: FeaturizerOptions) -> _Molecule:
        """Ask RDKit for what the reader does not read."""
        if not options.reads_all:
            return cls(begun)
        return cls(
            begun,
            extended_atoms(molecule) if options.atom_features == EXTENDED else None,
            property_bonds(molecule, options.bond_properties) if options.bond_properties else ((), ()),
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
        self._chirality = int(steps.SANITIZE_CLEANUPCHIRALITY | steps.SANITIZE_CLEANUPATROPISOMERS)
        self._steps, self._done = int(steps.SANITIZE_ALL) & ~self._chirality, steps.SANITIZE_NONE
        self._organic_steps = self._steps & ~int(steps.SANITIZE_CLEANUP_ORGANOMETALLICS)

    def read(self, text: str, options: FeaturizerOptions) -> Any:
        """Return what `read_molecule` returns without the stereochemistry of bonds, a third of RDKit's time.

        Atoms, bonds and scaffolds are the same.
        """
        brackets = "[" in text
        if options.reads_all or len(text.split()) > 1 or (brackets and _HYDROGEN.search(text)):
            return read_molecule(text, options)
        molecule = self.chem.MolFromSmiles(text, sanitize=False)
        steps = self._steps if brackets and _METAL.search(text) else self._organic_steps
        if "@" in text:
            steps |= self._chirality
        if molecule is None or self.chem.SanitizeMol(molecule, steps, True) != self._done:  # catches errors
            return None
        if "@" in text:  # an atom that turns out to be no centre gets its hydrogen back
            self.chem.AssignStereochemistry(molecule, cleanIt=True, force=True)
        return molecule

    def convert(self, text: str, options: FeaturizerOptions) -> tuple[Any, bytes | Structures, str]:
        """Return molecule, what was begun and ""; b"" and the reason for a bad one, with a molecule if too large."""
        if reason := excess(text, options.max_nodes):
            return text, b"", reason
        molecule = self.read(text, options)
        count = 0 if molecule is None else molecule.GetNumAtoms()
        if count == 0:
            return None, b"", complaint(self.chem, text)
        if 0 < options.max_nodes < count:
            return molecule, b"", f"{counted(count, 'atom')}, more than {options.max_nodes}"
        return molecule, self.reader.begin(molecule), ""


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
            molecule, begun, refusal = tools.convert(text, options)
            if begun:
                found.append(_Molecule.of(begun, molecule, options))
        except MemoryError:
            raise
        except Exception as error:  # of RDKit's C++ code
            bad.append(BadMolecule(index, first_line(error)))
            continue
        if not begun:
            bad.append(BadMolecule(index, refusal, too_large=molecule is not None))
            continue
        rows.append(index)
        if scaffolds:
            molecules.append(molecule)
    structures = tools.reader.read([molecule.begun for molecule in found])
    cores, failures = tools.scaffolds.of(molecules, structures) if scaffolds else ([], {})
    if failures:
        structures = structures.of(~np.isin(np.arange(len(found)), list(failures)))
    for place, reason in reversed(failures.items()):
        bad.append(BadMolecule(rows.pop(place), reason))
        del found[place], cores[place]
    return MoleculeArrays(
        rows=np.array(rows, dtype=np.int64),
        **_arrays(found, structures, tools.reader.table, options),
        graph_features=_graph_features(found, options),
        scaffolds=tuple(cores),
        bad=tuple(sorted(bad, key=lambda row: row.index)),
    )


def _arrays(
    found: list[_Molecule], structures: Structures, table: AtomTable, options: FeaturizerOptions
) -> dict[str, NDArray[Any]]:
    """Return the arrays of `MoleculeArrays`: both directions of each bond, then the self-loops of each molecule.

    Bonds of a property follow the bonds of their molecule.
    """
    n_atoms, n_bonds, ends, codes = _bonds(found, structures, options)
    n_edges = 2 * n_bonds + (n_atoms if options.self_loops else 0)
    node_ptr, edge_ptr = _pointers(n_atoms), _pointers(n_edges)
    src, dst = np.zeros((2, edge_ptr[-1]), np.int32)
    channel = np.zeros(edge_ptr[-1], np.uint8)
    at = 2 * np.arange(len(ends)) + np.repeat(edge_ptr[:-1] - 2 * (np.cumsum(n_bonds) - n_bonds), n_bonds)
    src[at], dst[at], src[at + 1], dst[at + 1] = ends[:, 0], ends[:, 1], ends[:, 1], ends[:, 0]
    channel[at] = channel[at + 1] = codes
    if options.self_loops:
        node = np.arange(node_ptr[-1]) - np.repeat(node_ptr[:-1], n_atoms)
        at = node + np.repeat(edge_ptr[:-1] + 2 * n_bonds, n_atoms)
        src[at] = dst[at] = node
        channel[at] = len(BOND_CHANNELS) if options.bond_channels else 0
    bonds = structures.ends + np.repeat(node_ptr[:-1], structures.n_bonds)[:, None]
    return {
        "node_ptr": node_ptr,
        "edge_ptr": edge_ptr,
        "src": src,
        "dst": dst,
        "channel": channel,
        "x": _atoms(found, structures, table, options, node_ptr, bonds),
    }


def _bonds(found: list[_Molecule], structures: Structures, options: FeaturizerOptions) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the numbers of atoms and bonds (G,), with bonds of properties; both ends (B, 2) and the channel (B,)."""
    n_atoms, n_bonds, ends = structures.n_atoms, structures.n_bonds, structures.ends
    codes = _CHANNELS[structures.types] if options.bond_channels else np.zeros(len(ends), np.int64)
    if not options.bond_properties:
        return n_atoms, n_bonds, ends, codes
    base = len(options.bond_channel_names)
    more = np.array([len(one.properties[1]) for one in found], np.int64)
    own = [np.array([value for one in found for value in one.properties[place]], np.int64) for place in (0, 1)]
    molecule = np.arange(len(found))
    order = np.argsort(np.concatenate([np.repeat(molecule, n_bonds), np.repeat(molecule, more)]), kind="stable")
    ends = np.concatenate([ends, own[0].reshape(-1, 2)])[order]
    return n_atoms, n_bonds + more, ends, np.concatenate([codes, base + own[1]])[order]


def _atoms(
    found: list[_Molecule],
    structures: Structures,
    table: AtomTable,
    options: FeaturizerOptions,
    node_ptr: Ints,
    bonds: Ints,
) -> Any:
    """Return the atom features (N, F): int8, or float32 with those that are not whole numbers.

    `bonds` (B, 2) are the ends of all bonds, counted over the atoms of all molecules.
    """
    degrees = np.bincount(bonds.ravel(), minlength=int(node_ptr[-1]))
    columns: list[Any] = [table.features(structures.atoms, degrees)]
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


def _pointers(counts: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
