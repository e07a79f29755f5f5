"""Pickles that ask for much time or memory: the confined process ends, with one line."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.importers import inert_pickle
from gcnbatch.data.importers.inert_pickle import read_array, read_neighbours
from gcnbatch.errors import InputError

pytestmark = pytest.mark.hostile


def nested(depth: int) -> bytes:
    """Return the instructions of a tuple that holds one tuple twice, and so on, in 3 bytes a level."""
    return b"\x80\x04)" + b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(depth))


def repeated(count: int) -> bytes:
    """Return a dictionary whose `count` keys all have one list of `count` numbers."""
    keys = b"".join(b"J" + number.to_bytes(4, "little") + b"h\x00" for number in range(1, count))
    return b"\x80\x04}(K\x00]\x94(" + b"K\x01" * count + b"e" + keys + b"u."


ASKING = {
    "hash of nested tuples": (b"}" + nested(60)[2:] + b"K\x01s.", "takes more than 1 s of processor time"),
    "nested tuples as a name": (nested(60) + b"\x93.", "damaged pickle"),
    "nested tuples as a type": (
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01)cnumpy\ndtype\n" + nested(60)[2:] + b"\x85RNNtb.",
        "not an array of numbers (an array of objects, not numbers)",
    ),
    "a far place in the memory": (b"Nr\xff\xff\xff\x7f.", "takes more than 128 MiB of memory"),
    "text of an exabyte": (
        b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little") + b".",
        "takes more than 128 MiB of memor",
    ),
    "text of 16 exabytes": (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "damaged pickle (BINBYTES exceeds system's maximum"),
    "one list for many keys": (repeated(20_000), "takes more than 128 MiB of memory"),
}


@pytest.mark.parametrize("case", ASKING)
def test_a_pickle_that_asks_for_too_much_is_refused_in_one_line(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, message = ASKING[case]
    monkeypatch.setattr(inert_pickle, "_SECONDS", 1)
    monkeypatch.setattr(inert_pickle, "_MOST_BYTES", 128 << 20)
    path = tmp_path / "a.pkl"
    path.write_bytes(content)
    read = read_array if "array" in message else read_neighbours
    with pytest.raises(InputError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pickle_that_overflows_the_stack_ends_its_own_process(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"})" + b"\x85" * 300_000 + b"K\x01s.")
    with pytest.raises(InputError, match=r"crashes Python's unpickler|not a dictionary"):  # the stack may have no limit
        read_neighbours(path)


def test_a_sparse_file_of_gigabytes_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
    with pytest.raises(InputError, match="damaged pickle"):
        read_array(path)


def test_arrays_come_back_from_the_confined_process(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(np.arange(6.0).reshape(2, 3)))
    np.testing.assert_array_equal(read_array(path), np.arange(6.0).reshape(2, 3))
