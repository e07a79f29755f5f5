"""One run on several ranks: rank 0 repeats each call of the training loop on the others.

`Leader` is the runner that the training loop sees. The runners of all ranks get the same calls, so those that exchange
data meet, and none queues work that another does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch, Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.ranks.communicator import HostCommunicator

Result = TypeVar("Result")


class Leader:
    """`gcnbatch.backends.base.Runner` of rank 0; the other ranks `follow` its calls."""

    def __init__(self, runner: Runner, ranks: HostCommunicator) -> None:
        self.backend, self.size = runner.backend, runner.size
        self._runner, self._ranks = runner, ranks
        self._in_step = True  # with the followers
        self._expected: Sequence[Sequence[Int64] | None] = [None] * self.size  # batches that the followers have

    @property
    def eval_batch_size(self) -> int:
        return self._runner.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._runner.about()

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        given: Sequence[Any] = epochs
        sent = [
            one._replace(batches=None) if one and one.batches is expected else one
            for one, expected in zip(given, self._expected, strict=True)
        ]
        self._expected = [None] * self.size
        self._on_all(self._runner.begin_epoch, epochs, sent=(sent,))

    def expect(self, batches: Sequence[Sequence[Int64] | None]) -> None:
        self._on_all(self._runner.expect, batches)
        self._expected = batches

    def step(self, index: int) -> None:
        self._on_all(self._runner.step, index)

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        return self._on_all(self._runner.gradients, graphs)

    def take_losses(self) -> list[tuple[float, float]]:
        return self._on_all(self._runner.take_losses)

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        return self._on_all(self._runner.predict, graphs, rows)

    def state(self, member: int = 0) -> dict[str, NDArray[Any]]:
        return self._on_all(self._runner.state, member)

    def weights(self, member: int = 0) -> dict[str, NDArray[Any]]:
        return self._on_all(self._runner.weights, member)

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        self._on_all(self._runner.load_state, state, member)

    def close(self) -> None:
        if self._in_step:
            self._ranks.send_call(("close", ()))
        self._runner.close()

    def _on_all(self, method: Callable[..., Result], *arguments: Any, sent: Sequence[Any] | None = None) -> Result:
        """Call a method of the runner on all ranks; the others receive the arguments `sent`, if given."""
        self._in_step = False  # after an error, the followers wait for an exchange, not for a call
        self._ranks.send_call((method.__name__, arguments if sent is None else sent))
        result = method(*arguments)
        self._in_step = True
        return result


def follow(runner: Runner, ranks: HostCommunicator) -> None:
    """Repeat the calls of the leader until it closes."""
    expected: Any = None
    while True:
        method, arguments = ranks.receive_call()
        if method == "close":
            runner.close()
            return
        if method == "expect":
            (expected,) = arguments
        if method == "begin_epoch":
            (sent,) = arguments
            arguments = ([_with_batches(one, number, expected) for number, one in enumerate(sent)],)
        getattr(runner, method)(*arguments)


def _with_batches(one: MemberEpoch | None, number: int, expected: Any) -> MemberEpoch | None:
    """Return a member's epoch with its batches: those of `expected` if they were not sent again."""
    return one._replace(batches=expected[number]) if one and one.batches is None else one
