"""The baseline beside every model of molecules: a random forest on fingerprints and descriptors."""

from gcnbatch.baselines.runs import add_to_run, check_data, start

__all__ = ["add_to_run", "check_data", "start"]
