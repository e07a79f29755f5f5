"""The calls of rank 0 on the other ranks: all of them, in order; batches are sent once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.runners.leader import Leader, follow


class Noting:
    """A runner that notes its calls."""

    backend, size, eval_batch_size = "noting", 1, 7

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def noted(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if name == self.fails:
                raise ValueError(name)
            return [(1.0, 2.0)] if name == "take_losses" else {"loss": np.zeros(2)}

        noted.__name__ = name
        return noted


class Line:
    """The communicator of rank 0, whose calls a follower receives later."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_call(self, call: Any) -> None:
        self.sent.append(pickle.dumps(call))

    def receive_call(self) -> Any:
        return pickle.loads(self.sent.pop(0))


def led() -> tuple[Leader, Noting, Any]:
    own, line = Noting(), Line()
    communicator: Any = line
    runner: Any = own
    return Leader(runner, communicator), own, line


def followed(line: Line) -> list[tuple[str, Any]]:
    runner: Any = Noting()
    communicator: Any = line
    follow(runner, communicator)
    return runner.calls


def test_a_follower_repeats_every_call_in_order() -> None:
    leader, own, line = led()
    batches = [np.arange(3), np.arange(2)]
    leader.begin_epoch([MemberEpoch(0, batches, 0.5, first=1)])
    leader.step(0)
    assert leader.take_losses() == [(1.0, 2.0)]
    leader.predict([np.arange(4)])
    leader.load_state(leader.state())
    leader.weights()
    leader.gradients(np.arange(2))
    leader.close()
    names = ["begin_epoch", "step", "take_losses", "predict", "state", "load_state", "weights", "gradients", "close"]
    assert [name for name, _ in own.calls] == names
    calls = followed(line)
    assert [name for name, _ in calls] == names
    ((epoch, (one, other), learning_rate, first),) = calls[0][1][0]
    assert (epoch, one.tolist(), other.tolist(), learning_rate, first) == (0, [0, 1, 2], [0, 1], 0.5, 1)


def test_expected_batches_are_sent_once_and_are_the_same_object() -> None:
    """A runner plans what it expects, and knows it again as the same object."""
    leader, own, line = led()
    batches = [np.arange(5_000)]
    leader.expect([batches])
    leader.begin_epoch([MemberEpoch(3, batches, 0.5)])
    assert own.calls[1][1][0][0].batches is own.calls[0][1][0][0] is batches
    assert len(line.sent[1]) < 500 < len(line.sent[0])
    leader.begin_epoch([MemberEpoch(4, batches, 0.5)])  # not expected again
    assert len(line.sent[2]) > 500
    leader.close()
    (_, expected), (_, begun), (_, again), _ = followed(line)
    (epoch,), (later,) = begun[0], again[0]
    assert (epoch.epoch, later.epoch) == (3, 4)
    assert epoch.batches is expected[0][0]
    assert later.batches is not epoch.batches
    np.testing.assert_array_equal(later.batches[0], batches[0])


def test_an_idle_member_has_no_epoch_on_any_rank() -> None:
    leader, _, line = led()
    leader.expect([[np.arange(3)]])
    leader.begin_epoch([None])
    leader.close()
    assert followed(line)[1] == ("begin_epoch", ([None],))


def test_after_an_error_the_followers_receive_nothing() -> None:
    """They wait in an exchange of the call that failed, not for a call."""
    leader, own, line = led()
    own.fails = "step"
    with pytest.raises(ValueError, match="step"):
        leader.step(0)
    leader.close()
    assert len(line.sent) == 1
    assert own.calls[-1][0] == "close"
