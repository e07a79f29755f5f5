"""The random forest: outputs of every kind of target, missing labels, repeatable bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

from gcnbatch.baselines.forest import Forest
from gcnbatch.baselines.molecule_features import BITS, molecule_features
from gcnbatch.data import featurizer_worker, molecule_graphs
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.errors import InputError
from gcnbatch.workers.pool import Workers
from tests.builders import build_graphset

TRAIN = np.arange(30)
FEATURES = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(2, featurizer_worker.prepare, quiet=True) as workers:
        yield workers


@pytest.fixture
def one_pool(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several tests use the same two processes, which import RDKit."""

    def opened(*given: Any, **named: Any) -> nullcontext[Workers]:
        assert (given, named) == ((2, featurizer_worker.prepare), {"quiet": True})
        return nullcontext(pool)

    monkeypatch.setattr(molecule_graphs, "Workers", opened)


def test_probabilities_follow_a_feature_that_decides_and_ignore_missing_labels() -> None:
    y = np.stack([FEATURES[:, 0] > 0, FEATURES[:, 1] > 0], axis=1).astype(np.float32)
    y[:10, 1] = np.nan
    header = build_graphset(2).header
    outputs = Forest(trees=30).predict(header, FEATURES, y, TRAIN)
    assert outputs.shape == (40, 2)
    known = ~np.isnan(y)
    assert np.mean((outputs >= 0.5)[known] == (y == 1)[known]) > 0.9
    np.testing.assert_array_equal(outputs, Forest(trees=30).predict(header, FEATURES, y, TRAIN))
    assert not np.array_equal(outputs, Forest(trees=30, seed=1).predict(header, FEATURES, y, TRAIN))


def test_a_task_that_the_training_rows_cannot_teach_has_no_outputs() -> None:
    y = np.stack([FEATURES[:, 0] > 0, np.ones(40), np.full(40, np.nan)], axis=1).astype(np.float32)
    outputs = Forest(trees=3).predict(build_graphset(2, n_tasks=3).header, FEATURES, y, TRAIN)
    np.testing.assert_array_equal(np.isnan(outputs), np.broadcast_to([False, True, True], (40, 3)))


def test_a_class_that_no_training_row_has_gets_probability_0() -> None:
    header = build_graphset(2, target="multiclass").header
    y = np.where(FEATURES[:, :1] > 0, 2, 0).astype(np.int32)
    outputs = Forest(trees=10).predict(header, FEATURES, y, TRAIN)
    assert (outputs[:, 1] == 0).all()
    np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-6)


def test_values_come_in_the_unit_of_the_target() -> None:
    header = build_graphset(2, target="regression", n_tasks=1).header
    for unit in (1.0, 1e-30, 1e300):
        y = unit * (1000 + 10 * FEATURES[:, :1].astype(np.float64))
        outputs = Forest(trees=30).predict(header, FEATURES, y, TRAIN)
        assert np.abs(outputs / unit - y / unit)[TRAIN].mean() < 3


def test_rows_without_weight_teach_nothing() -> None:
    y = (FEATURES[:, :1] > 0).astype(np.float32)
    header, weights = build_graphset(2, n_tasks=1).header, np.ones(40, np.float32)
    weights[:10] = 0
    wrong = y.copy()
    wrong[:10] = 1 - y[:10]
    one, other = (Forest().predict(header, FEATURES, labels, TRAIN, weights) for labels in (y, wrong))
    np.testing.assert_array_equal(one, other)


def test_features_are_counts_of_fragments_then_finite_descriptors() -> None:
    found = molecule_features(["CCCCO", "[Na+].[Cl-]"], FeaturizerOptions()).x
    assert found.shape[0] == 2
    assert found.shape[1] > BITS + 200
    assert np.isfinite(found).all()
    assert found[0, :BITS].max() == 3  # carbons with two neighbours
    salt = molecule_features(["CCCCO.Cl"], FeaturizerOptions(largest_fragment=True)).x
    np.testing.assert_array_equal(salt[0], found[0])


@pytest.mark.slow
@pytest.mark.usefixtures("one_pool")
def test_processes_do_not_change_features() -> None:
    smiles = ["".join(atoms) for atoms in islice(product("CNOS", repeat=5), 300)]
    options = FeaturizerOptions()
    np.testing.assert_array_equal(molecule_features(smiles, options, 1).x, molecule_features(smiles, options, 2).x)


def test_a_smiles_that_cannot_be_read_is_refused_with_its_row() -> None:
    with pytest.raises(InputError, match=r"^row 2: SMILES 'C\('; expected a molecule"):
        molecule_features(["C", "C("], FeaturizerOptions())


@pytest.mark.usefixtures("one_pool", "rows_in_forks")
@pytest.mark.parametrize("count", [1, pytest.param(300, marks=pytest.mark.slow)])
def test_a_molecule_that_takes_too_long_or_crashes_rdkit_costs_its_row(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring of 40,000 atoms overflows RDKit's stack; descriptors of a chain of 400 take seconds."""
    monkeypatch.setattr("gcnbatch.data.guard.SECONDS", 0.5)
    ring, chain = "C1" + "C" * 40_000 + "1", "C" * 400
    smiles = ["CO"] * count + [ring, "CCO", chain]
    found = molecule_features(smiles, FeaturizerOptions(max_nodes=0), processes=2)
    assert [row.index for row in found.lost] == [count, count + 2]
    assert found.lost[1].reason == "RDKit takes more than 0.5 s of processor time"
    assert not found.x[[count, count + 2]].any()
    alone = molecule_features(["CO", "CCO"], FeaturizerOptions()).x
    np.testing.assert_array_equal(found.x[[0, count - 1, count + 1]], alone[[0, 0, 1]])
