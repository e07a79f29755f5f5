"""Fuzzing: files are changed at random; each is read, or refused in one line."""

from hypothesis import HealthCheck, settings

# The same cases in every run. `python -m tests.fuzz` draws new ones.
DRAWN = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
