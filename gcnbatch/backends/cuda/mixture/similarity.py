"""Similarities of molecules to landmarks, and their products with weights: launches of mixture/similarity.cu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.mixtures import Compared
from gcnbatch.errors import InputError

_SOURCE = declared("mixture/similarity.cu")
TILE: int = _SOURCE.constant("TILE")
PAIR_THREADS: int = _SOURCE.constant("PAIR_THREADS")
OUTPUTS: int = _SOURCE.constant("OUTPUTS")
ROW_THREADS: int = _SOURCE.constant("ROW_THREADS")
WORD_COLUMNS: int = _SOURCE.constant("WORD_COLUMNS")
VECTOR_WORDS, WARP = 4, 32
ROWS = 2048  # compared at once: their similarities to 12,000 landmarks take 100 MB


class OnDevice(NamedTuple):
    """Molecules in the device's memory, by the names of `SimilarityMolecules`."""

    words: DeviceArray
    sizes: DeviceArray
    scores: DeviceArray
    norms: DeviceArray
    n: int


def bits(molecules: int) -> Launch:
    """Return the launch that sets the bits of molecules: a warp each.

    >>> bits(2048).grid
    (256, 1, 1)
    """
    return Launch((ceil_div(molecules, BLOCK_THREADS // WARP), 1, 1), (BLOCK_THREADS, 1, 1))


def sums(molecules: int, outputs: int) -> Launch:
    """Return the launch that multiplies similarities by weights.

    >>> sums(2048, 12).grid
    (2048, 2, 1)
    """
    return Launch((molecules, ceil_div(outputs, OUTPUTS), 1), (ROW_THREADS, 1, 1))


def pairs(molecules: int, landmarks: int) -> Launch:
    """Return the launch that compares molecules with landmarks.

    >>> pairs(4096, 11_817).grid
    (64, 185, 1)
    """
    return Launch((ceil_div(molecules, TILE), ceil_div(landmarks, TILE), 1), (PAIR_THREADS, 1, 1))


class DeviceSimilarity:
    """`gcnbatch.backends.mixtures.Similarity` on a device.

    Parameters
    ----------
    device : Device
    landmarks : Compared
        M molecules; uploaded when they are first needed, in the thread that predicts.
    weight : float
        Of the scores' part.
    """

    def __init__(self, device: Device, landmarks: Compared, weight: float) -> None:
        self._device, self._landmarks, self._weight = device, landmarks, weight
        self._there: OnDevice | None = None

    def products(self, molecules: Compared, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the products (n, K) of similarities with weights (M, K), summed in float64."""
        device, (M, K) = self._device, weights.shape
        found = np.empty((len(molecules.scores), K))
        of_landmarks = device.upload(weights)
        for own, similarity in self.blocks(molecules):
            count = similarity.shape[0]
            y = device.empty((count, K), np.float64)
            device.launch(
                "similarity_products", sums(count, K), y=y, similarity=similarity, weights=of_landmarks, M=M, K=K
            )
            found[own] = device.download(y)
        return found

    def blocks(self, molecules: Compared) -> Iterator[tuple[slice, DeviceArray]]:
        """Yield slices of rows and their similarities (rows, M) in the device's memory."""
        if (columns := _columns(molecules)) != (expected := _columns(self._landmarks)):
            raise InputError("features of molecules", f"columns {columns}", f"{expected}, those of the landmarks")
        landmarks = self._there = self._there or self._upload(self._landmarks)
        fingerprints, vectors = len(self._landmarks.fingerprints), landmarks.words.shape[-1] // VECTOR_WORDS
        for first in range(0, len(molecules.scores), ROWS):
            rows = slice(first, min(first + ROWS, len(molecules.scores)))
            own = self._upload(molecules.take(rows))
            y = self._device.empty((own.n, landmarks.n))
            self._device.launch(
                "similarity_of_pairs",
                pairs(own.n, landmarks.n),
                y=y,
                molecules=own._asdict(),
                landmarks=landmarks._asdict(),
                fingerprints=fingerprints,
                vectors=vectors,
                D=molecules.scores.shape[1],
                weight=self._weight,
            )
            yield rows, y

    def _upload(self, molecules: Compared) -> OnDevice:
        device, scores, fingerprints = self._device, molecules.scores, molecules.fingerprints
        words_each = ceil_div(max(own.columns for own in fingerprints), WORD_COLUMNS * VECTOR_WORDS) * VECTOR_WORDS
        words = device.zeros((len(scores), len(fingerprints), words_each), np.uint32)
        sizes = device.empty((len(scores), len(fingerprints)))
        for number, own in enumerate(fingerprints):
            device.launch(
                "similarity_bits",
                bits(len(scores)),
                words=words,
                sizes=sizes,
                indptr=device.upload(own.indptr.astype(np.int32)),
                columns=device.upload(own.indices.astype(np.int32)),
                bits=device.upload(own.bits),
                n=len(scores),
                fingerprint=number,
                fingerprints=len(fingerprints),
                words_each=words_each,
            )
        norms = device.upload((scores**2).sum(axis=1, dtype=np.float32))
        return OnDevice(words, sizes, device.upload(scores), norms, len(scores))


def _columns(molecules: Compared) -> str:
    """Return the numbers of columns of each fingerprint, then of the scores."""
    return ", ".join(map(str, (*(own.columns for own in molecules.fingerprints), molecules.scores.shape[1])))
