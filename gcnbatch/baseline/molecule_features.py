"""Features of molecules for a random forest: count-Morgan fingerprints and all 2D descriptors of RDKit.

This module imports NumPy and RDKit only, because worker processes import it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit, read_molecule
from gcnbatch.data.refusals import excess
from gcnbatch.errors import InputError
from gcnbatch.text import quoted
from gcnbatch.worker import Workers

RADIUS, BITS = 2, 2048
CHUNK = 64  # molecules that a worker takes at a time; a descriptor row takes about 10 ms
_LARGEST = 1e30  # some descriptors (Ipc) exceed float32


def molecule_features(
    smiles: Sequence[str], options: FeaturizerOptions, processes: int = 0, progress: bool = False
) -> NDArray[np.float32]:
    """Return the features (R, 2048 + D) of molecules: counts of circular fragments, then D descriptors.

    A descriptor that RDKit cannot compute is 0.

    Parameters
    ----------
    smiles : sequence of R str
    options : FeaturizerOptions
        Largest fragment and neutralisation, as for the graphs.
    processes : int
        Worker processes; 0: one per processor.
    progress : bool
        Show a bar on stderr (never in a pipe).

    Raises
    ------
    InputError
        For a SMILES that RDKit cannot read.
    MachineError
        When RDKit is missing.
    """
    from tqdm import tqdm

    load_rdkit()
    chunks = [(list(smiles[first : first + CHUNK]), first, options) for first in range(0, len(smiles), CHUNK)]
    count = min(processes or len(os.sched_getaffinity(0)), len(chunks))
    parts: list[NDArray[np.float32]] = []
    with tqdm(
        total=len(smiles), unit=" molecules", desc="descriptors", disable=None if progress else True, file=sys.stderr
    ) as bar:

        def take(part: NDArray[np.float32]) -> None:
            parts.append(part)
            bar.update(len(part))

        if count < 2:
            for chunk in chunks:
                take(chunk_features(*chunk))
        else:
            with Workers(count) as workers:
                for future in [workers.submit(chunk_features, *chunk) for chunk in chunks]:
                    take(future.result())
    return np.concatenate(parts) if parts else np.zeros((0, BITS + len(_descriptors())), np.float32)


def chunk_features(smiles: Sequence[str], first: int, options: FeaturizerOptions) -> NDArray[np.float32]:
    """Return the features of a chunk of molecules; `first` is the number of its first row, for messages."""
    rows = np.empty((len(smiles), BITS + len(_descriptors())), dtype=np.float64)
    for row, text in enumerate(smiles):
        if reason := excess(text, options.max_nodes):
            raise InputError(f"row {first + row + 1}", reason, "a smaller molecule")
        molecule = read_molecule(text, options)
        if molecule is None:
            raise InputError(f"row {first + row + 1}", f"SMILES {quoted(text)}", "a molecule that RDKit can read")
        rows[row, :BITS] = _generator().GetCountFingerprintAsNumPy(molecule)
        rows[row, BITS:] = [_value(function, molecule) for function in _descriptors()]
    return np.clip(np.nan_to_num(rows, nan=0.0), -_LARGEST, _LARGEST).astype(np.float32)


@cache
def _generator() -> Any:
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=BITS)


@cache
def _descriptors() -> tuple[Any, ...]:
    from rdkit.Chem import Descriptors

    return tuple(function for _, function in Descriptors.descList)


def _value(function: Any, molecule: Any) -> float:
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):
        return 0.0
