"""Converts one chunk of SMILES into arrays, in a worker process; imports NumPy and RDKit only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import EXTENDED, AtomTable, random_walks
from gcnbatch.data.atom_properties import Properties, ask_properties, chirality_of, extended_atoms, property_bonds
from gcnbatch.data.chunk_molecules import is_usual
from gcnbatch.data.featurizer_options import BOND_CHANNELS, FeaturizerOptions
from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.molecule_features import Begun, begin, count_columns, graph_feature_names, molecule_features
from gcnbatch.data.normal_form import (
    STEREO,
    NormalForm,
    has_diene,
    has_unique_rings,
    in_order,
    load_rdkit,
    molecule_as_written,
    normal_form,
)
from gcnbatch.data.rdkit_binary import AROMATIC, DOUBLE, SINGLE, TRIPLE, Ints, MoleculeReader, Structures
from gcnbatch.data.refusals import complaint, excess, first_line
from gcnbatch.data.scaffolds import scaffold
from gcnbatch.data.sparse import row_pointer
from gcnbatch.text import counted

__all__ = [
    "BadMolecule",
    "FeaturizerOptions",
    "MoleculeArrays",
    "featurize_chunk",
    "graph_form",
    "load_rdkit",
]
_CHANNELS = np.zeros(5, np.int64)  # places in BOND_CHANNELS, by the type of a bond
_CHANNELS[[SINGLE, DOUBLE, TRIPLE, AROMATIC]] = range(4)


@dataclass(frozen=True)
class BadMolecule:
    """A SMILES that gives no graph: its position in the input, the reason, and whether this is its size or its text."""

    index: int
    reason: str
    too_large: bool = False
    unreadable: bool = False


@dataclass(frozen=True)
class MoleculeArrays:
    """The graphs of a chunk, flat as in GraphSet: G molecules, N atoms, E stored edges.

    `rows (G,)` are positions in the input. `names (G,)` are canonical SMILES, without what no feature sees of
    stereochemistry. `scaffolds` is empty or has the Murcko scaffold of each molecule ("" for one without rings).
    `graph_features` is None without options for them. `alike` has, for each element that shares the feature
    "other", its symbol and the number of molecules with it. `bad` lists the molecules without a graph.
    """

    rows: NDArray[np.int64]
    node_ptr: NDArray[np.int64]
    edge_ptr: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    x: NDArray[np.int8] | NDArray[np.float32]
    graph_features: FeatureTable | None
    names: tuple[str, ...]
    scaffolds: tuple[str, ...]
    alike: Counter[str]
    bad: tuple[BadMolecule, ...]


class _Molecule(NamedTuple):
    """A molecule that `MoleculeReader` began, with the name and the order of its normal form.

    The scaffold, properties of atoms and bonds, and features of the molecule are there if asked for.
    """

    name: str
    order: str
    begun: bytes | Structures
    scaffold: str = ""
    properties: Properties = Properties()
    features: Begun | None = None


class _Featurizer:
    """What is made once per process: RDKit and known atoms."""

    def __init__(self, as_written: bool) -> None:
        self.chem = load_rdkit()
        self.reader = MoleculeReader(self.chem, as_written)

    def convert(self, text: str, index: int, options: FeaturizerOptions, scaffolds: bool) -> _Molecule | BadMolecule:
        """Return the molecule of a SMILES, or why it has no graph."""
        if reason := excess(text, options.max_nodes):
            return BadMolecule(index, reason, too_large=True)
        form = graph_form(text, options)
        if form is not None and options.asks_rdkit and _depends_on_order(text, form):
            form = in_order(form)
        if form is None:
            return BadMolecule(index, complaint(self.chem, text), unreadable=True)
        molecule = form.molecule
        count = molecule.GetNumAtoms()
        if 0 < options.max_nodes < count:
            return BadMolecule(index, f"{counted(count, 'atom')}, more than {options.max_nodes}", too_large=True)
        found = _Molecule(form.name, form.order, self.reader.begin(molecule), scaffold(form) if scaffolds else "")
        if not options.asks_rdkit:
            return found
        return found._replace(
            properties=ask_properties(form) if options.asks_properties else Properties(),
            features=begin(form, options) if options.of_molecules else None,
        )


def _depends_on_order(text: str, form: NormalForm) -> bool:
    """Whether what RDKit says of a molecule may depend on the text that it was read from."""
    if not is_usual(form.molecule, form.name) or not has_unique_rings(form.molecule):
        return True
    # Signs of stereochemistry that is none, which RDKit may have noted.
    if STEREO.search(text) and not STEREO.search(form.name):
        return True
    # A double bond of contradictory signs has no stereochemistry, but in the name its neighbours' signs give it one.
    if ("/" in form.name or "\\" in form.name) and has_diene(form.molecule):
        return True
    # Centres without R or S, such as two in a ring that differ in nothing but their place.
    centres = form.name.replace("@@", "@").count("@")
    return centres > 0 and len(chirality_of(form.molecule)) < centres


@cache
def _featurizer(as_written: bool) -> _Featurizer:
    return _Featurizer(as_written)


def graph_form(text: str, options: FeaturizerOptions) -> NormalForm | None:
    """Return the normal form that becomes a graph, None where there is none; as it is written, it has no name."""
    if not options.as_written:
        return normal_form(text, options, options.sees_stereo)
    molecule = molecule_as_written(text, options)
    return NormalForm(molecule, "", "") if molecule is not None and molecule.GetNumAtoms() else None


def featurize_chunk(smiles: Iterable[str], first: int, options: FeaturizerOptions, scaffolds: bool) -> MoleculeArrays:
    """Convert SMILES into graphs; `first` is the position of the chunk in the whole input.

    A SMILES is taken from `smiles` when the one before is done.
    """
    tools = _featurizer(options.as_written)
    rows: list[int] = []
    bad: list[BadMolecule] = []
    found: list[_Molecule] = []
    for index, text in enumerate(smiles, first):
        try:
            molecule = tools.convert(text, index, options, scaffolds)
        except MemoryError:
            raise
        except Exception as error:  # of RDKit's C++ code
            molecule = BadMolecule(index, first_line(error))
        if isinstance(molecule, BadMolecule):
            bad.append(molecule)
            continue
        rows.append(index)
        found.append(molecule)
    read = tools.reader.read([molecule.begun for molecule in found])
    structures = read if options.as_written else read.in_order([molecule.order for molecule in found])
    asked = [molecule.properties for molecule in found]
    n_bonds, ends, channel = _bonds(structures, options)
    if options.bond_properties:
        more = property_bonds(structures, options.bond_properties)
        n_bonds, ends, channel = _with_more(n_bonds, ends, channel, more, len(options.bond_channel_names))
    return MoleculeArrays(
        rows=np.array(rows, dtype=np.int64),
        **_edges(structures.n_atoms, n_bonds, ends, channel, options),
        x=_atoms(structures, tools, asked, options),
        graph_features=_graph_features(found, structures, tools.reader.table, options),
        names=tuple(molecule.name for molecule in found),
        scaffolds=tuple(molecule.scaffold for molecule in found) if scaffolds else (),
        alike=_alike(structures, tools, options),
        bad=tuple(bad),
    )


def _bonds(structures: Structures, options: FeaturizerOptions) -> tuple[Ints, Ints, Ints]:
    """Return the number of bonds (G,), their ends (B, 2) and channels (B,)."""
    ends = structures.ends
    channel = _CHANNELS[structures.types] if options.bond_channels else np.zeros(len(ends), np.int64)
    return structures.n_bonds, ends, channel


def _with_more(
    n_bonds: Ints, ends: Ints, channel: Ints, more: tuple[Ints, Ints, Ints], base: int
) -> tuple[Ints, Ints, Ints]:
    """Return what `_bonds` returns, with further bonds after those of each molecule, in channels from `base` on."""
    n_more, more_ends, more_channel = more
    molecule = np.arange(len(n_bonds))
    order = np.argsort(np.concatenate([np.repeat(molecule, n_bonds), np.repeat(molecule, n_more)]), kind="stable")
    ends = np.concatenate([ends, more_ends])[order]
    return n_bonds + n_more, ends, np.concatenate([channel, base + more_channel])[order]


def _edges(
    n_atoms: Ints, n_bonds: Ints, ends: Ints, codes: Ints, options: FeaturizerOptions
) -> dict[str, NDArray[Any]]:
    """Return the arrays of edges of `MoleculeArrays`.

    They have both directions of each bond, then the self-loops of each molecule.
    """
    n_edges = 2 * n_bonds + (n_atoms if options.self_loops else 0)
    node_ptr, edge_ptr = row_pointer(n_atoms), row_pointer(n_edges)
    src, dst = np.zeros((2, edge_ptr[-1]), np.int32)
    channel = np.zeros(edge_ptr[-1], np.uint8)
    edge = 2 * np.arange(len(ends)) + np.repeat(edge_ptr[:-1] - 2 * (np.cumsum(n_bonds) - n_bonds), n_bonds)
    src[edge], dst[edge], src[edge + 1], dst[edge + 1] = ends[:, 0], ends[:, 1], ends[:, 1], ends[:, 0]
    channel[edge] = channel[edge + 1] = codes
    if options.self_loops:
        node = np.arange(node_ptr[-1]) - np.repeat(node_ptr[:-1], n_atoms)
        edge = node + np.repeat(edge_ptr[:-1] + 2 * n_bonds, n_atoms)
        src[edge] = dst[edge] = node
        channel[edge] = len(BOND_CHANNELS) if options.bond_channels else 0
    return {"node_ptr": node_ptr, "edge_ptr": edge_ptr, "src": src, "dst": dst, "channel": channel}


def _atoms(structures: Structures, tools: _Featurizer, asked: list[Properties], options: FeaturizerOptions) -> Any:
    """Return the atom features (N, F): int8, or float32 with those that are not whole numbers."""
    table, node_ptr = tools.reader.table, row_pointer(structures.n_atoms)
    bonds = structures.ends + np.repeat(node_ptr[:-1], structures.n_bonds)[:, None]
    degrees = np.bincount(bonds.ravel(), minlength=int(node_ptr[-1]))
    columns: list[Any] = [table.features(structures.atoms, degrees)]
    if options.atom_features == EXTENDED:
        numbers = np.array([atom.number for atom in table.atoms], np.int64)[structures.atoms]
        columns.append(extended_atoms(structures, numbers, asked))
    if options.walk:
        columns.append(random_walks(node_ptr, bonds, options.walk))
    return np.concatenate(columns, axis=1) if len(columns) > 1 else columns[0]


def _alike(structures: Structures, tools: _Featurizer, options: FeaturizerOptions) -> Counter[str]:
    """Return the number of molecules with each element that has no feature of its own, by its symbol."""
    if options.atom_features == EXTENDED:  # the mass tells them apart
        return Counter()
    numbers = tools.reader.table.others(structures.atoms)
    other = np.flatnonzero(numbers >= 0)
    molecule = np.repeat(np.arange(len(structures.n_atoms)), structures.n_atoms)[other]
    symbol = tools.chem.GetPeriodicTable().GetElementSymbol
    return Counter(symbol(number) for _, number in set(zip(molecule.tolist(), numbers[other].tolist(), strict=True)))


def _graph_features(
    found: list[_Molecule], structures: Structures, table: AtomTable, options: FeaturizerOptions
) -> FeatureTable | None:
    if not options.of_molecules:
        return None
    begun = [one.features for one in found if one.features is not None]
    if not begun:
        return FeatureTable.of(np.zeros((0, len(graph_feature_names(options))), np.float32), count_columns(options))
    return molecule_features(begun, structures, table.atoms, options)
