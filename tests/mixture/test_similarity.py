from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.errors import InputError
from gcnbatch.mixture import similarity
from gcnbatch.mixture.molecules import Molecules, Preparation, Prepared
from gcnbatch.mixture.similarity import Similarity, reweigh
from tests.mixture.plain import similarities
from tests.mixture.problems import molecules


@pytest.mark.parametrize(("jobs", "weight"), [(1, 1.0), (3, 1.0), (1, 2.0)])
def test_the_kernel_equals_plain_loops(jobs: int, weight: float) -> None:
    of = molecules(40)
    preparation = Preparation.fit(of)
    a, b = preparation.apply(of[:25]), preparation.apply(of[10:])
    np.testing.assert_allclose(Similarity(b, jobs, weight).matrix(a), similarities(a, b, weight), rtol=1e-5, atol=1e-6)


def test_a_matrix_that_is_weighed_again_is_that_of_the_new_weight() -> None:
    of = molecules(300)
    prepared = Preparation.fit(of).apply(of)
    found = [Similarity(prepared).matrix(prepared) for _ in range(2)]
    for matrix, jobs in zip(found, (1, 3), strict=True):
        reweigh(matrix, prepared, 2.0, jobs)
    assert np.array_equal(*found)
    np.testing.assert_allclose(found[0], Similarity(prepared, weight=2.0).matrix(prepared), atol=1e-6)


def test_blocks_and_threads_do_not_change_a_similarity() -> None:
    of = molecules(700)
    prepared = Preparation.fit(of).apply(of)
    landmarks = prepared[:50]
    whole = Similarity(landmarks, 1).matrix(prepared)
    assert np.array_equal(whole, Similarity(landmarks, 4).matrix(prepared))
    np.testing.assert_allclose(np.diag(whole[:50]), 1, rtol=1e-5)


@pytest.mark.parametrize("count", [90, 96, 1])
def test_a_square_of_similarities_is_computed_in_half(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(similarity, "BLOCK", 16)
    monkeypatch.setattr(similarity, "_COLUMNS", 32)
    of = molecules(100)
    prepared = Preparation.fit(of).apply(of)[:count]
    found = Similarity(prepared, 3, 2.0).square()
    np.testing.assert_allclose(found, Similarity(prepared, 1, 2.0).matrix(prepared), rtol=1e-5, atol=1e-6)
    assert np.array_equal(found, found.T)
    assert np.array_equal(found, Similarity(prepared, 1, 2.0).square())


def test_molecules_without_fragments_have_no_similarity_of_fragments() -> None:
    of = Molecules.of((np.zeros((2, 3)),), np.array([[0.0], [1.0]]))
    prepared = Preparation.fit(of).apply(of)
    np.testing.assert_allclose(np.diag(Similarity(prepared).matrix(prepared)), 0.5)


def test_prepared_molecules_survive_their_arrays() -> None:
    of = molecules(30)
    preparation = Preparation.fit(of)
    prepared = preparation.apply(of)
    again = Prepared.from_arrays(prepared.arrays())
    assert np.array_equal(again.scores, prepared.scores)
    for one, other in zip(again.counts, prepared.counts, strict=True):
        assert np.array_equal(one.toarray(), other.toarray())
    other = Preparation.from_arrays(preparation.arrays())
    assert np.array_equal(other.table(other.apply(of)), preparation.table(prepared))


def test_trees_read_no_rare_fragment_and_no_constant_descriptor() -> None:
    counts = np.zeros((6, 3))
    counts[:2, 0], counts[:3, 1], counts[:, 2] = 1, 2, 300
    of = Molecules.of((counts,), np.stack([np.ones(6), np.arange(6.0)], axis=1))
    preparation = Preparation.fit(of)
    table = preparation.table(preparation.apply(of))
    assert np.array_equal(table[:, :2], np.stack([counts[:, 1], np.full(6, 255)], axis=1))
    assert table.shape == (6, 3)


def test_trees_read_the_fingerprints_that_are_theirs() -> None:
    first, second, third = (np.full((4, width), value) for width, value in ((2, 1), (3, 2), (1, 3)))
    of = Molecules.of((first, second, third), np.zeros((4, 1)), (True, False, True))
    preparation = Preparation.fit(of[:3])
    assert [columns.tolist() for columns in preparation.fragments_of((2, 3, 1))] == [[0, 1], [], [0]]
    assert np.array_equal(preparation.table(preparation.apply(of)), np.concatenate([first, third], axis=1))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda of: Molecules.of(of.counts[:1], of.descriptors), "1 fingerprints; expected 2, as in training"),
        (lambda of: Molecules.of(of.counts, of.descriptors[:, 1:]), "5 descriptors; expected 6, as in training"),
    ],
)
def test_other_features_than_in_training_are_refused(other: object, message: str) -> None:
    of = molecules(20)
    with pytest.raises(InputError, match=message):
        Preparation.fit(of).apply(other(of))


def test_features_of_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(InputError, match="rows: 3, 4; expected at least one fingerprint, the same rows in all"):
        Molecules.of((np.zeros((3, 2)),), np.zeros((4, 1)))


def test_sums_of_more_bits_than_a_byte_holds_are_exact() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 7, (9, 500)) * (rng.random((9, 500)) < np.linspace(0, 1, 9)[:, None])
    of = Molecules.of([counts], rng.normal(size=(9, 4)))
    prepared = Preparation.fit(of).apply(of)
    assert similarity._bits(prepared.counts[0]).max() > 1000
    np.testing.assert_allclose(
        Similarity(prepared).matrix(prepared), similarities(prepared, prepared), rtol=1e-5, atol=1e-6
    )
