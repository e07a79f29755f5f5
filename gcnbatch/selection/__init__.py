"""Which molecules to measure next: ``gcnbatch select``."""
