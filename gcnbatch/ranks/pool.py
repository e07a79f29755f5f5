"""Calls on all ranks at once: `RankWorkers`, a `concurrent.futures.Executor` like `gcnbatch.workers.pool.Workers`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from gcnbatch.ranks.process import LeaderProcess
from gcnbatch.ranks.world import World
from gcnbatch.workers.pool import WorkerDied


class RankWorkers(Executor):
    """A worker per rank. The first idle one takes a call; after a call has failed, later ones fail with it.

    Parameters
    ----------
    world : World
    own : LeaderProcess
    """

    def __init__(self, world: World, own: LeaderProcess) -> None:
        self._world, self._own = world, own
        self._threads = ThreadPoolExecutor(world.size)
        self._failed: BaseException | None = None
        self._idle: SimpleQueue[int] = SimpleQueue()
        for rank in (*range(1, world.size), 0):  # the process of rank 0 may have yet to start
            self._idle.put(rank)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call of `fn`, which must be importable by name."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        rank = self._idle.get()
        try:
            if self._failed:  # a rank that a signal has stopped must not begin with the next call
                raise self._failed
            if rank == 0:
                return self._own.submit(function, *args, **kwargs).result()
            return self._world.call(rank, function, *args, **kwargs)
        except WorkerDied:  # another process has taken its place
            raise
        except BaseException as error:
            self._failed = self._failed or error
            raise
        finally:
            self._idle.put(rank)

    def terminate(self) -> None:
        """Ask all calls for an early end; `shutdown` must follow."""
        self._failed = self._failed or CancelledError()
        self._own.terminate()
        self._world.ask_stop()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Wait for the calls that have started; cancel the others. The ranks stay for further calls."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
