"""What a worker process of the featuriser runs. It imports little: NumPy and RDKit take half of a worker's start."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays, featurize_chunk, load_rdkit, read_molecule


def prepare() -> None:
    """Prepare a worker process."""
    load_rdkit()
    guard.limit_worker()


def featurize_timed(
    seconds: float, smiles: list[str], first: int, options: FeaturizerOptions, scaffolds: bool
) -> MoleculeArrays:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    return featurize_chunk(guard.timed(smiles, seconds), first, options, scaffolds)


def canonical_timed(seconds: float, smiles: list[str], options: FeaturizerOptions) -> dict[str, tuple[str, str]]:
    """Return `canonical` in a worker process, which ends if a molecule takes too long."""
    return canonical(guard.timed(smiles, seconds), options)


def canonical(smiles: Iterable[str], options: FeaturizerOptions) -> dict[str, tuple[str, str]]:
    """Return canonical SMILES with and without stereochemistry and isotopes, of those that RDKit can write."""
    chem, names = load_rdkit(), {}
    for text in smiles:
        with suppress(RuntimeError):
            molecule = read_molecule(text.strip(), options)
            names[text] = chem.MolToSmiles(molecule), chem.MolToSmiles(molecule, isomericSmiles=False)
    return names
