"""Similarities of molecules on a device: geometry here, numbers on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.mixture import similarity as on_device
from gcnbatch.backends.cuda.mixture.similarity import OUTPUTS, TILE, DeviceSimilarity, bits, pairs, sums
from gcnbatch.backends.mixtures import Compared
from gcnbatch.backends.registry import open_backend
from gcnbatch.errors import InputError
from gcnbatch.mixture.molecules import Molecules, Preparation, Prepared
from gcnbatch.mixture.similarity import Similarity
from gcnbatch.training.mixed import compared
from tests.mixture.plain import similarities
from tests.mixture.problems import molecules

ROUNDING = 2.0**-24


@pytest.mark.parametrize("sizes", [(1, 1), (64, 65), (2048, 11_817), (63, 20_000)])
def test_tiles_cover_all_pairs_and_none_is_idle(sizes: tuple[int, int]) -> None:
    launch = pairs(*sizes)
    for blocks, size in zip(launch.grid, sizes, strict=False):
        assert (blocks - 1) * TILE < size <= blocks * TILE


@pytest.mark.parametrize("molecules", [1, 7, 8, 9, 2048])
def test_warps_cover_all_molecules_and_blocks_all_outputs(molecules: int) -> None:
    launch = bits(molecules)
    assert (launch.blocks - 1) * launch.threads // 32 < molecules <= launch.blocks * launch.threads // 32
    for outputs in (1, OUTPUTS, OUTPUTS + 1):
        rows, groups, _ = sums(molecules, outputs).grid
        assert rows == molecules
        assert (groups - 1) * OUTPUTS < outputs <= groups * OUTPUTS


@pytest.mark.parametrize("fragments", [39, 41])
def test_molecules_with_other_columns_than_the_landmarks_are_refused(fragments: int) -> None:
    """Before the device is used."""
    device: Any = None
    of, landmarks = compared(prepared(5, fragments)), compared(prepared(5))
    told = f"features of molecules: columns {fragments}, {fragments}, 6; expected 40, 40, 6, those of the landmarks"
    with pytest.raises(InputError, match=told):
        next(DeviceSimilarity(device, landmarks, 1.0).blocks(of))


def prepared(rows: int, fragments: int = 40, descriptors: int = 6) -> Prepared:
    of = molecules(rows, fragments=fragments, descriptors=descriptors)
    return Preparation.fit(of).apply(of)


def error_bound(a: Prepared, b: Prepared) -> np.ndarray:
    """Return bounds of rounding errors: of D products in the exponent, of a division, and of sums.

    The exponent is 2 ab - a² - b², divided by D; each sum has an error of D roundings of its absolute terms.
    """
    left, right = (np.abs(of.scores.astype(float)) for of in (a, b))
    D = max(left.shape[1], 1)
    terms = 2 * left @ right.T + (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)
    return ROUNDING * ((D + 4) * terms / D + 8 + 2 * len(a.counts))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "landmarks", "fragments", "descriptors", "weight"),
    [(25, 40, 40, 6, 1.0), (1, 1, 3, 1, 2.0), (130, 65, 257, 33, 3.0), (70, 129, 2048, 217, 1.0)],
)
def test_similarities_on_a_device_are_those_of_plain_loops(
    rows: int, landmarks: int, fragments: int, descriptors: int, weight: float
) -> None:
    every = prepared(max(rows, landmarks) + 3, fragments, descriptors)
    a, b = every[:rows], every[3 : 3 + landmarks]
    to_landmarks = open_backend("batched").mixture_ops().similarity(compared(b), weight)
    found = to_landmarks.products(compared(a), np.eye(landmarks))
    assert np.all(np.abs(found - similarities(a, b, weight)) <= error_bound(a, b))


@pytest.mark.gpu
def test_the_device_counts_bits_as_the_host_does() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 300, (40, 100)) * (rng.random((40, 100)) < np.linspace(0, 1, 40)[:, None])
    of = Molecules.of([counts, counts[:, :3]], np.zeros((40, 1)))  # no descriptor varies
    own = Preparation.fit(of).apply(of)
    found = open_backend("fused").mixture_ops().similarity(compared(own), 1.0).products(compared(own), np.eye(40))
    assert np.array_equal(found, Similarity(own).matrix(own))


@pytest.mark.gpu
@pytest.mark.parametrize("outputs", [1, 8, 19])
def test_products_do_not_depend_on_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, outputs: int) -> None:
    own, weights = prepared(300), np.random.default_rng(0).normal(size=(200, outputs))
    to_landmarks = open_backend("batched").mixture_ops().similarity(compared(own[:200]), 2.0)
    molecules = compared(own)
    whole = to_landmarks.products(molecules, weights)
    exact = to_landmarks.products(molecules, np.eye(200))
    bound = 2 * 2.0**-53 * 200 * np.abs(exact) @ np.abs(weights)
    assert np.all(np.abs(whole - exact @ weights) <= bound)
    monkeypatch.setattr(on_device, "ROWS", 17)
    assert np.array_equal(whole, to_landmarks.products(molecules, weights))
    assert np.array_equal(whole[40:41], to_landmarks.products(molecules.take(slice(40, 41)), weights))


def test_some_consecutive_molecules_are_compared_by_their_own_bits() -> None:
    own = prepared(20)
    rows = slice(5, 12)
    some, expected = compared(own).take(rows), compared(own[rows])
    assert isinstance(some, Compared)
    assert np.array_equal(some.scores, expected.scores)
    for one, other in zip(some.fingerprints, expected.fingerprints, strict=True):
        assert one.columns == other.columns
        assert all(np.array_equal(left, right) for left, right in zip(one[:3], other[:3], strict=True))
