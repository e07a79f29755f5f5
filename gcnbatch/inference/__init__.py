"""Predictions of trained runs for new data: ``gcnbatch infer``."""
