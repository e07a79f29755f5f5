"""An opened device without its kernels: context, stream, memory, copies and errors.

All work runs in order on one stream, except the copies of a streamed data set (`copies`). The host waits for the device
only in `upload`, `download`, `fetch` and `synchronize`, when it reads an `Event`, and before it refills pinned memory.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.copies import Copies, Pinned, aligned
from gcnbatch.backends.cuda.runtime.events import Event
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.errors import DeviceLost, MachineError

SMALL_BYTES, SLAB_BYTES = 1 << 20, 16 << 20
SHARED_UNIT = 2 << 20  # the driver's unit of memory: an array that other processes open shares none with others
FLOAT32 = np.dtype(np.float32)
FEWER_GRAPHS = "Lower train.batch_size or train.eval_batch_size, give --resident off"
SMALLER_PARTS = "Give one graph more GPUs (mpirun -n) or narrower layers (model.widths)"
Shape = int | tuple[int, ...]


class MemoryInfo(NamedTuple):
    """Free and total bytes of the device's memory."""

    free: int
    total: int


class Slabs:
    """Places of small arrays in larger pieces of memory, one after the other; a piece is freed with its last array.

    Parameters
    ----------
    allocate : callable
        Returns the owner of so many bytes, whose integer value is their address.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._owner: Any = None
        self._address, self._used = 0, SLAB_BYTES

    def place(self, nbytes: int) -> tuple[int, Any]:
        """Return the address and the owner of `nbytes` bytes, at most SLAB_BYTES."""
        start = self._used
        self._used += aligned(nbytes)
        if self._used > SLAB_BYTES:
            self._owner = self._allocate(SLAB_BYTES)
            self._address, start, self._used = int(self._owner), 0, aligned(nbytes)
        return self._address + start, self._owner


class DeviceContext:
    """The context of a device, pushed when it is created.

    Parameters
    ----------
    number : int
        Number among the visible devices.

    Attributes
    ----------
    info : DeviceInfo
    peak_bytes : int
        The most bytes that arrays held at once; may be reset to 0.
    takes_less : str
        What takes less memory, for the error when there is not enough: `FEWER_GRAPHS` unless a feed has set it.
    allocator
        PyCUDA's memory pool, the only source of device memory (`allocate`, `active_bytes`).
    driver, stream
        PyCUDA's driver module and stream, for libraries that run together with these kernels.
    """

    def __init__(self, number: int) -> None:
        self.info = loader.choose(number)
        self.driver = loader.load_cuda()
        self.peak_bytes, self.takes_less = 0, FEWER_GRAPHS
        self._flag: tuple[NDArray[np.int32], DeviceArray] | None = None
        self._fetched = np.empty(0, np.uint8)  # pinned; `fetch`
        self._sent, self._sent_ahead = Pinned(self), Pinned(self)  # `send_rows`
        self._slabs = Slabs(self._allocate)
        with self.errors():
            self._device = self.driver.Device(number)
            self._context = self._device.retain_primary_context()
            self._context.push()
            atexit.register(self._close)
            self.stream: Any = self.driver.Stream()
            self.allocator = self.driver.DeviceMemoryPool()
            self._keep_block()

    # ------------------------------------------------------------------------------------------------------ properties

    @property
    def name(self) -> str:
        """Name, such as ``"NVIDIA H100 80GB HBM3"``."""
        return self.info.name

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Compute capability, such as (9, 0)."""
        return self.info.capability

    @property
    def multiprocessors(self) -> int:
        """Number of streaming multiprocessors."""
        return self.info.multiprocessors

    @cached_property
    def l2_bytes(self) -> int:
        """Size of L2 in bytes."""
        with self.errors():
            return int(self._device.get_attribute(self.driver.device_attribute.L2_CACHE_SIZE))

    def memory(self) -> MemoryInfo:
        """Return the free and total memory now, including the use by other processes."""
        with self.errors():
            return MemoryInfo(*self.driver.mem_get_info())

    @property
    def active_bytes(self) -> int:
        """Bytes that arrays hold now."""
        return int(self.allocator.active_bytes)

    # ---------------------------------------------------------------------------------------------------------- arrays

    def empty(self, shape: Shape, dtype: DTypeLike = np.float32) -> DeviceArray:
        """Return an uninitialised array.

        Raises
        ------
        MachineError
            When the device runs out of memory.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        dtype = FLOAT32 if dtype is np.float32 else np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return DeviceArray(0, shape, dtype)
        if nbytes > SMALL_BYTES:
            owner = self._allocate(nbytes)
            return DeviceArray(int(owner), shape, dtype, owner)
        address, owner = self._slabs.place(nbytes)
        return DeviceArray(address, shape, dtype, owner)

    def _allocate(self, nbytes: int) -> Any:
        try:
            owner = self.allocator.allocate(nbytes)
        except self.driver.Error as error:
            raise self._failure(error, nbytes) from error
        self.peak_bytes = max(self.peak_bytes, self.allocator.active_bytes)
        return owner

    def release(self) -> None:
        """Give the pool's unused memory back to the device, for libraries that take memory of their own."""
        self.synchronize()
        self.allocator.free_held()
        self._keep_block()

    def _keep_block(self) -> None:
        """Leave a free block in the pool, of a size that no array has.

        Where the pool holds none, PyCUDA ends the process if the garbage collector frees an array in another thread.
        """
        self.allocator.allocate(1)

    def shared(self, nbytes: int) -> tuple[DeviceArray, bytes]:
        """Return zeros (nbytes,) that other processes of this host can `open_shared`, and the handle for that.

        Raises
        ------
        MachineError
            When the device has no such memory.
        """
        size = -(-nbytes // SHARED_UNIT) * SHARED_UNIT
        with self.errors():
            owner = self.driver.mem_alloc(size)
            self.driver.memset_d8_async(int(owner), 0, size, self.stream)
            handle = bytes(self.driver.mem_get_ipc_handle(int(owner)))
        self.synchronize()  # before another process writes
        return DeviceArray(int(owner), (nbytes,), np.dtype(np.uint8), owner), handle

    def open_shared(self, handle: bytes, nbytes: int) -> DeviceArray:
        """Return the array (nbytes,) of another process, possibly on another device, whose handle this is.

        Raises
        ------
        MachineError
            When this device does not reach that memory.
        """
        with self.errors():
            owner = self.driver.IPCMemoryHandle(bytearray(handle))
        return DeviceArray(int(owner), (nbytes,), np.dtype(np.uint8), owner)

    def zeros(self, shape: Shape, dtype: DTypeLike = np.float32) -> DeviceArray:
        """Return an array of zeros."""
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def clear(self, array: DeviceArray) -> None:
        """Set every byte of `array` to 0."""
        if array.nbytes:
            with self.errors():
                self.driver.memset_d8_async(array.ptr, 0, array.nbytes, self.stream)

    def copy(self, source: DeviceArray, out: DeviceArray) -> None:
        """Queue a copy of `source` to `out`, an array of as many bytes."""
        assert source.nbytes == out.nbytes, (source.shape, out.shape)
        if out.nbytes:
            with self.errors():
                self.driver.memcpy_dtod_async(out.ptr, source.ptr, out.nbytes, self.stream)

    def pinned(self, shape: Shape, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return a host array in page-locked memory, from which `upload_async` copies without waiting.

        PyCUDA never frees this memory: allocate it once and reuse it.

        Raises
        ------
        MachineError
            When the host has no more memory to lock.
        """
        if not prod((shape,) if isinstance(shape, int) else shape):
            return np.empty(shape, dtype)
        with self.errors():
            try:
                found: NDArray[Any] = self.driver.pagelocked_empty(shape, np.dtype(dtype))
            except self.driver.MemoryError as error:
                raise MachineError(
                    f"page-locked memory for {self._subject}", "out of memory", hint="Free some memory of the host."
                ) from error
        return found

    def mapped_flag(self) -> tuple[NDArray[np.int32], DeviceArray]:
        """Return one int32 in page-locked host memory and the device's view of it; cached."""
        if self._flag is None:
            with self.errors():
                flags = self.driver.host_alloc_flags.DEVICEMAP
                host = self.driver.pagelocked_empty(1, np.dtype(np.int32), mem_flags=flags)
                address = int(host.base.get_device_pointer())
            self._flag = (host, DeviceArray(address, (1,), np.dtype(np.int32), host))
        return self._flag

    # ---------------------------------------------------------------------------------------------------------- copies

    @cached_property
    def copies(self) -> Copies:
        """The copies that overlap with kernels."""
        return Copies(self)

    def upload(self, host: ArrayLike, out: DeviceArray | None = None) -> DeviceArray:
        """Copy `host` to `out` or a new array, wait for the copy, and return the array.

        Raises
        ------
        ValueError
            When shape or type differ from those of `out`.
        """
        values = np.asarray(host, order="C")
        array = self.upload_async(values, self.empty(values.shape, values.dtype) if out is None else out)
        self.synchronize()
        return array

    def upload_async(self, host: NDArray[Any], out: DeviceArray, stream: Any = None) -> DeviceArray:
        """Queue a copy of `host` to `out` on `stream` (default: the device's), and return `out`.

        `host` comes from `pinned`. It must not change until an event recorded after this call has passed.

        Raises
        ------
        ValueError
            When shapes or types differ, or `host` is not contiguous.
        """
        if host.shape != out.shape or host.dtype != out.dtype or not host.flags.c_contiguous:
            raise ValueError(f"{host.dtype} {host.shape} does not fit {out.dtype} {out.shape}, row-major")
        if out.nbytes:
            with self.errors():
                self.driver.memcpy_htod_async(out.ptr, host, self.stream if stream is None else stream)
        return out

    def send_rows(self, host: NDArray[Any], out: DeviceArray, pitch: int, ahead: bool = False) -> None:
        """Queue a copy of row r of `host` (rows, …) to the array that lies r `pitch` bytes after `out`.

        `host` may change after this call: it is staged in a pinned buffer. So this call waits for the copy of the
        previous call, and for the work queued before that copy. Copies queued `ahead`, after much work, have a
        buffer of their own: other calls do not wait for them.

        Raises
        ------
        ValueError
            When shapes or types differ.
        """
        if host.shape[1:] != out.shape or host.dtype != out.dtype:
            raise ValueError(f"{host.dtype} {host.shape} does not fit rows of {out.dtype} {out.shape}")
        sent = self._sent_ahead if ahead else self._sent
        staged = sent.take(aligned(host.nbytes))[: host.nbytes]
        try:
            rows = staged.view(host.dtype).reshape(host.shape)
            np.copyto(rows, host)
            if len(rows) == 1:
                self.upload_async(rows[0], out)
                return
            with self.errors():
                copy_rows = self.driver.Memcpy2D()
                copy_rows.set_src_host(staged)
                copy_rows.set_dst_device(out.ptr)
                copy_rows.src_pitch, copy_rows.dst_pitch = out.nbytes, pitch
                copy_rows.width_in_bytes, copy_rows.height = out.nbytes, len(host)
                copy_rows(self.stream)
        finally:
            sent.sent(self.event())

    def fetch_rows(self, array: DeviceArray, pitch: int, rows: int, clears: bool = False) -> NDArray[Any]:
        """Return host copies of `array` and of the arrays each `pitch` bytes further, (rows, …).

        `clears`: the arrays are 0 afterwards. This is queued before the host waits.
        """
        nbytes = rows * array.nbytes
        if not nbytes:
            return np.empty((rows, *array.shape), array.dtype)
        if rows == 1 and not clears:
            return self.fetch(array)[np.newaxis]
        pitch = pitch if rows > 1 else array.nbytes  # CUDA takes no pitch above 2 GiB
        host = self._pinned_for(nbytes)
        with self.errors():
            copy_rows = self.driver.Memcpy2D()
            copy_rows.set_src_device(array.ptr)
            copy_rows.set_dst_host(host)
            copy_rows.src_pitch, copy_rows.dst_pitch = pitch, array.nbytes
            copy_rows.width_in_bytes, copy_rows.height = array.nbytes, rows
            copy_rows(self.stream)
            if clears:
                self.driver.memset_d2d8_async(array.ptr, pitch, 0, array.nbytes, rows, self.stream)
        self.synchronize()
        return host.view(array.dtype).reshape(rows, *array.shape).copy()

    def download(self, array: DeviceArray, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Copy `array` to `out` on the host or to a new array, and return that; wait for all queued work.

        `out` has the shape and type of `array`. If it comes from `pinned`, a small copy takes half the time.
        """
        host = np.empty(array.shape, array.dtype) if out is None else out
        if array.nbytes:
            with self.errors():
                self.driver.memcpy_dtoh_async(host, array.ptr, self.stream)
        self.synchronize()
        return host

    def fetch(self, array: DeviceArray) -> NDArray[Any]:
        """Return a host copy of `array`, staged in a pinned buffer: faster than `download` for small arrays."""
        host = self._pinned_for(array.nbytes)
        return self.download(array, host.view(array.dtype).reshape(array.shape)).copy()

    def _pinned_for(self, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes` of the pinned buffer of fetched arrays."""
        if self._fetched.nbytes < nbytes:
            self._fetched = self.pinned(max(nbytes, 2 * self._fetched.nbytes), np.uint8)
        return self._fetched[:nbytes]

    # ---------------------------------------------------------------------------------------------- order and failures

    def event(self) -> Event:
        """Record an event on the device's stream."""
        return Event(self)

    def synchronize(self) -> None:
        """Wait for all work on the device's stream.

        Raises
        ------
        MachineError
            When any of it failed.
        """
        with self.errors():
            self.stream.synchronize()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the driver's errors inside the block into MachineError."""
        try:
            yield
        except self.driver.Error as error:
            raise self._failure(error) from error

    def out_of_memory(self, asked: int = 0) -> MachineError:
        """Return the out-of-memory error: requested bytes if known, free bytes, fix."""
        facts = [f"{asked / 2**20:,.1f} MiB requested"] if asked else []
        with suppress(self.driver.Error):  # a lost device answers no further calls
            free, total = self.driver.mem_get_info()
            facts.append(f"{free / 2**20:,.0f} of {total / 2**20:,.0f} MiB free")
        return MachineError(
            self._subject,
            ": ".join(filter(None, ["out of memory", ", ".join(facts)])),
            hint=f"{self.takes_less}, or end other programs on this GPU (nvidia-smi lists them).",
        )

    def lost(self, message: str) -> DeviceLost:
        """Return the error of a lost device, whose driver call failed with this message."""
        return DeviceLost(self._subject, message, hint="If it happens again, 'nvidia-smi' and the system log say more.")

    @property
    def _subject(self) -> str:
        return f"device {self.info.number} ({self.name})"

    def _failure(self, error: Exception, asked: int = 0) -> MachineError:
        return self.out_of_memory(asked) if isinstance(error, self.driver.MemoryError) else self.lost(str(error))

    def close(self) -> None:
        """Leave the context, in the thread that made it; arrays can no longer be used."""
        atexit.unregister(self._close)
        self._close()

    def _close(self) -> None:
        self.allocator.stop_holding()
        self._context.pop()
