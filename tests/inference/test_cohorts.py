"""Models of one architecture predict in the same launches, with the bits of each alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.inference import ensemble
from tests.builders import build_graphset
from tests.entries import CohortEntry, register
from tests.inference.runs import stored, train_on


@pytest.mark.parametrize(("most", "sizes"), [(2, [2]), (64, [3])])
def test_models_of_one_architecture_predict_together(
    trained: tuple[Path, Path],
    second: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    sizes: list[int],
) -> None:
    """Predict with three alike models and one of another architecture; models that are alone are no cohort."""
    data = stored(tmp_path / "new.h5", build_graphset(9, seed=8))
    alike = [train_on(trained[1], tmp_path / f"run{seed}", seed=seed) for seed in (4, 5)]
    runs = [alike[0], second, trained[0], alike[1]]
    register(monkeypatch, CohortEntry("cpu", most=1))
    single = [ensemble.predict([run], data, backend="cpu").outputs for run in runs]
    entry = CohortEntry("cpu", most=most)
    register(monkeypatch, entry)
    together = ensemble.predict(runs, data, backend="cpu")
    assert [size for size in entry.sizes if size > 1] == sizes
    np.testing.assert_array_equal(together.outputs, np.mean(single, axis=0, dtype=np.float64).astype(np.float32))
