"""What a worker process of the featuriser runs. It imports little: NumPy and RDKit take half of a worker's start."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays, featurize_chunk, load_rdkit
from gcnbatch.data.normal_form import normal_form


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
    """Return canonical SMILES with and without stereochemistry, of those that RDKit can write."""
    names = {}
    for text in smiles:
        with suppress(RuntimeError):
            forms = [normal_form(text.strip(), options, stereo) for stereo in (True, False)]
            exact, flat = (form.name for form in forms if form is not None)
            names[text] = exact, flat
    return names
