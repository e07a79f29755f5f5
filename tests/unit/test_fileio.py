"""Files appear complete or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from gcnbatch.errors import InputError, MachineError
from gcnbatch.fileio import (
    AppendedFile,
    Output,
    atomic_path,
    open_regular,
    remove_abandoned,
    write_json,
    write_text,
    write_with,
)


def test_a_file_appears_at_the_end_of_the_block(tmp_path):
    target = tmp_path / "a.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert not target.exists()
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_in_the_block_passes_and_leaves_the_old_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def save(temporary):
        temporary.write_text("half")
        raise KeyError

    with pytest.raises(KeyError):
        write_with(tmp_path / "a.txt", save)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a.txt"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "Free some disk space and run again."), (errno.EIO, "Check the folder and its disk.")],
)
def test_a_failing_disk_is_a_machine_error(tmp_path, number, hint):
    with pytest.raises(MachineError) as caught, atomic_path(tmp_path / "a.txt"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"{tmp_path / 'a.txt'}: could not be written ({os.strerror(number)}). {hint}"
    assert list(tmp_path.iterdir()) == []


def test_a_failing_sync_is_a_machine_error(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="No space left on device"):
        write_text(tmp_path / "a.txt", "x")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_other_files_pass(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        (tmp_path / "absent.csv").read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(MachineError, match=r"x/a\.txt: cannot write here \(No such file or directory\)\. Check that"):
        write_text(tmp_path / "x" / "a.txt", "x")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_folders_and_devices_are_not_replaced(tmp_path, kind):
    target = tmp_path / "a"
    (os.mkdir if kind == "folder" else os.mkfifo)(target)
    with pytest.raises(InputError, match="a: a folder or a device; expected the name of a file"):
        write_text(target, "x")
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"n: cannot be a file \(File name too long\); expected the name of a file"):
        write_text(tmp_path / ("n" * 256), "x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "a: no such file; expected a table"),
        (os.mkdir, "a: is a folder; expected a table"),
        (os.mkfifo, "a: not a regular file; expected a table"),
        (lambda path: path.symlink_to("/dev/zero"), "a: not a regular file; expected a table"),
        (
            lambda path: path.symlink_to(path),
            r"a: cannot be read \(Too many levels of symbolic links\); expected a table",
        ),
    ],
    ids=["nothing", "folder", "pipe", "device", "loop"],
)
def test_only_regular_files_are_opened(tmp_path, make, message):
    make(tmp_path / "a")
    with pytest.raises(InputError, match=message):
        open_regular(tmp_path / "a", "a table")


def test_a_link_is_followed_or_refused(tmp_path):
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"x"
    with pytest.raises(InputError, match="link: a symbolic link; expected a file"):
        open_regular(tmp_path / "link", follow=False)


def test_a_link_is_replaced_or_keeps_pointing_to_its_file(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_path(Output(tmp_path / "link")) as temporary:
        temporary.write_text("x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"
    write_text(tmp_path / "link", "y")
    assert not (tmp_path / "link").is_symlink()
    assert ((tmp_path / "link").read_text(), (tmp_path / "real").read_text()) == ("y", "x")


def killed_while_writing(path, output=False):
    """Start a process that writes to `path` and kill it there; return the temporary file that it leaves."""
    code = (
        "import sys, os, signal; from pathlib import Path; from gcnbatch.fileio import Output, atomic_path\n"
        f"with atomic_path({'Output' if output else ''}(Path(sys.argv[1]))) as temporary:\n"
        " temporary.write_text('x')\n"
        " os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -signal.SIGKILL
    (left,) = path.parent.glob(".*.tmp")
    return left


def test_what_a_killed_process_has_left_is_removed_by_the_next_write(tmp_path):
    left = killed_while_writing(tmp_path / "a.txt")
    write_text(tmp_path / "b.txt", "x")
    assert left.exists()  # it may be another's
    write_text(tmp_path / "a.txt", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_only_abandoned_files_are_removed(tmp_path):
    killed_while_writing(tmp_path / "a.txt")
    mine = ["..tmp", ".a.tmp", "a.0123456789ab.tmp", ".a.0123456789AB.tmp", ".a.0123456789abc.tmp"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".folder.0123456789ab.tmp").mkdir()
    (tmp_path / ".link.0123456789ab.tmp").symlink_to(tmp_path / ".a.tmp")
    with atomic_path(tmp_path / "b.txt") as in_use:
        remove_abandoned(tmp_path)
        assert in_use.exists()
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {*mine, "b.txt", ".folder.0123456789ab.tmp", ".link.0123456789ab.tmp"}


def test_a_file_taken_for_abandoned_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, removed = fcntl.flock, []

    def flock(descriptor, how):
        if not removed:
            removed.extend(tmp_path.glob(".*.tmp"))
            removed[0].unlink()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    write_text(tmp_path / "a.txt", "x")
    assert (tmp_path / "a.txt").read_text() == "x"
    assert len(removed) == 1


def test_only_one_process_writes_an_output(tmp_path):
    out = tmp_path / "a.h5"
    left = killed_while_writing(out, output=True)
    with atomic_path(Output(out)) as temporary, atomic_path(Output(tmp_path / "b.h5")):
        assert temporary == left
        temporary.write_text("first")
        message = r"a\.h5: another process writes it; expected a file that none writes\. Wait until it ends, or choose"
        with pytest.raises(InputError, match=message), atomic_path(Output(out)):
            pass
        assert not out.exists()
    assert out.read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "b.h5"]


def test_what_cannot_be_removed_and_a_disk_without_locks_do_not_block_an_output(tmp_path, monkeypatch):
    killed_while_writing(tmp_path / "a.h5", output=True)

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with atomic_path(Output(tmp_path / "a.h5")) as temporary:
        temporary.write_text("x")
    assert (tmp_path / "a.h5").read_text() == "x"


def test_a_file_that_got_its_name_meanwhile_is_not_taken_for_abandoned(tmp_path, monkeypatch):
    """A process ends, and another one begins, between opening the old temporary file and locking it."""
    left = killed_while_writing(tmp_path / "a.h5", output=True)
    real = fcntl.flock

    def flock(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", real)
        left.rename(tmp_path / "a.h5")
        left.write_text("next")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    remove_abandoned(tmp_path)
    assert left.read_text() == "next"


def test_permissions_follow_the_umask_and_long_names_work(tmp_path):
    old = os.umask(0o027)
    try:
        write_text(tmp_path / ("n" * 250), "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / ("n" * 250)).stat().st_mode) == 0o640


def test_json_is_plain_and_refuses_nan(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, None]}


def test_bytes_of_a_path_that_are_not_utf8_become_escape_sequences(tmp_path):
    write_text(tmp_path / "c.toml", "path = d\udce4.h5")
    assert (tmp_path / "c.toml").read_text(encoding="utf-8") == "path = d\\udce4.h5"


def test_write_with_passes_the_temporary_name(tmp_path):
    write_with(tmp_path / "a.bin", lambda path: path.write_bytes(b"x"))
    assert (tmp_path / "a.bin").read_bytes() == b"x"


def test_what_is_appended_is_in_the_file_at_once(tmp_path):
    file = AppendedFile(tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    for number in range(3):
        file.append(b"row\n" * number)
    assert (tmp_path / "rows").read_bytes() == b"row\n" * 3
    file.close()
    file.append(b"again")
    assert (tmp_path / "rows").read_bytes() == b"row\n" * 3 + b"again"
    file.close()
    file.close()
