"""Features of whole molecules: RDKit's 2D descriptors and fingerprints of counts.

This module imports NumPy only, and RDKit when it is used, because worker processes import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import Atom
from gcnbatch.data.chunk_molecules import ChunkMolecules, is_usual
from gcnbatch.data.featurizer_options import ATOM_PAIR, CHIRAL, FEATURE, FeaturizerOptions
from gcnbatch.data.fragments import fragments
from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.normal_form import NormalForm
from gcnbatch.data.rdkit_binary import Ints, Structures
from gcnbatch.data.sparse import Csr

if TYPE_CHECKING:
    from gcnbatch.data.descriptors import RdkitValues

_LARGEST = 1e30  # some descriptors (Ipc) exceed float32
_SMALLEST = 1e-12  # what sums leave that cancel: the order of their terms decides it


def graph_feature_names(options: FeaturizerOptions) -> tuple[str, ...]:
    """Return the names of the features of a molecule, in order: descriptors, then counts of fragments."""
    described = _described().names() if options.descriptors else ()
    kinds = (kind if kind == ATOM_PAIR else f"{kind}{options.radius}" for kind in options.fingerprints)
    return (*described, *(f"{kind}={column}" for kind in kinds for column in range(options.size)))


def count_columns(options: FeaturizerOptions) -> int:
    """Return how many of the features are counts of fragments; they are the last ones."""
    return options.size * len(options.fingerprints)


def rdkit_version() -> str:
    """Return the version of RDKit: descriptors of another may differ."""
    from rdkit import rdBase

    return str(rdBase.rdkitVersion)


class Begun(NamedTuple):
    """Values that RDKit computes for the features of a molecule.

    Parameters
    ----------
    usual : bool
        Its features are computed with those of the chunk; see `gcnbatch.data.chunk_molecules.is_usual`.
    counts : dict of uint32, (size,)
        Of the fingerprints that RDKit makes, by their number in the options.
    of_rdkit
        What `gcnbatch.data.descriptors.rdkit_values` returns; None without descriptors.
    """

    usual: bool
    counts: dict[int, NDArray[np.uint32]]
    of_rdkit: RdkitValues | NDArray[np.float64] | None


def begin(form: NormalForm, options: FeaturizerOptions) -> Begun:
    """Ask RDKit for what the features of a molecule are made from.

    What takes time in proportion to a molecule of any size is done here, where the caller limits it.

    Parameters
    ----------
    form : NormalForm
        Its atoms in any order if no value depends on it.
    options : FeaturizerOptions
    """
    of_rdkit = _described().rdkit_values(form) if options.descriptors else None
    usual = is_usual(form.molecule, form.name) if of_rdkit is None else not isinstance(of_rdkit, np.ndarray)
    counts = {
        number: generator(kind, options.radius, options.size).GetCountFingerprintAsNumPy(form.molecule)
        for number, kind in enumerate(options.fingerprints)
        if not usual or kind == CHIRAL
    }
    return Begun(usual, counts, of_rdkit)


def molecule_features(
    begun: Sequence[Begun], structures: Structures, atoms: Sequence[Atom], options: FeaturizerOptions
) -> FeatureTable:
    """Return the features (G, D) of the molecules of a chunk; NaN for a descriptor that RDKit cannot compute.

    Parameters
    ----------
    begun : sequence of Begun
    structures : Structures
        Of the same molecules, their atoms in the order of the names.
    atoms : sequence of Atom
        Rows of the AtomTable.
    options : FeaturizerOptions
    """
    usual = np.flatnonzero([one.usual for one in begun])
    usual = usual[np.argsort(structures.n_atoms[usual], kind="stable")]
    molecules = ChunkMolecules(structures.take(usual), atoms)
    described = np.zeros((len(begun), 0), np.float32)
    if options.descriptors:
        of_rdkit = [one.of_rdkit for one in begun if one.of_rdkit is not None]
        found = np.clip(_described().descriptors(of_rdkit, molecules, usual), -_LARGEST, _LARGEST)
        described = np.where(np.abs(found) < _SMALLEST, 0, found).astype(np.float32)
    return FeatureTable(described, Csr.of(_counts(begun, usual, molecules, options)))


def _counts(
    begun: Sequence[Begun], usual: Ints, molecules: ChunkMolecules, options: FeaturizerOptions
) -> NDArray[np.uint32]:
    """Return the counts of fragments (G, columns); `usual` are the rows of `molecules`."""
    found = np.zeros((len(begun), count_columns(options)), np.uint32)
    for number, kind in enumerate(options.fingerprints):
        first = number * options.size
        if kind != CHIRAL and len(usual):
            molecule, codes = fragments(molecules, kind, options.radius)
            places = usual[molecule] * found.shape[1] + first + codes % np.uint32(options.size)
            np.add.at(found.reshape(-1), places, np.uint32(1))
        for row, one in enumerate(begun):
            if number in one.counts:
                found[row, first : first + options.size] = one.counts[number]
    return found


def _described() -> Any:
    """Return the module of descriptors, whose tables of patterns take a tenth of a worker's start."""
    from gcnbatch.data import descriptors

    return descriptors


@cache
def generator(kind: str, radius: int, size: int) -> Any:
    """Return RDKit's generator of a fingerprint; see `FeaturizerOptions`."""
    from rdkit.Chem import rdFingerprintGenerator

    if kind == ATOM_PAIR:
        return rdFingerprintGenerator.GetAtomPairGenerator(fpSize=size)
    atoms = rdFingerprintGenerator.GetMorganFeatureAtomInvGen() if kind == FEATURE else None
    return rdFingerprintGenerator.GetMorganGenerator(
        radius=radius, fpSize=size, includeChirality=kind == CHIRAL, atomInvariantsGenerator=atoms
    )
