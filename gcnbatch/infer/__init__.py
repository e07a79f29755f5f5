"""Predictions of trained runs for new data: ``gcnbatch infer``."""

from gcnbatch.infer.predict import Summary, infer

__all__ = ["Summary", "infer"]
