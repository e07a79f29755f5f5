"""Which tests compare numbers of two ways to compute, and which of them may let roundings grow.

Processors round differently: BLAS and NumPy sum in another order on each. So `.ci/run` repeats the tests marked
``numerical`` as several processors. `conftest.py` marks a test when it is collected, so a new one cannot lack the mark:
if the test, a fixture of it, or a function or class of `tests` that one of these names, names one of `COMPARISONS`. A
test that compares two ways to compute otherwise, such as bytes by ``==``, takes ``@pytest.mark.numerical`` itself.

Over several steps, ReLU and Adam amplify one rounding to any size. So a test that names what steps leave (`OF_STEPS`)
and a comparison with a tolerance (`TOLERANT`) must say why its bound holds on every processor: in the mark's `bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any
from zlib import crc32

import pytest

TOLERANT = frozenset({"abs", "allclose", "approx", "assert_allclose", "isclose", "linalg"})
# Those at the end compare within bounds that are derived: of operations, of whole models, of sums.
COMPARISONS = TOLERANT | {
    "abs",
    "assert_array_equal",
    "assert_array_less",
    "assert_parity",
    "Parity",
    "bounds",
    "gamma",
}
REPETITIONS = frozenset({"assert_same_run", "assert_same_weights"})  # of one way to compute, such as a resumed run
OF_STEPS = frozenset({"arrays", "begin_epoch", "group", "history", "state", "take_losses"})


def names(item: pytest.Item) -> frozenset[str]:
    """Return all names in the code of a test, of its fixtures, and of what these call in `tests`."""
    assert isinstance(item, pytest.Function)
    fixtures = (fixture.func for each in item._fixtureinfo.name2fixturedefs.values() for fixture in each)
    return _reached(item.function, *fixtures)


@cache
def _reached(*functions: Any) -> frozenset[str]:
    found: set[str] = set()
    waiting, seen = list(functions), set()
    while waiting:
        function = waiting.pop()
        if function not in seen:
            seen.add(function)
            own, called = _named(function)
            found |= own
            waiting += called
    return frozenset(found)


@cache
def _named(function: Any) -> tuple[frozenset[str], tuple[FunctionType, ...]]:
    """Return the names in a function of `tests`, and the functions and methods of `tests` that they stand for."""
    if not _is_ours(function):
        return frozenset(), ()
    own = frozenset(_names_in(function.__code__))
    values = [function.__globals__[name] for name in (own - REPETITIONS) & function.__globals__.keys()]
    classes = [kind for value in values if isinstance(value, type) for kind in value.__mro__ if _is_ours(kind)]
    values += [method for kind in classes for method in vars(kind).values()]
    plain = (getattr(value, "__func__", getattr(value, "fget", value)) for value in values)
    return own, tuple(value for value in plain if isinstance(value, FunctionType))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("tests.")


def mark(item: pytest.Item) -> None:
    """Give a test the mark ``numerical`` if it compares numbers."""
    if not item.get_closest_marker("numerical") and names(item) & COMPARISONS:
        item.add_marker("numerical")


def why_unbounded(item: pytest.Item) -> str:
    """Return why a test may not run: it compares what steps leave, and does not say why its bound holds."""
    marker = item.get_closest_marker("numerical")
    if marker is None or marker.kwargs.get("bound"):
        return ""
    found = names(item)
    tolerant, of_steps = (", ".join(sorted(found & some)) for some in (TOLERANT, OF_STEPS))
    if not tolerant or not of_steps:
        return ""
    return (
        f"This test compares with a tolerance ({tolerant}) and reads what training steps leave ({of_steps}). Over "
        "several steps two roundings part, on one processor more than on another. Let each step begin with the same "
        "state and compare it by gcnbatch.lab.backend_comparison.parity.Parity, or compare bits. If no number that is "
        "compared here went through more than one step, say what bounds it, such as\n"
        '    @pytest.mark.numerical(bound="one step")\n'
        "See CONTRIBUTING.md."
    )


def few(items: Sequence[pytest.Item], cases: int, word: str) -> list[pytest.Item]:
    """Return at most so many cases of each test function on each backend, evenly spread; `word` chooses the first."""
    kinds: dict[str, list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        backends = [str(params[name]) for name in params if name.endswith("backend")]
        kinds.setdefault(" ".join((item.nodeid.partition("[")[0], *backends)), []).append(item)
    kept = set()
    for kind, each in kinds.items():
        first, count = crc32(f"{word} {kind}".encode()), min(cases, len(each))
        kept |= {each[(first + number * len(each) // count) % len(each)] for number in range(count)}
    return [item for item in items if item in kept]
