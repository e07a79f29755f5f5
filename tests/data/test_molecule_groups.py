"""Clusters of molecules: Taylor and Butina's against their definition, sphere exclusion by its properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gcnbatch
from gcnbatch.data import molecule_groups
from gcnbatch.data.molecule_groups import butina, clusters_of, sphere_exclusion
from gcnbatch.data.store import Dataset, write_graphset
from tests.builders import build_graphset, small_molecules

MOLECULES = small_molecules(8)


def fingerprints(rows: int, seed: int = 0) -> np.ndarray:
    """Return different rows near some centres, and far from others."""
    rng = np.random.default_rng(seed)
    centres = rng.random((max(rows // 6, 1), 64)) < 0.3
    bits = centres[rng.integers(0, len(centres), rows)] ^ (rng.random((rows, 64)) < 0.05)
    return np.unique(np.hstack([bits, np.ones((rows, 1), bool)]), axis=0).astype(np.uint8)


def tanimoto(bits: np.ndarray) -> np.ndarray:
    both = (bits[:, None] & bits).sum(axis=2)
    return (both / (bits[:, None] | bits).sum(axis=2)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 5, 200])
@pytest.mark.parametrize("similarity", [0.3, 0.6, 1.0])
def test_the_molecule_with_most_neighbours_and_those_that_are_left_form_a_cluster(rows: int, similarity: float) -> None:
    bits = fingerprints(rows)
    near = tanimoto(bits) >= np.float32(similarity)
    expected = np.full(len(bits), -1)
    for centre in sorted(range(len(bits)), key=lambda row: (-near[row].sum(), row)):
        if expected[centre] < 0:
            expected[near[centre] & (expected < 0)] = centre
    done: list[int] = []
    np.testing.assert_array_equal(butina(bits, similarity, done.append), expected)
    assert sum(done) == len(bits)


def test_centres_of_sphere_exclusion_are_apart_and_others_near_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = fingerprints(300)
    found = {}
    for size in (molecule_groups._BLOCK, 32):
        monkeypatch.setattr(molecule_groups, "_BLOCK", size)
        of = found[size] = sphere_exclusion(bits, 0.5)
        share, centres = tanimoto(bits), np.unique(of)
        assert 1 < len(centres) < len(bits)
        assert (of[centres] == centres).all()
        between = share[np.ix_(centres, centres)]
        assert (between[~np.eye(len(centres), dtype=bool)] < 0.5).all()
        assert (share[np.arange(len(bits)), of] >= 0.5).all()
        np.testing.assert_array_equal(of, sphere_exclusion(bits, 0.5))
    np.testing.assert_array_equal(*map(np.unique, found.values()))


@pytest.mark.parametrize("most", [molecule_groups.BUTINA_MOST, 10])
def test_copies_are_in_one_cluster_and_stored_fingerprints_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pytest.importorskip("rdkit")
    monkeypatch.setattr(molecule_groups, "BUTINA_MOST", most)
    texts = [*MOLECULES, *(text.replace("c1ccccc1", "c1cc(ccc1)") for text in MOLECULES)]
    groups = []
    for fingerprint in ("", "atompair,morgan"):
        gcnbatch.write(tmp_path / "set.h5", gcnbatch.from_smiles(texts, range(80), fingerprint=fingerprint))
        with Dataset(tmp_path / "set.h5") as dataset:
            of = clusters_of(dataset, 0.4)
        assert of is not None
        np.testing.assert_array_equal(of[:40], of[40:])
        np.testing.assert_array_equal(of, np.unique(of, return_inverse=True)[1])
        assert 5 < of.max() + 1 < 30
        groups.append(of)
    np.testing.assert_array_equal(*groups)


def test_a_molecule_that_can_be_read_no_more_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    graphs = gcnbatch.from_smiles(["CCO", "CCO", "CCN"], [1, 2, 3])
    write_graphset(tmp_path / "set.h5", replace(graphs, smiles=np.array(["none", "nothing", "CCN"])))
    with Dataset(tmp_path / "set.h5") as dataset:
        assert np.array_equal(clusters_of(dataset, 0.4), [0, 1, 2])  # type: ignore[arg-type]


def test_graphs_that_are_no_molecules_have_no_clusters(tmp_path: Path) -> None:
    write_graphset(tmp_path / "set.h5", build_graphset(5))
    with Dataset(tmp_path / "set.h5") as dataset:
        assert clusters_of(dataset, 0.4) is None
