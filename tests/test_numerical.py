"""The mark ``numerical``: which tests get it, which must say what bounds them, and which cases run."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from pathlib import Path

import numpy as np
import pytest

from tests import numerical
from tests.training.runs import assert_same_run, history


class Comparing:
    """A helper that compares in a method."""

    def check(self, found: float, wanted: float) -> None:
        np.testing.assert_allclose(found, wanted)


def helped(found: float) -> None:
    Comparing().check(found, 1.0)


def through_a_method_of_a_helper() -> None:
    helped(1.0)


def in_a_nested_function() -> None:
    def close(value: float) -> bool:
        return isclose(value, 1.0)

    assert all(map(close, [1.0]))


def by_hand() -> None:
    assert abs(1.0 - 1.0) <= 1e-9


def without_numbers() -> None:
    assert "a" == "a"


def a_repetition(tmp_path: Path) -> None:
    assert_same_run(tmp_path / "one", tmp_path / "other")


def losses_of_two_runs(tmp_path: Path) -> None:
    assert history(tmp_path / "one")[-1]["train_loss"] == pytest.approx(1.0)


@pytest.fixture
def compared() -> float:
    np.testing.assert_array_equal([1], [1])
    return 1.0


def in_a_fixture(compared: float) -> None:
    assert compared


@pytest.fixture
def collect(request: pytest.FixtureRequest) -> Callable[..., pytest.Function]:
    """Return a function that collects a function of this module as a test."""

    def collected(function: Callable[..., None], *marks: pytest.MarkDecorator) -> pytest.Function:
        item = pytest.Function.from_parent(request.node.parent, name=function.__name__, callobj=function)
        for mark in marks:
            item.add_marker(mark)
        numerical.mark(item)
        return item

    return collected


@pytest.mark.parametrize(
    ("function", "marked"),
    [
        (through_a_method_of_a_helper, True),
        (in_a_nested_function, True),
        (by_hand, True),
        (in_a_fixture, True),
        (without_numbers, False),
        (a_repetition, False),
    ],
)
def test_a_test_that_compares_numbers_is_marked(collect, function: Callable[..., None], marked: bool) -> None:
    item = collect(function)
    assert bool(item.get_closest_marker("numerical")) == marked
    assert numerical.why_unbounded(item) == ""


@pytest.mark.numerical(bound="the function that compares does not run")
def test_what_steps_leave_is_compared_with_a_stated_bound_alone(collect) -> None:
    said = numerical.why_unbounded(collect(losses_of_two_runs))
    assert said.startswith(
        "This test compares with a tolerance (approx) and reads what training steps leave (history)."
    )
    assert '@pytest.mark.numerical(bound="one step")' in said
    assert numerical.why_unbounded(collect(losses_of_two_runs, pytest.mark.numerical(bound="one step"))) == ""
    assert numerical.why_unbounded(collect(losses_of_two_runs, pytest.mark.numerical)) == said


def test_every_test_function_keeps_some_of_its_cases(request: pytest.FixtureRequest, collect) -> None:
    """So many, as evenly spread as they can be; another word chooses others."""
    names = [f"{name}[{case}]" for name in ("a", "b") for case in range(10)]
    items = [pytest.Function.from_parent(request.node.parent, name=name, callobj=by_hand) for name in ["c", *names]]
    kept = [item.name for item in numerical.few(items, 3, "Haswell")]
    assert kept == [item.name for item in items if item.name in kept]
    assert [sum(name.startswith(start) for name in kept) for start in "abc"] == [3, 3, 1]
    cases = sorted(int(name[2:-1]) for name in kept if name.startswith("a"))
    assert set(np.diff([*cases, cases[0] + 10])) <= {3, 4}
    assert len({tuple(item.name for item in numerical.few(items, 3, word)) for word in "abcdefgh"}) > 1
    assert numerical.few(items, 10, "Haswell") == items
