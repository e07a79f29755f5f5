"""Folders of results: new or empty, locked, and removed if nothing came into them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gcnbatch import fileio, folders
from gcnbatch.errors import InputError


def test_a_folder_without_results_is_removed_with_its_parents(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), folders.results(tmp_path / "mine" / "a" / "b", "x"):
        raise KeyError
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    with folders.results(tmp_path / "mine" / "a" / "b", "x") as (folder, _):
        (folder / "file").touch()
    assert (tmp_path / "mine" / "a" / "b" / "file").exists()


def test_a_folder_is_locked_while_results_are_written(tmp_path: Path) -> None:
    message = r"run: another process writes there; expected a folder that none uses\. Wait until it ends\."
    with folders.results(tmp_path / "run", "x") as (folder, _):
        with pytest.raises(InputError, match=rf"{message} Choose another -o\.$"), folders.results(folder, "x"):
            pass
        with pytest.raises(InputError, match=rf"{message}$"), folders.locked(folder):
            pass
        (folder / "file").touch()
    with folders.locked(folder):
        pass


def test_folders_of_the_same_second_differ_also_if_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-120000")
    with ExitStack() as stack:
        found = [stack.enter_context(folders.results(None, "tox21")).folder for _ in range(3)]
        assert [folder.name for folder in found] == [f"tox21-20260101-120000{end}" for end in ("", "-2", "-3")]
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_is_refused_leaves_the_folder_to_the_process_that_locked_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folders.make
    with ExitStack() as other:

        def make(folder: Path) -> list[Path]:
            made = real(folder)
            monkeypatch.setattr(folders, "make", real)
            other.enter_context(folders.results(folder, "x"))
            return made

        monkeypatch.setattr(folders, "make", make)
        with pytest.raises(InputError, match="another process writes there"), folders.results(tmp_path / "run", "x"):
            pass
        (tmp_path / "run" / "file").touch()


def test_a_folder_that_another_process_removes_at_its_end_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removals = fileio.try_lock, iter([(tmp_path / "run").rmdir] * 3)

    def late(descriptor: int) -> bool:
        next(removals, lambda: None)()
        return real(descriptor)

    monkeypatch.setattr(fileio, "try_lock", late)
    with folders.results(tmp_path / "run", "x") as (folder, _):
        (folder / "file").touch()
