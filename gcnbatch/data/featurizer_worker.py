"""What a worker process of the featuriser runs. It imports little: NumPy and RDKit take half of a worker's start."""

from __future__ import annotations

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays, featurize_chunk, load_rdkit


def prepare() -> None:
    """Prepare a worker process."""
    load_rdkit()
    guard.limit_worker()


def featurize_timed(
    seconds: float, smiles: list[str], first: int, options: FeaturizerOptions, scaffolds: bool
) -> MoleculeArrays:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    return featurize_chunk(guard.timed(smiles, seconds), first, options, scaffolds)
