"""Calibration of probabilities: maps fitted to validation rows.

- temperature: ``sigmoid(scale * logit(p) + shift)`` (Platt, 1999); for classes ``softmax(scale * log p)`` (Guo et al.,
  ICML 2017).
- isotonic: the non-decreasing step function of least squared error (Zadrozny and Elkan, KDD 2002), with values kept off
  0 and 1 by 1 / (n + 2).

- identity: what is calibrated already stays as it is.

Of a binary task, cross-validation on the validation rows chooses the kind with the smallest Brier score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Union

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gcnbatch.text import counted

Float64 = NDArray[np.float64]

LEAST_ROWS, LEAST_OF_A_CLASS = 50, 10
FOLDS = 5
_ITERATIONS, _STEP = 50, 2.0  # of Newton's method; no step changes a coefficient by more
_RIDGE = 1e-3  # keeps scale and shift finite where classes separate
_EDGE = 1e-7  # of a probability, before its logit
_LOG_SCALE = 4.0  # largest logarithm of the scale of classes
Coefficient = Annotated[float, Field(ge=-(1 + _STEP * _ITERATIONS), le=1 + _STEP * _ITERATIONS)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Temperature(BaseModel):
    """Scale and shift of logits."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: Literal["temperature"] = "temperature"
    scale: Coefficient
    shift: Coefficient = 0.0

    def apply(self, p: NDArray[np.floating]) -> Float64:
        """Return calibrated probabilities: of a binary task (R,), or of classes (R, C)."""
        if p.ndim == 2:
            return _softmax(self.scale * np.log(np.clip(p.astype(np.float64), _EDGE, 1.0)))
        return _sigmoid(self.scale * logit(p) + self.shift)


class Isotonic(BaseModel):
    """A non-decreasing function, linear between its points."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: Literal["isotonic"] = "isotonic"
    x: list[Probability] = Field(min_length=1)
    y: list[Probability] = Field(min_length=1)

    @model_validator(mode="after")
    def _increases(self) -> Isotonic:
        if len(self.x) != len(self.y) or any(np.diff(self.x) < 0) or any(np.diff(self.y) < 0):
            raise ValueError("x and y must have one length and never decrease")
        return self

    def apply(self, p: NDArray[np.floating]) -> Float64:
        """Return calibrated probabilities (R,)."""
        return np.asarray(np.interp(p.astype(np.float64), self.x, self.y))


class Identity(BaseModel):
    """The map that changes nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: Literal["identity"] = "identity"

    def apply(self, p: NDArray[np.floating]) -> Float64:
        """Return the probabilities."""
        return p.astype(np.float64)


AnyCalibrator = Union[Identity, Temperature, Isotonic]
Calibrator = Annotated[AnyCalibrator, Field(discriminator="kind")]


def fit_binary(y: NDArray[np.bool_], p: NDArray[np.floating], draws: np.random.Generator) -> AnyCalibrator:
    """Return the best map of probabilities `p (n,)` of a task with labels `y (n,)`.

    `draws` divides the rows into folds; all kinds see the same ones. The first of equals is taken.
    """
    fold = np.empty(len(y), dtype=np.int64)
    for label in (False, True):
        rows = draws.permutation(np.flatnonzero(y == label))
        fold[rows] = np.arange(len(rows)) % FOLDS
    fits: tuple[Callable[..., AnyCalibrator], ...] = (lambda y, p: Identity(), fit_temperature, fit_isotonic)
    scores = []
    for fit in fits:
        errors = [
            np.sum((fit(y[fold != number], p[fold != number]).apply(p[fold == number]) - y[fold == number]) ** 2)
            for number in range(FOLDS)
        ]
        scores.append(sum(errors))
    return fits[int(np.argmin(scores))](y, p)


def fit_temperature(y: NDArray[np.bool_], p: NDArray[np.floating]) -> Temperature:
    """Return scale and shift of least log loss, by Newton's method from the identity.

    Labels are smoothed as Platt's are: so few rows cannot show a probability of 0 or 1, also where classes separate.
    """
    z = logit(p)
    positives = np.count_nonzero(y)
    smoothed = np.where(y, (positives + 1) / (positives + 2), 1 / (len(y) - positives + 2))
    weights = np.array([1.0, 0.0])
    columns = np.stack([z, np.ones_like(z)])
    for _ in range(_ITERATIONS):
        q = _sigmoid(weights @ columns)
        gradient = columns @ (q - smoothed) + _RIDGE * (weights - [1.0, 0.0])
        hessian = (columns * (q * (1 - q))) @ columns.T + _RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step * min(1.0, _STEP / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-8:
            break
    return Temperature(scale=float(weights[0]), shift=float(weights[1]))


def fit_isotonic(y: NDArray[np.bool_], p: NDArray[np.floating]) -> Isotonic:
    """Return the isotonic map of least squared error."""
    from scipy.optimize import isotonic_regression

    x, place, count = np.unique(p.astype(np.float64), return_inverse=True, return_counts=True)
    mean = np.bincount(place, weights=y.astype(np.float64)) / count
    fitted = isotonic_regression(mean, weights=count)
    ends = np.unique(np.concatenate([fitted.blocks[:-1], fitted.blocks[1:] - 1]))  # first and last point of each step
    edge = 1 / (len(y) + 2)
    return Isotonic(x=x[ends].tolist(), y=np.clip(fitted.x[ends], edge, 1 - edge).tolist())


def fit_classes(y: NDArray[np.integer], p: NDArray[np.floating]) -> Temperature:
    """Return the scale of least log loss for probabilities of classes, p (n, C), with labels y (n,)."""
    from scipy.optimize import minimize_scalar

    z = np.log(np.clip(p.astype(np.float64), _EDGE, 1.0))
    rows = np.arange(len(y))

    def loss(log_scale: float) -> float:
        return -float(np.mean(np.log(np.clip(_softmax(np.exp(log_scale) * z)[rows, y], _EDGE, 1.0))))

    found = minimize_scalar(loss, bounds=(-_LOG_SCALE, _LOG_SCALE), method="bounded")
    return Temperature(scale=float(np.exp(found.x)))


def too_few(y: NDArray[np.bool_] | NDArray[np.integer]) -> str:
    """Return why labels (n,) are too few to calibrate on, else ""."""
    if len(y) < LEAST_ROWS:
        return f"{counted(len(y), 'validation row')}; {LEAST_ROWS} are needed"
    if y.dtype == np.bool_ and (least := int(min(y.sum(), (~y).sum()))) < LEAST_OF_A_CLASS:
        return f"{counted(least, 'validation row')} of the rarer class; {LEAST_OF_A_CLASS} are needed"
    return ""


def logit(p: NDArray[np.floating]) -> Float64:
    """Return log(p / (1 - p)) with p kept off 0 and 1."""
    clipped = np.clip(p.astype(np.float64), _EDGE, 1 - _EDGE)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _sigmoid(z: Float64) -> Float64:
    from scipy.special import expit

    return np.asarray(expit(z))


def _softmax(z: Float64) -> Float64:
    from scipy.special import softmax

    return np.asarray(softmax(z, axis=1))
