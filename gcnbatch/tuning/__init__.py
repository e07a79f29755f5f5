"""Search for a configuration: ``gcnbatch tune``."""
