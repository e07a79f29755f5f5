"""Features of molecules for a random forest: count-Morgan fingerprints and all 2D descriptors of RDKit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.featurizer_options import MORGAN, RDKIT2D
from gcnbatch.data.molecule_features import graph_feature_names
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.errors import InputError
from gcnbatch.text import quoted

RADIUS, BITS = 2, 2048
FEATURES = FeaturizerOptions(descriptors=RDKIT2D, fingerprints=(MORGAN,), radius=RADIUS, size=BITS)


@dataclass(frozen=True)
class MoleculeFeatures:
    """Features of molecules.

    Parameters
    ----------
    x : (R, 2048 + D) float32
        Counts of circular fragments, then D descriptors. A descriptor that RDKit cannot compute is 0.
    lost : tuple of Lost
        Rows of zeros: their molecules crash RDKit, or take too much time or memory (`gcnbatch.data.guard`).
    """

    x: NDArray[np.float32]
    lost: tuple[guard.Lost, ...] = ()


def molecule_features(
    smiles: Sequence[str], options: FeaturizerOptions, processes: int = 0, progress: bool = False
) -> MoleculeFeatures:
    """Return the features of molecules.

    Parameters
    ----------
    smiles : sequence of R str
    options : FeaturizerOptions
        Largest number of atoms, largest fragment and neutralisation, as for the graphs.
    processes, progress
        See `featurize`.

    Raises
    ------
    InputError
        For a SMILES that RDKit cannot read.
    MachineError
        When RDKit is missing or processes cannot be started.
    """
    load_rdkit()
    own = replace(
        FEATURES,
        max_nodes=options.max_nodes,
        largest_fragment=options.largest_fragment,
        neutralize=options.neutralize,
    )
    x = np.zeros((len(smiles), len(graph_feature_names(own))), np.float32)
    lost: list[guard.Lost] = []
    for chunk in featurize(smiles, own, processes=processes, progress=progress):
        for bad in chunk.bad:
            if bad.too_large:
                raise InputError(f"row {bad.index + 1}", bad.reason, "a smaller molecule")
            if bad.unreadable:
                text = f"SMILES {quoted(smiles[bad.index])}"
                raise InputError(f"row {bad.index + 1}", text, "a molecule that RDKit can read")
            lost.append(guard.Lost(bad.index, bad.reason))
        if chunk.graph_features is not None:
            x[chunk.rows] = np.roll(np.nan_to_num(chunk.graph_features.dense(), nan=0.0), BITS, axis=1)
    return MoleculeFeatures(x, tuple(lost))
