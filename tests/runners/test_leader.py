"""The calls of rank 0 on the other ranks: all of them, in order; batches are sent once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gcnbatch.runners.leader import Leader, follow


class Noting:
    """A runner that notes its calls."""

    backend, eval_batch_size = "noting", 7

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def noted(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if name == self.fails:
                raise ValueError(name)
            return (1.0, 2.0) if name == "take_loss" else {"loss": np.zeros(2)}

        return noted


class Line:
    """The door of rank 0, whose announcements a follower hears later."""

    def __init__(self) -> None:
        self.announced: list[bytes] = []

    def announce(self, call: Any) -> None:
        self.announced.append(pickle.dumps(call))

    def hear(self) -> Any:
        return pickle.loads(self.announced.pop(0))


def led() -> tuple[Leader, Noting, Any]:
    own, line = Noting(), Line()
    door: Any = line
    runner: Any = own
    return Leader(runner, door), own, line


def followed(line: Line) -> list[tuple[str, Any]]:
    runner: Any = Noting()
    door: Any = line
    follow(runner, door)
    return runner.calls


def test_a_follower_repeats_every_call_in_order() -> None:
    leader, own, line = led()
    batches = [np.arange(3), np.arange(2)]
    leader.begin_epoch(0, batches, 0.5)
    leader.step(0)
    assert leader.take_loss() == (1.0, 2.0)
    leader.predict(np.arange(4))
    leader.load_state(leader.state())
    leader.gradients(np.arange(2))
    leader.close()
    names = ["begin_epoch", "step", "take_loss", "predict", "state", "load_state", "gradients", "close"]
    assert [name for name, _ in own.calls] == names
    calls = followed(line)
    assert [name for name, _ in calls] == names
    epoch, (one, other), learning_rate = calls[0][1]
    assert (epoch, one.tolist(), other.tolist(), learning_rate) == (0, [0, 1, 2], [0, 1], 0.5)


def test_expected_batches_are_sent_once_and_are_the_same_object() -> None:
    """A runner plans what it expects, and knows it again as the same object."""
    leader, own, line = led()
    batches = [np.arange(5_000)]
    leader.expect(batches)
    leader.begin_epoch(3, batches, 0.5)
    assert own.calls[1][1][1] is own.calls[0][1][0] is batches
    assert len(line.announced[1]) < 500 < len(line.announced[0])
    leader.begin_epoch(4, batches, 0.5)  # not expected again
    assert len(line.announced[2]) > 500
    leader.close()
    expected, begun, again, _ = followed(line)
    assert begun[1][1] is expected[1][0]
    assert again[1][1] is not begun[1][1]
    np.testing.assert_array_equal(again[1][1][0], batches[0])


def test_after_an_error_the_followers_are_told_nothing() -> None:
    """They wait in an exchange of the call that failed, not for a call."""
    leader, own, line = led()
    own.fails = "step"
    with pytest.raises(ValueError, match="step"):
        leader.step(0)
    leader.close()
    assert len(line.announced) == 1
    assert own.calls[-1][0] == "close"
