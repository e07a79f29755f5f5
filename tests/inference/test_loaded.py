"""A run in memory predicts molecules as `Run.predict`, whatever it has predicted before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gcnbatch
from gcnbatch.backends import registry
from gcnbatch.inference.loaded import LoadedRun, Machine
from gcnbatch.runners.choice import FEW
from tests.entries import CohortEntry, NamedBackend, register
from tests.inference.runs import SMILES


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = Machine.open("cpu", processes=2)
    with found.workers:
        yield found


def test_predictions_do_not_depend_on_those_before(chemistry: tuple[Path, Path, Path], machine: Machine) -> None:
    run, smiles = LoadedRun(chemistry[0], machine), [*SMILES, "no molecule", "C" * 20]
    for first in (0, 3, 0, 11):
        for rows in (slice(first, first + 1), slice(first, None), slice(0, 12)):
            found, alone = run.predict(smiles[rows]), LoadedRun(chemistry[0], machine).predict(smiles[rows])
            assert np.array_equal(found.outputs, alone.outputs, equal_nan=True)
            assert found.errors is not None
            assert alone.errors is not None
            assert found.errors.tolist() == alone.errors.tolist()


@pytest.mark.numerical
def test_predictions_are_those_of_the_run(chemistry: tuple[Path, Path, Path], machine: Machine) -> None:
    found = LoadedRun(chemistry[0], machine).predict(smiles := [*SMILES, "no molecule", "C" * 20])
    whole = gcnbatch.load(chemistry[0]).predict(smiles, backend="cpu", processes=1)
    np.testing.assert_allclose(found.outputs, whole.outputs, rtol=1e-5)  # other graphs may be beside one in a product
    assert found.errors is not None
    assert whole.errors is not None
    assert found.errors.tolist() == whole.errors.tolist()


def test_auto_predicts_few_molecules_on_the_host_and_many_on_a_gpu(
    chemistry: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = CohortEntry("gpu", on_gpu=True, made=NamedBackend("gpu"))
    register(monkeypatch, gpu, *registry.BACKENDS[-1:])
    smiles = SMILES * (1 + FEW // len(SMILES))
    whole = gcnbatch.load(chemistry[0]).predict(smiles, backend="cpu", processes=1)
    with (found := Machine.open("auto", processes=1)).workers:
        run = LoadedRun(chemistry[0], found)
        for count in (1, FEW - 1, FEW, 1):
            gpu.sizes.clear()
            np.testing.assert_allclose(run.predict(smiles[:count]).outputs, whole.outputs[:count], rtol=1e-5)
            assert len(gpu.sizes) == (count >= FEW)


def test_the_nearest_training_molecules_come_with_ids_and_targets(
    chemistry: tuple[Path, Path, Path], machine: Machine
) -> None:
    domain = LoadedRun(chemistry[0], machine).predictor.domain
    assert domain is not None
    first, second = domain.neighbours("CCO", 2)
    assert first.similarity >= second.similarity
    rows = [line.split(",") for line in chemistry[1].read_text().splitlines()]
    (row,) = [row for row in rows if row[0] == first.id]
    assert first.smiles == row[1]
    assert first.targets.tolist() == [float(row[2]), float(row[3])]
