"""Checkpoints: round trips, refusal of damaged and foreign files, and a full disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save as encode

from gcnbatch.errors import InputError
from gcnbatch.training import checkpoint
from gcnbatch.training.checkpoint import FORMAT, Checkpoint, load, save
from tests.training.runs import environment

NAMES = st.text("abcxyz./01", min_size=1, max_size=8)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
FINITE = {"allow_nan": False, "allow_infinity": False}
ARRAYS = (
    arrays.arrays(np.int64, SHAPES)
    | arrays.arrays(np.float32, SHAPES, elements=FINITE)
    | arrays.arrays(np.float64, SHAPES, elements=FINITE)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)

SAMPLE = Checkpoint(
    {"state/w": np.arange(6, dtype=np.float32).reshape(2, 3), "state/n": np.array([3]), "best/w": np.zeros(2)},
    {"model": {"kind": "chemgcn"}, "value": 0.1},
)


@settings(max_examples=40, derandomize=True)
@given(st.dictionaries(NAMES, ARRAYS, max_size=4), st.dictionaries(st.text(), JSON, max_size=4))
def test_a_saved_checkpoint_loads_unchanged(
    tmp_path_factory: pytest.TempPathFactory, values: dict, about: dict
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    save(path, Checkpoint(values, about))
    found = load(path)
    assert found.about == about
    assert found.arrays.keys() == values.keys()
    for name, value in values.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (value.dtype, value.shape)
        assert found.arrays[name].tobytes() == value.tobytes()


def test_groups_are_named_by_their_first_part() -> None:
    assert set(SAMPLE.group("state")) == {"w", "n"}
    assert set(SAMPLE.group("best")) == {"w"}
    assert SAMPLE.group("stat") == {}


def test_transposed_arrays_keep_their_values(tmp_path: Path) -> None:
    value = np.arange(6.0).reshape(2, 3).T
    save(tmp_path / "c", Checkpoint({"w": value}))
    np.testing.assert_array_equal(load(tmp_path / "c").arrays["w"], value)


def test_equal_checkpoints_are_equal_files(tmp_path: Path) -> None:
    save(tmp_path / "a", SAMPLE)
    save(tmp_path / "b", Checkpoint(dict(reversed(SAMPLE.arrays.items())), SAMPLE.about))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    save(tmp_path / "c", SAMPLE)
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_any_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save(path, SAMPLE)
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in (0x01, 0x20, 0x80):
            flipped = bytearray(content)
            flipped[position] ^= bit
            path.write_bytes(flipped)
            with pytest.raises(InputError, match=r"c\.safetensors: (damaged|a safetensors file of|checkpoint version)"):
                load(path)


def test_any_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save(path, SAMPLE)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"c\.safetensors: damaged checkpoint \(.*\)\. Copy it again, or"):
            load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(InputError, match="damaged checkpoint"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n" + b"\0" * 100, b"\x80\x04K\x01."])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match="c: damaged checkpoint"):
        load(tmp_path / "c")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "gcnbatch"}])
def test_weights_of_another_program_are_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    (tmp_path / "c").write_bytes(encode({"w": np.zeros(3)}, metadata))
    with pytest.raises(InputError, match="c: a safetensors file of another program; expected a gcnbatch checkpoint"):
        load(tmp_path / "c")


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(encode({"w": np.zeros(3)}, {FORMAT: "2 and more"}))
    with pytest.raises(InputError, match=r"c: checkpoint version 2; expected version 1\. Use a matching gcnbatch"):
        load(tmp_path / "c")


def test_a_checkpoint_without_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(encode({"w": np.zeros(3)}, {FORMAT: "1"}))
    with pytest.raises(InputError, match=r"c: damaged checkpoint \(its contents do not match its digest\)"):
        load(tmp_path / "c")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: float, kind: type) -> None:
    save(tmp_path / "c", Checkpoint({"v": np.zeros(2), "w": np.array([[0, value]], kind)}))
    with pytest.raises(InputError, match=r"c: w: numbers that are not finite; expected finite numbers\. Copy the file"):
        load(tmp_path / "c")


@pytest.mark.parametrize("about", ["[]", "{", '{"epoch": NaN}', '{"epoch": -Infinity}', "9" * 5000, "[" * 100_000])
def test_a_description_that_is_no_json_object_is_refused(tmp_path: Path, about: str) -> None:
    arrays = {"w": np.zeros(3)}
    (tmp_path / "c").write_bytes(encode(arrays, {FORMAT: f"1 {checkpoint._digest(arrays, about)} {about}"}))
    with pytest.raises(InputError, match=r"c: damaged checkpoint \(its description is not a JSON object\)"):
        load(tmp_path / "c")


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(InputError, match=r": no such checkpoint; expected a run folder that training"):
            load(path)


FULL = """
import resource, sys
import numpy as np
from gcnbatch.errors import MachineError
from gcnbatch.training.checkpoint import Checkpoint, save
save(sys.argv[1], Checkpoint({"w": np.zeros(8)}))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save(sys.argv[1], Checkpoint({"w": np.ones(4096)}))
except MachineError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout == f"{path}: could not be written (File too large). Free some disk space and run again.\n"
    np.testing.assert_array_equal(load(path).arrays["w"], np.zeros(8))
    assert os.listdir(tmp_path) == ["c.safetensors"]
