"""Predictions of trained runs for new data: ``gcnbatch infer``."""

WORKER_MODULES = ("gcnbatch.inference.molecules", "gcnbatch.inference.tabulation")  # that processes import
