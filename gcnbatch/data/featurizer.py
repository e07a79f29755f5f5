"""Converts one chunk of SMILES into arrays, in a worker process; imports NumPy and RDKit only.

The 75 atom features are those of DeepChem's graph convolution: element symbol (44, the last for all other elements),
degree 0-10, implicit valence 0-6, formal charge, radical electrons, hybridisation (sp, sp2, sp3, sp3d, sp3d2; else all
zero), aromaticity, hydrogens 0-4. A value beyond a one-hot range counts as the last of the range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.refusals import MAX_ATOMS, complaint, excess, first_line
from gcnbatch.errors import InputError, MachineError

SYMBOLS = (
    *(
        "C",
        "N",
        "O",
        "S",
        "F",
        "Si",
        "P",
        "Cl",
        "Br",
        "Mg",
        "Na",
        "Ca",
        "Fe",
        "As",
        "Al",
        "I",
        "B",
        "V",
        "K",
        "Tl",
        "Yb",
    ),
    *("Sb", "Sn", "Ag", "Pd", "Co", "Se", "Ti", "Zn", "H", "Li", "Ge", "Cu", "Au", "Ni", "Cd", "In", "Mn", "Zr", "Cr"),
    *("Pt", "Hg", "Pb", "other"),
)
HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
FEATURE_NAMES = (
    *(f"symbol={symbol}" for symbol in SYMBOLS),
    *(f"degree={n}" for n in range(11)),
    *(f"implicit_valence={n}" for n in range(7)),
    "formal_charge",
    "radical_electrons",
    *(f"hybridisation={name.lower()}" for name in HYBRIDISATIONS),
    "aromatic",
    *(f"hydrogens={n}" for n in range(5)),
)
ATOM_FEATURES = "deepchem75"
BOND_CHANNELS = ("single", "double", "triple", "aromatic")
STANDARDIZERS = ("largest_fragment", "neutralize")
MAX_MURCKO_ATOMS = 300  # RDKit decomposes larger molecules too slowly


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
                f"kind {values.get('kind')}, atom features {values.get('atom_features')}",
                f"kind smiles, atom features {ATOM_FEATURES}",
                "Only sets made by 'gcnbatch data import smiles' can be repeated from a CSV file; give an HDF5 file.",
            )
        flags = {name: values.get(name) for name in ("bond_channels", "self_loops", "normalize")}
        flags |= {name: values.get(name, False) for name in STANDARDIZERS}  # older files lack them
        limit = values.get("max_nodes")
        wrong = [name for name, value in flags.items() if not isinstance(value, bool)]
        if wrong or not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            name = wrong[0] if wrong else "max_nodes"
            raise InputError(
                f"featurizer of the data set: {name}", repr(values.get(name)), "true, false or a node count"
            )
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


class _AtomTable:
    """Table of distinct atoms by their RDKit values, so that features are computed once per distinct atom."""

    def __init__(self, chem: Any) -> None:
        self.rows: dict[tuple[int, ...], int] = {}
        self.features: list[NDArray[np.int8]] = []
        periodic = chem.GetPeriodicTable()
        self._symbols = {periodic.GetAtomicNumber(symbol): place for place, symbol in enumerate(SYMBOLS[:-1])}
        self._hybridisations = [getattr(chem.HybridizationType, name) for name in HYBRIDISATIONS]

    def add(self, key: tuple[int, ...]) -> int:
        """Add an atom and return its row; `key` as `_atom_rows` builds it."""
        number, degree, valence, charge, radicals, hybridisation, aromatic, hydrogens = key
        x = np.zeros(len(FEATURE_NAMES), dtype=np.int8)
        x[self._symbols.get(number, len(SYMBOLS) - 1)] = 1
        x[44 + min(degree, 10)] = 1
        x[55 + min(valence, 6)] = 1
        x[62] = charge
        x[63] = radicals
        x[64:69] = [hybridisation == known for known in self._hybridisations]
        x[69] = aromatic
        x[70 + min(hydrogens, 4)] = 1
        self.features.append(x)
        self.rows[key] = len(self.features) - 1
        return self.rows[key]


@cache
def _atom_table() -> _AtomTable:
    return _AtomTable(load_rdkit())


def read_molecule(text: str, options: FeaturizerOptions) -> Any:
    """Return the RDKit molecule that becomes a graph; None where the SMILES cannot be read."""
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
    chem = load_rdkit()
    table = _atom_table()
    implicit = chem.ValenceType.IMPLICIT
    loop_channel = len(BOND_CHANNELS) if options.bond_channels else 0
    atoms: list[int] = []
    src: list[int] = []
    dst: list[int] = []
    channel: list[int] = []
    rows, node_ptr, edge_ptr, cores, bad = [], [0], [0], [], []
    for index, text in enumerate(smiles, first):
        if reason := excess(text, options.max_nodes):
            bad.append(BadMolecule(index, reason, too_large=True))
            continue
        try:
            molecule = read_molecule(text, options)
            count = 0 if molecule is None else molecule.GetNumAtoms()
            if count == 0:
                bad.append(BadMolecule(index, complaint(chem, text)))
                continue
            if 0 < options.max_nodes < count:
                reason = f"{count} atoms, more than {options.max_nodes}"
                bad.append(BadMolecule(index, reason, too_large=True))
                continue
            found = _atom_rows(molecule, count, table, implicit)
            core = _scaffold(chem, molecule) if scaffolds else ""
        except MemoryError:
            raise
        except Exception as error:  # of RDKit's C++ code
            bad.append(BadMolecule(index, first_line(error)))
            continue
        atoms += found
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            begin, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            src += (begin, end)
            dst += (end, begin)
            kind = _bond_channel(chem, bond) if options.bond_channels else 0
            channel += (kind, kind)
        if options.self_loops:
            src += range(count)
            dst += range(count)
            channel += [loop_channel] * count
        rows.append(index)
        node_ptr.append(len(atoms))
        edge_ptr.append(len(src))
        if scaffolds:
            cores.append(core)
    features = np.stack(table.features) if table.features else np.zeros((0, len(FEATURE_NAMES)), np.int8)
    return MoleculeArrays(
        rows=np.array(rows, dtype=np.int64),
        node_ptr=np.array(node_ptr, dtype=np.int64),
        edge_ptr=np.array(edge_ptr, dtype=np.int64),
        src=np.array(src, dtype=np.int32),
        dst=np.array(dst, dtype=np.int32),
        channel=np.array(channel, dtype=np.uint8),
        x=features[np.array(atoms, dtype=np.int64)],
        scaffolds=tuple(cores),
        bad=tuple(bad),
    )


def _atom_rows(molecule: Any, count: int, table: _AtomTable, implicit: Any) -> list[int]:
    """Return the row of each atom in the table; `implicit` names RDKit's implicit valence."""
    rows = []
    # By index: RDKit's iterators ask for the number of atoms or bonds at every step.
    for atom in map(molecule.GetAtomWithIdx, range(count)):
        key = (
            atom.GetAtomicNum(),
            atom.GetDegree(),
            atom.GetValence(implicit),
            atom.GetFormalCharge(),
            atom.GetNumRadicalElectrons(),
            atom.GetHybridization(),
            atom.GetIsAromatic(),
            atom.GetTotalNumHs(),
        )
        row = table.rows.get(key)
        rows.append(table.add(key) if row is None else row)
    return rows


