"""The trained runs of the tests of `infer`."""

from tests.inference.conftest import chemistry, second, trained

__all__ = ["chemistry", "second", "trained"]
