"""The random forest: one per task, fitted to the labelled training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.machine import cores
from gcnbatch.training.targets import Scaling, left_out

MODEL = "random forest"


@dataclass(frozen=True)
class Forest:
    """Options of the forest; all others are scikit-learn's defaults.

    Parameters
    ----------
    trees : int
    seed : int
        Of bootstrap samples and of the features that each node tries.
    """

    trees: int = 100
    seed: int = 0

    def predict(
        self,
        header: Header,
        features: NDArray[np.float32],
        y: NDArray[Any],
        train: Int64,
        weights: NDArray[np.float32] | None = None,
    ) -> NDArray[np.floating]:
        """Fit to the rows `train` and return outputs for all rows: probabilities (R, K), (R, C), or values (R, K).

        Values are fitted in standard scores. Outputs are NaN in tasks that the training rows cannot teach; see
        `gcnbatch.training.targets`.

        Parameters
        ----------
        features : float32, (R, F)
        y : (R, K) float with NaN where missing, or (R, 1) int32 with -1 where missing
        train : int64
        weights : float32, (R,), or None
            Of the rows; None: 1.
        """
        absent = left_out(header, y[train])
        if header.target == "regression":
            scaling = Scaling.of(y[train])
            y = scaling.apply(y)
        outputs = np.zeros((len(y), header.n_outputs), dtype=np.float32)
        outputs[:, np.broadcast_to(absent, header.n_outputs)] = np.nan
        for task in np.flatnonzero(~absent).tolist():
            labels = y[train, task]
            rows = train[labels >= 0 if header.target == "multiclass" else ~np.isnan(labels)]
            forest = self._new(header, task).fit(
                features[rows], y[rows, task], None if weights is None else weights[rows]
            )
            forest.n_jobs = 1  # threads add up the trees in any order, which changes the last bits
            if header.target == "regression":
                outputs[:, task] = forest.predict(features)
            elif header.target == "multiclass":
                outputs[:, forest.classes_.astype(np.int64)] = forest.predict_proba(features)
            else:
                outputs[:, task] = forest.predict_proba(features) @ forest.classes_
        return scaling.undo(outputs) if header.target == "regression" else outputs

    def _new(self, header: Header, task: int) -> Any:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        seed = int(philox.bits(self.seed, "forest", task, 0, 1)[0])
        common: dict[str, Any] = {"random_state": seed, "n_jobs": cores()}
        if header.target == "regression":
            return RandomForestRegressor(self.trees, max_features=1 / 3, **common)
        return RandomForestClassifier(self.trees, **common)
