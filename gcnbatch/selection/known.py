"""Measured molecules: the data set of the run that predicts the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.normal_form import normal_form
from gcnbatch.data.similarity import KnownMolecules
from gcnbatch.data.tables.smi import without_extension
from gcnbatch.errors import InputError
from gcnbatch.selection.acquisition import HIGH
from gcnbatch.selection.goals import Goals
from gcnbatch.training.finished import RunData


@dataclass(frozen=True)
class Molecule:
    """A molecule of the pool: its canonical SMILES, RDKit's molecule, and its fingerprint."""

    name: str
    molecule: Any
    fingerprint: Any


@dataclass(frozen=True)
class Measured:
    """Measured molecules.

    Parameters
    ----------
    names : set of str
        Their canonical SMILES.
    near : KnownMolecules
        Their fingerprints, for similarities.
    options : FeaturizerOptions
        How the run reads molecules.
    best : float
        The best measured value of the objective, oriented so that more is better; NaN of labels.
    high : float
        The value that a fifth of them reaches, NaN of labels; see `acquisition`.
    """

    names: frozenset[str]
    near: KnownMolecules
    options: FeaturizerOptions
    best: float
    high: float

    @classmethod
    def of(cls, goals: Goals) -> Measured:
        """Return the molecules of a run.

        Raises
        ------
        InputError
            When its data set is gone, has changed, or has no SMILES or no value of the objective.
        """
        with RunData.of(goals.objective.run).open() as dataset:
            smiles, y = dataset.smiles(), dataset.measured
            options = FeaturizerOptions.from_header(dataset.header.featurizer)
            path, is_regression = dataset.path, dataset.header.target == "regression"
        if smiles is None:
            raise InputError(str(path), "no SMILES in it", "the molecules of the run", "Train on molecules.")
        best = high = np.nan
        if is_regression:
            values = goals.sign * y[:, goals.objective.column].astype(np.float64)
            values = values[~np.isnan(values)]
            if not len(values):
                got = f"no measured value of {goals.objective.name}"
                raise InputError(str(path), got, "some", "Maximise or minimise another task.")
            best, high = float(values.max()), float(np.quantile(values, HIGH))
        found = [normal_form(text, options, stereo=True) for text in smiles]
        return cls(
            frozenset(one.name for one in found if one is not None),
            KnownMolecules(smiles, options),
            options,
            best,
            high,
        )

    def read(self, smiles: str) -> Molecule | None:
        """Return a molecule; None where RDKit cannot read it."""
        text = without_extension(smiles.strip())
        found = normal_form(text, self.options, stereo=True)
        return None if found is None else Molecule(found.name, found.molecule, self.near.fingerprint(text))
