"""One run on several ranks: rank 0 repeats each call of the training loop on the others.

`Leader` is the runner that the training loop sees. The runners of all ranks get the same calls, so those that exchange
data meet, and none queues work that another does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.ranks.communicator import HostCommunicator


class Leader:
    """`gcnbatch.backends.base.Runner` of rank 0; the other ranks `follow` its calls."""

    def __init__(self, runner: Runner, ranks: HostCommunicator) -> None:
        self.backend = runner.backend
        self._runner, self._ranks = runner, ranks
        self._in_step = True  # with the followers
        self._expected: Sequence[Int64] | None = None  # batches that the followers have

    @property
    def eval_batch_size(self) -> int:
        return self._runner.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._runner.about()

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        sent = None if batches is self._expected else batches
        self._expected = None
        self._announce("begin_epoch", epoch, sent, learning_rate)
        self._run("begin_epoch", epoch, batches, learning_rate)

    def expect(self, batches: Sequence[Int64]) -> None:
        self._on_all("expect", batches)
        self._expected = batches

    def step(self, index: int) -> None:
        self._on_all("step", index)

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        found: tuple[float, dict[str, NDArray[Any]]] = self._on_all("gradients", graphs)
        return found

    def take_loss(self) -> tuple[float, float]:
        loss, weight = self._on_all("take_loss")
        return loss, weight

    def predict(self, graphs: Int64, rows: Int64 | None = None) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._on_all("predict", graphs, rows)
        return logits

    def state(self) -> dict[str, NDArray[Any]]:
        state: dict[str, NDArray[Any]] = self._on_all("state")
        return state

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._on_all("load_state", state)

    def close(self) -> None:
        if self._in_step:
            self._ranks.announce(("close", ()))
        self._runner.close()

    def _on_all(self, method: str, *arguments: Any) -> Any:
        self._announce(method, *arguments)
        return self._run(method, *arguments)

    def _announce(self, method: str, *arguments: Any) -> None:
        self._in_step = False  # after an error, the followers wait for an exchange, not for a call
        self._ranks.announce((method, arguments))

    def _run(self, method: str, *arguments: Any) -> Any:
        result = getattr(self._runner, method)(*arguments)
        self._in_step = True
        return result


def follow(runner: Runner, ranks: HostCommunicator) -> None:
    """Repeat the calls of the leader until it closes."""
    expected: Any = None
    while True:
        method, arguments = ranks.hear()
        if method == "close":
            runner.close()
            return
        if method == "expect":
            (expected,) = arguments
        if method == "begin_epoch" and arguments[1] is None:
            epoch, _, learning_rate = arguments
            arguments = epoch, expected, learning_rate
        getattr(runner, method)(*arguments)
