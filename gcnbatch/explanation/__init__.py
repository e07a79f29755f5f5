"""Explanations of predictions: what each atom and bond adds to a model's outputs. ``gcnbatch explain``."""

from gcnbatch.explanation.attributions import Attributions
from gcnbatch.explanation.integrated import Explainer, attribute

__all__ = ["Attributions", "Explainer", "attribute"]
