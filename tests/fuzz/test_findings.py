"""What the fuzzer has found stays refused, and what it finds can be kept and played again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.findings import FOLDER, keep, keep_run, replay

pytestmark = pytest.mark.hostile

FOUND = {
    # crashed libhdf5 2.0 or kept it busy for ever; a later version may refuse them itself
    "division_by_zero.h5.gz": "x.h5: damaged",
    "endless_names.h5.gz": "x.h5: damaged",
    # a field of 16 MiB, nine times, in 841 bytes
    "shared_field.parquet.gz": "x.parquet: not readable (a field of more than 131,072 characters)",
    # a configuration of nested lists ended in a RecursionError
    "finished-deep_configuration.tar.gz": "config.toml: tables or lists nested too deep; expected at most 20 levels",
}


@pytest.mark.parametrize(("name", "message"), FOUND.items(), ids=FOUND)
def test_what_the_fuzzer_has_found_is_refused(bases: Path, name: str, message: str) -> None:
    assert message in replay(FOLDER / name, bases)


def test_every_regression_file_is_played() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FOUND)


@pytest.mark.parametrize(
    ("ending", "raw", "message"),
    [
        ("csv", b"smiles,smiles\nC,C\n", "two columns are named"),
        ("smiles", b"C(", "not valid SMILES"),
        ("array.pkl", b"cos\nsystem\n.", "refused: names os.system"),
    ],
)
def test_a_kept_case_is_played_again(tmp_path: Path, ending: str, raw: bytes, message: str) -> None:
    assert message in replay(keep(tmp_path / "kept", ending, raw), tmp_path)


def test_a_kept_run_folder_is_played_again(tmp_path: Path, bases: Path) -> None:
    def pipe(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    kept = keep_run(tmp_path / "kept", bases, "stopped", [("best.safetensors", Path.unlink), ("history.jsonl", pipe)])
    said = replay(kept, bases)
    assert "history.jsonl: not a regular file" in said
    assert "no best.safetensors in it" in said
