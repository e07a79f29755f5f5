"""Made-up molecules whose targets depend on their fragments and descriptors."""

from __future__ import annotations

import numpy as np

from gcnbatch.mixture import Molecules, Problem


def molecules(rows: int = 120, seed: int = 0, fragments: int = 40, descriptors: int = 6) -> Molecules:
    rng = np.random.default_rng(seed)
    counts = tuple(rng.poisson(0.4, (rows, fragments)) for _ in range(2))
    values = rng.normal(size=(rows, descriptors))
    values[rng.random(values.shape) < 0.05] = np.nan
    return Molecules.of(counts, values)


def values(of: Molecules, tasks: int = 1, missing: float = 0.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signal = of.counts[0].toarray().astype(float) @ rng.normal(size=(of.counts[0].shape[1], tasks))
    y = signal + np.nan_to_num(of.descriptors[:, :1]) + 0.1 * rng.normal(size=signal.shape)
    y[rng.random(y.shape) < missing] = np.nan
    return y


def rmse(y: np.ndarray, outputs: np.ndarray) -> float | None:
    known = ~np.isnan(y)
    return float(np.sqrt(np.mean((y - outputs)[known] ** 2))) if known.any() else None


def brier(y: np.ndarray, outputs: np.ndarray) -> float | None:
    if y.dtype.kind == "i":
        known = y[:, 0] >= 0
        y = (y == np.arange(outputs.shape[1]))[known].astype(float)
        outputs = outputs[known]
    return rmse(y, outputs)


def problem(of: Molecules, target: str = "regression", tasks: int = 1, missing: float = 0.0, **more: object) -> Problem:
    y, groups = values(of, tasks, missing), np.arange(len(of))
    if target == "regression":
        return Problem.of(target, y, groups, rmse, **more)
    if target == "binary":
        return Problem.of(target, np.where(np.isnan(y), np.nan, y > np.nanmedian(y, axis=0)), groups, brier, **more)
    classes = np.digitize(y[:, :1], np.nanquantile(y, [0.3, 0.7])).astype(np.int32)
    classes[np.isnan(y[:, :1])] = -1
    return Problem.of("multiclass", classes, groups, brier, classes=3, **more)