def _bond_channel(chem: Any, bond: Any) -> int:
    if bond.GetIsAromatic():
        return 3
    kind = bond.GetBondType()
    if kind == chem.BondType.DOUBLE:
        return 1
    return 2 if kind == chem.BondType.TRIPLE else 0


def _scaffold(chem: Any, molecule: Any) -> str:
    """Return the Murcko scaffold as SMILES without stereochemistry: rings and the chains between them."""
    if not molecule.GetRingInfo().NumRings():
        return ""
    if molecule.GetNumAtoms() > MAX_MURCKO_ATOMS:
        return _large_scaffold(chem, molecule)
    return str(chem.MolToSmiles(chem.MurckoDecompose(molecule), isomericSmiles=False))


def _large_scaffold(chem: Any, molecule: Any) -> str:
    """Return rings, the chains between them and atoms multiply bonded to them, in linear time.

    RDKit's decomposition takes cubic time: a minute for 3,000 atoms.
    """
    neighbours = [{other.GetIdx() for other in atom.GetNeighbors()} for atom in molecule.GetAtoms()]
    in_ring = [atom.IsInRing() for atom in molecule.GetAtoms()]
    core = set(range(len(neighbours)))
    ends = [atom for atom in core if len(neighbours[atom]) < 2]
    while ends:
        atom = ends.pop()
        if atom not in core or in_ring[atom]:
            continue
        core.discard(atom)
        for other in neighbours[atom]:
            neighbours[other].discard(atom)
            if len(neighbours[other]) < 2:
                ends.append(other)
    kept = set(core)
    for bond in molecule.GetBonds():
        pair = {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}
        if bond.GetBondTypeAsDouble() >= 2.0 and pair & core:
            kept |= pair
    return str(chem.MolFragmentToSmiles(molecule, atomsToUse=sorted(kept), isomericSmiles=False))
