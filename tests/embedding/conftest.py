"""The trained runs of the tests of `infer`."""

from tests.inference.conftest import chemistry, described, second, trained

__all__ = ["chemistry", "described", "second", "trained"]
