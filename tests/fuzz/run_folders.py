"""Folders of runs and studies with damaged files: whoever reads one refuses it in a line or goes on.

Nobody writes outside.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from gcnbatch.api.run import Run
from gcnbatch.errors import GcnbatchError, InputError
from gcnbatch.explanation.command import explain
from gcnbatch.inference.ensemble import infer
from gcnbatch.run_report.files import write
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import checkpoint, run
from gcnbatch.training.checkpoint import Checkpoint
from gcnbatch.tuning import page, search
from gcnbatch.tuning.search import Limits
from tests.training.kills import THOROUGH, killed
from tests.training.runs import configure, fit, write_set

SECONDS = 60  # for a case; a pipe that is read would last for ever
FILES = ("config.toml", "env.json", "splits.json", "data.sha256", "history.jsonl", "metrics.json", "predictions.csv")
OF_STUDY = ("config.toml", "space.toml", "study.json", "env.json", "data.sha256", "study.journal", "trials.csv")
CHECKPOINTS = ("last.safetensors", "best.safetensors", "uncertainty.safetensors")
VALUES: list[Any] = [
    *(None, [], {}, "", 0, -1, 2**70, 1e300, True, "\x1b[31m", [[]], {"a": {}}),
    *(10**4000, float("nan"), float("inf"), -1e308, "1", "a\0b", "\ud800", 2**53, 0.5),
]
TOML = (
    "",
    "-1",
    "9" * 5000,
    "0x" + "f" * 5000,
    "1e999",
    "nan",
    '"a\\u0000b"',
    "[[[]]]",
    "1979-05-27",
    "true",
    "{ a = 1 }",
)
NUMBERS = (float("nan"), float("inf"), 3e38, -3e38, 1e18, -1.0, 0.0, 2.0**62)
SPARSE_BYTES = 3 << 30
READ_BYTES = 1 << 20  # of a file to change, at most: a whole one, but for one that has grown


def write_bases(folder: Path) -> None:
    """Write runs to damage: finished, stopped in its second epoch, stopped in its second fold, folds; and a study."""
    write_set(folder / "set.h5")
    fit(folder / "set.h5", folder / "finished", *THOROUGH)
    assert killed(folder / "set.h5", folder / "stopped", THOROUGH, OpsRunner, "step", 6)
    folds = (*THOROUGH, "split.folds=2")
    assert killed(folder / "set.h5", folder / "in_folds", folds, OpsRunner, "step", 12)
    fit(folder / "set.h5", folder / "folds", *folds)
    tree = {"train": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}}
    base = configure(f"data.path={folder / 'set.h5'}", "train.epochs=1", "jobs=1", "backend=cpu")
    search.start(base, folder / "study", tree, Limits(2), quiet=True)


KEYS = ("position", "header", "model", "scaling", "epoch", "calibrators", "notes")
INNER = ("", "epoch", "step", "best_epoch", "plateau", "finished", "n_features", "mean", "waited")
HOW = ("content", "cut", "insert", "remove", "folder", "pipe", "link", "dangling", "grow", "value", "value", "value")
KINDS = ("finished", "stopped", "in_folds", "folds", "study")
Change = Callable[[Path], object]
Damage = tuple[str, Change]


def _nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Draw the name of a file and what happens to it."""
    folder = draw(st.sampled_from(["", "", "fold1/", "fold2/"]))
    value, number = draw(st.sampled_from(VALUES)), draw(st.integers(0, 10**6))
    if (kind := draw(st.integers(0, 5))) < 2:
        name = folder + draw(st.sampled_from(CHECKPOINTS))
        key, inner, dropped = draw(st.sampled_from(KEYS)), draw(st.sampled_from(INNER)), draw(st.booleans())
        values = draw(st.sampled_from(NUMBERS))
        if kind == 0:
            return name, lambda path: _describe(path, key, inner, value, dropped)
        return name, lambda path: _other_number(path, number, values)
    name = draw(st.sampled_from([*(folder + name for name in (*FILES, *CHECKPOINTS)), *OF_STUDY]))
    raw = draw(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(VALUES).map(lambda value: json.dumps(value).encode()),
            st.sampled_from([_nested(30), _nested(900), _nested(100_000), b"a=" + b"[" * 5000]),
            st.sampled_from([b"", b"\0" * 100, b"\xff\xfe", b"a,b\n1,2\n" * 9]),
        )
    )
    part, how, toml = draw(st.floats(0, 1)), draw(st.sampled_from(HOW)), draw(st.sampled_from(TOML))
    return name, lambda path: _damage(path, how, raw, part, number, toml if path.suffix == ".toml" else value)


