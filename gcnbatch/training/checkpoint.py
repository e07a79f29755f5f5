"""Checkpoints: named arrays and a JSON description in one safetensors file, with a digest of both.

A checkpoint holds no code, and loading runs none. `save` writes a temporary file, syncs and renames it, so the path
holds a complete checkpoint at any moment. The format and the digest reveal truncation and flipped bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gcnbatch import fileio
from gcnbatch.config_tree import parse_json
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.machine import blame
from gcnbatch.model.parameters import Misfit, ParameterLayout
from gcnbatch.text import QUOTED, printable

FORMAT = "gcnbatch checkpoint"
VERSION = 1

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """Arrays by name and a description that JSON can hold."""

    arrays: Arrays
    about: dict[str, Any] = field(default_factory=dict)

    def group(self, prefix: str) -> Arrays:
        """Return the arrays named ``prefix/…`` without the prefix."""
        start = f"{prefix}/"
        return {name.removeprefix(start): value for name, value in self.arrays.items() if name.startswith(start)}


def save(path: StrPath, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `path` in one step.

    Raises
    ------
    MachineError
        When the disk is full or not writable; an earlier file at `path` stays.
    """
    raw = encode(checkpoint)
    with fileio.atomic_path(path) as temporary:
        temporary.write_bytes(raw)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the content of the file."""
    arrays = {name: np.ascontiguousarray(value) for name, value in checkpoint.arrays.items()}
    about = json.dumps(checkpoint.about, allow_nan=False)
    # A single entry: safetensors does not fix the order of several, and equal checkpoints must be equal files.
    return bytes(safetensors.numpy.save(arrays, {FORMAT: f"{VERSION} {_digest(arrays, about)} {about}"}))


def load(path: StrPath, finite: bool = True) -> Checkpoint:
    """Read and check a checkpoint; with `finite`, all its numbers must be.

    Raises
    ------
    InputError
        When the file is missing, truncated or altered, comes from another program or version, or has an array with
        numbers that are not finite.
    """
    place = Path(path)
    if not place.exists() or place.is_dir():
        raise InputError(str(place), "no such checkpoint", "a run folder that training has written to")
    fileio.open_regular(place, f"a {FORMAT}").close()
    try:
        with safe_open(str(place), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        blame(error)
        raise _damaged(place, str(error)) from error
    if FORMAT not in metadata:
        raise InputError(str(place), "a safetensors file of another program", f"a {FORMAT}")
    version, _, rest = metadata[FORMAT].partition(" ")
    if version != str(VERSION):
        raise InputError(str(place), f"checkpoint version {version}", f"version {VERSION}", "Use a matching gcnbatch.")
    digest, _, about = rest.partition(" ")
    if digest != _digest(arrays, about):
        raise _damaged(place, "its contents do not match its digest")
    for name, values in arrays.items():
        if finite and values.dtype.kind == "f" and not np.isfinite(values).all():
            raise refused(place, Misfit(name, "numbers that are not finite", "finite numbers"))
    try:
        described = parse_json(about)
    except (ValueError, RecursionError):
        described = None
    if not isinstance(described, dict):
        raise _damaged(place, "its description is not a JSON object")
    return Checkpoint(arrays, described)


def check_weights(path: Path, layout: ParameterLayout, arrays: Arrays, group: str = "") -> None:
    """Refuse weights with values that no training gives; `group` begins their names in the file.

    Raises
    ------
    InputError
        Names the first such array.
    """
    weights = {name: arrays[group + name] for name in layout.slots if group + name in arrays}
    if misfit := layout.misfit(weights):
        raise refused(path, misfit._replace(name=group + misfit.name))


def refused(path: Path, misfit: Misfit) -> InputError:
    """Return the error for an array of a file."""
    hint = "Copy the file again, or train again, with a lower train.learning_rate."
    return InputError(f"{path}: {printable(misfit.name, QUOTED)}", misfit.got, misfit.expected, hint)


def _damaged(place: Path, reason: str) -> InputError:
    return InputError(str(place), f"damaged checkpoint ({reason})", hint="Copy it again, or train again.")


def _digest(arrays: Mapping[str, NDArray[Any]], about: str) -> str:
    digest = hashlib.sha256(about.encode("utf-8"))
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name}:{value.dtype.str}:{value.shape};".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
