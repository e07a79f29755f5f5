"""A device that runs out of memory at a chosen allocation, of device memory or of page-locked host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gcnbatch.backends.cuda.runtime import context
from gcnbatch.backends.cuda.runtime.device import Device


class Allocations:
    """Counts allocations and lets one fail.

    Parameters
    ----------
    driver : module
        PyCUDA's.
    fail_at : int
        Number of the allocation that fails, from 0.
    """

    def __init__(self, driver: Any, fail_at: int) -> None:
        self._driver, self._left, self.failed = driver, fail_at, False

    def count(self) -> None:
        """Count an allocation; raise out of memory if it is the one."""
        self._left -= 1
        if self._left == -1:
            self.failed = True
            raise self._driver.MemoryError("cuMemAlloc failed: out of memory")


class _Allocator:
    """PyCUDA's pool, with the allocations counted."""

    def __init__(self, pool: Any, allocations: Allocations) -> None:
        self._pool, self._allocations = pool, allocations

    def allocate(self, nbytes: int) -> Any:
        self._allocations.count()
        return self._pool.allocate(nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


@contextmanager
def exhausted(device: Device, fail_at: int) -> Iterator[Allocations]:
    """Let one allocation in the block fail; every array is an allocation of its own, none shares a slab."""
    allocations = Allocations(device.driver, fail_at)
    lock = device.driver.pagelocked_empty

    def pagelocked_empty(*about: Any, **more: Any) -> Any:
        allocations.count()
        return lock(*about, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "SMALL_BYTES", 0)
        patch.setattr(device, "allocator", _Allocator(device.allocator, allocations))
        patch.setattr(device.driver, "pagelocked_empty", pagelocked_empty)
        yield allocations
