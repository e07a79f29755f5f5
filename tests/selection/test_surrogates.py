"""Models of a campaign, and the rows that it begins with."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.similarity import KnownMolecules
from gcnbatch.mixture import Molecules
from gcnbatch.selection.candidates import representative
from gcnbatch.selection.surrogates import Kernel


def molecules(seed: int = 0, n: int = 120) -> Molecules:
    """Random fragments and descriptors, independent of each other."""
    draws = np.random.default_rng(seed)
    counts = draws.binomial(2, 0.3, (n, 40)).astype(np.uint8)
    return Molecules.of([counts, draws.binomial(2, 0.3, (n, 40)).astype(np.uint8)], draws.standard_normal((n, 4)))


@pytest.mark.parametrize("of", ["fragments", "descriptors"])
def test_the_kernel_reads_what_values_depend_on(of: str) -> None:
    found = molecules()
    x = found.counts[0].toarray()[:, :5].astype(float) if of == "fragments" else found.descriptors
    y, known = x.sum(axis=1), np.arange(80)
    mean, deviation = Kernel(found, y)(known)
    assert np.corrcoef(mean[80:], y[80:])[0, 1] > 0.5
    assert deviation[:80].max() < deviation[80:].min()


def test_descriptors_are_left_out_unless_they_save_a_tenth_of_the_error() -> None:
    first = molecules()
    other = Molecules.of(first.counts, molecules(1).descriptors)
    known, y = np.arange(80), first.counts[0].toarray().sum(axis=1).astype(float)
    np.testing.assert_array_equal(Kernel(first, y)(known)[0], Kernel(other, y)(known)[0])
    y = first.descriptors.sum(axis=1)
    assert (Kernel(first, y)(known)[0] != Kernel(other, y)(known)[0]).any()


def test_rows_that_become_known_give_the_same_process_as_a_new_one() -> None:
    found = molecules()
    y = found.descriptors.sum(axis=1)
    kernel = Kernel(found, y)
    kernel(np.array([3, 50, 70]))
    known = np.array([0, 3, 20, 50, 60, 70, 90])
    for ours, new in zip(kernel(known), Kernel(found, y)(known), strict=True):
        np.testing.assert_allclose(ours, new, rtol=1e-6)


def test_a_campaign_begins_with_a_molecule_of_each_series() -> None:
    pytest.importorskip("rdkit", reason="rdkit is not installed (the extra 'chem')")
    near = KnownMolecules([], FeaturizerOptions())
    series = [
        [core.replace("R", "C" * length) for length in range(1, 9)]
        for core in ("Rc1ccccc1", "RC(=O)NC1CC1", "Rn1cncn1", "RS(=O)(=O)F")
    ]
    prints = [near.fingerprint(text) for group in series for text in group]
    first, again, other = (representative(prints, 4, seed) for seed in (0, 0, 1))
    assert (first // 8).tolist() == [0, 1, 2, 3]
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
