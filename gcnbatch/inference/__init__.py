"""Predictions of trained runs for new data: ``gcnbatch infer``."""

from gcnbatch.inference.ensemble import InferenceSummary, infer

__all__ = ["InferenceSummary", "infer"]
