"""Features of whole molecules: RDKit's 2D descriptors and count-Morgan fingerprints.

This module imports NumPy only, and RDKit when it is used, because worker processes import it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer_options import FeaturizerOptions

_LARGEST = 1e30  # some descriptors (Ipc) exceed float32


def graph_feature_names(options: FeaturizerOptions) -> tuple[str, ...]:
    """Return the names of the features of a molecule, in order: descriptors, then counts of fragments."""
    descriptors = tuple(name for name, _ in _descriptors()) if options.descriptors else ()
    return (*descriptors, *(f"morgan{options.radius}={column}" for column in range(count_columns(options))))


def count_columns(options: FeaturizerOptions) -> int:
    """Return how many of the features are counts of fragments; they are the last ones."""
    return options.size if options.fingerprint else 0


def rdkit_version() -> str:
    """Return the version of RDKit: descriptors of another may differ."""
    from rdkit import rdBase

    return str(rdBase.rdkitVersion)


def molecule_features(molecule: Any, options: FeaturizerOptions) -> NDArray[np.float32]:
    """Return the features (D,) of an RDKit molecule; NaN for a descriptor that RDKit cannot compute."""
    values: list[Any] = []
    if options.descriptors:
        values.append([_value(function, molecule) for _, function in _descriptors()])
    if options.fingerprint:
        values.append(_generator(options.radius, options.size).GetCountFingerprintAsNumPy(molecule))
    return np.clip(np.concatenate(values, dtype=np.float64), -_LARGEST, _LARGEST).astype(np.float32)


@cache
def _generator(radius: int, size: int) -> Any:
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=size)


@cache
def _descriptors() -> tuple[tuple[str, Any], ...]:
    from rdkit.Chem import Descriptors

    return tuple(Descriptors.descList)


def _value(function: Any, molecule: Any) -> float:
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):
        return float("nan")
