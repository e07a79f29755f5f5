"""Comparison of finished runs on the same data and splits: ``gcnbatch compare-runs``."""
