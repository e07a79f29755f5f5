"""Similarity of molecules to the nearest of a set: Tanimoto similarity of Morgan fingerprints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer_options import MORGAN, FeaturizerOptions
from gcnbatch.data.molecule_features import generator
from gcnbatch.data.normal_form import normal_molecule

RADIUS, BITS = 2, 2048


class KnownMolecules:
    """A set of molecules with their fingerprints (radius 2, 2,048 bits).

    Parameters
    ----------
    smiles : sequence of str
        Those that RDKit cannot read are left out.
    options : FeaturizerOptions
        Largest fragment and neutralisation, as for the graphs.
    """

    def __init__(self, smiles: Sequence[str], options: FeaturizerOptions) -> None:
        self._options = options
        found = ((place, self.fingerprint(text)) for place, text in enumerate(smiles))
        readable = [(place, one) for place, one in found if one is not None]
        self._places, self._known = [place for place, _ in readable], [one for _, one in readable]

    def nearest(self, smiles: Sequence[str]) -> NDArray[np.float32]:
        """Return the similarity (Q,) of each molecule to the nearest known one, 0 to 1; NaN if it cannot be read."""
        found = np.full(len(smiles), np.nan, dtype=np.float32)
        for row, text in enumerate(smiles):
            if (similarities := self._similarities(text)) is not None:
                found[row] = max(similarities, default=0.0)
        return found

    def neighbours(self, smiles: str, count: int) -> list[tuple[int, float]]:
        """Return position and similarity of the most similar known molecules, the nearest first.

        There is none for a molecule that cannot be read.
        """
        similarities = np.array(self._similarities(smiles) or ())
        order = np.argsort(-similarities, kind="stable")[:count].tolist()
        return [(self._places[index], float(similarities[index])) for index in order]

    def _similarities(self, text: str) -> list[float] | None:
        """Return the similarity to each known molecule; None for one that cannot be read."""
        from rdkit.DataStructs import BulkTanimotoSimilarity

        fingerprint = self.fingerprint(text)
        return None if fingerprint is None else list(BulkTanimotoSimilarity(fingerprint, self._known))

    def fingerprint(self, text: str) -> Any:
        """Return the fingerprint of a molecule, None if it cannot be read."""
        molecule = normal_molecule(text, self._options)
        return None if molecule is None else generator(MORGAN, RADIUS, BITS).GetFingerprint(molecule)