def _damage(path: Path, how: str, raw: bytes, part: float, number: int, value: Any) -> None:
    old = _content(path) if path.is_file() else b""
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    if how == "content":
        path.write_bytes(raw)
    elif how == "cut":
        path.write_bytes(old[: int(part * len(old))])
    elif how == "insert":
        at = int(part * len(old))
        path.write_bytes(old[:at] + raw + old[at:])
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how in ("link", "dangling"):
        outside = next(parent for parent in path.parents if (parent / "outside").is_dir()) / "outside" / "file"
        path.symlink_to(outside if how == "link" else outside.with_name("new"))
    elif how == "grow":
        path.write_bytes(old)
        os.truncate(path, SPARSE_BYTES)
    elif how == "value" and path.suffix in (".toml", ".csv", ".sha256"):
        path.write_bytes(_other_text(old, number, str(value)))
    elif how == "value":
        path.write_bytes(_other_value(old, number, value))


def _content(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(READ_BYTES)


def _other_text(old: bytes, number: int, text: str) -> bytes:
    """Replace what follows a separator in a line: a value of TOML, a cell of a CSV, the path beside a digest."""
    lines = old.split(b"\n")
    at = number % len(lines)
    parts = re.split(rb"(= |,|  )", lines[at])
    parts[2 * (number // len(lines) % (len(parts) // 2 + 1))] = text.encode("utf-8", "surrogatepass")
    lines[at] = b"".join(parts)
    return b"\n".join(lines)


def _other_value(old: bytes, number: int, value: Any) -> bytes:
    """Replace a value of a JSON text, or of a line of it."""
    lines = old.splitlines() if old.count(b"\n{") else [old]
    at = number % len(lines)
    try:
        tree = json.loads(lines[at])
    except (ValueError, RecursionError):  # damaged before
        return old
    here = tree
    while isinstance(here, dict) and here:
        key = sorted(here)[number % len(here)]
        number //= len(here)
        if not isinstance(here[key], dict) or number % 3 == 0:
            here[key] = value
            break
        here = here[key]
    lines[at] = json.dumps(tree).encode()
    return b"\n".join(lines) + b"\n"


def _describe(path: Path, key: str, inner: str, value: Any, dropped: bool) -> None:
    """Change the description of a checkpoint, whose digest is made right again."""
    try:
        found = checkpoint.load(path)
    except InputError:  # damaged before
        return
    about = dict(found.about)
    if inner and isinstance(about.get(key), dict):
        about[key] = {**about[key], inner: value}
    else:
        about[key] = value
    arrays = dict(list(found.arrays.items())[1:]) if dropped else found.arrays
    with suppress(ValueError, UnicodeEncodeError):  # what no checkpoint can hold
        checkpoint.save(path, Checkpoint(arrays, about))


def _other_number(path: Path, number: int, value: float) -> None:
    """Change a number of a checkpoint, whose digest is made right again."""
    try:
        found = checkpoint.load(path)
    except InputError:  # damaged before
        return
    arrays = [array for array in found.arrays.values() if array.size]
    if arrays:
        array = arrays[number % len(arrays)]
        with np.errstate(invalid="ignore"):
            array.flat[number // len(arrays) % array.size] = np.array(value).astype(array.dtype)
        checkpoint.save(path, found)


def damaged(bases: Path, place: Path, kind: str, damage: Sequence[Damage]) -> Path:
    """Return a damaged copy of a run in `place`, beside a folder ``outside`` that links may lead to."""
    folder = place / "run"
    shutil.copytree(bases / kind, folder)
    (place / "outside").mkdir()
    (place / "outside" / "file").write_text("mine")
    for name, how in damage:
        how(folder / name)
    return folder


def verdict(bases: Path, place: Path, kind: str, damage: Sequence[Damage]) -> list[str]:
    """Damage a copy of a run or a study and let everybody read it; return what they say."""
    folder, data = damaged(bases, place, kind, damage), bases / "set.h5"
    if kind == "study":
        readers = [lambda: _resume(folder), lambda: search.report(folder)]
    else:
        readers = [
            lambda: run.resume(folder, quiet=True),
            lambda: write(folder),
            lambda: infer([folder], data, str(place / "p.csv"), quiet=True),
            lambda: _look_at(Run.load(folder)),
            lambda: explain([folder], data, place / "e", steps=1, top=1, quiet=True),
        ]
    lines = [_line(reader) for reader in readers]
    assert [path.name for path in (place / "outside").iterdir()] == ["file"]
    assert (place / "outside" / "file").read_text() == "mine"
    return lines


def _resume(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "render", lambda *about: "")  # the report draws the same trials
        search.resume(folder, Limits(3), quiet=True)


def _look_at(found: Run) -> None:
    for one in (found, *found.members):
        assert isinstance(one.metrics, dict)
        assert isinstance(one.history, list)
    assert found.config.model_dump()


def _line(work: Callable[[], object]) -> str:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"more than {SECONDS} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        work()
    except GcnbatchError as error:
        line = str(error)
        assert "\n" not in line
        assert line.isprintable()
        assert len(line) < 1500
        return line
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return "done"
