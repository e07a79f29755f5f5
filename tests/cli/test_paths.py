"""Any path in any option is taken, or refused on one line: drawn over all commands, and in broken surroundings."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch import figures
from tests.cli.calls import CALLS, PICTURE, PLACES, READ, RESUMED, Place, refused, run, snapshot
from tests.fuzz import DRAWN
from tests.training.runs import command, environment, lighten

TAKING = [name for name, call in CALLS.items() if call.places]
BYTES = "\udcff"  # a byte that is not UTF-8, as Python has it in a path


def named(name: str) -> Callable[[Place, Path], str]:
    """Return a path of this name: a copy of an input, or nothing yet."""

    def make(place: Place, inputs: Path) -> str:
        source = inputs / place.path
        path = Path(f"{name}{source.suffix}")
        if place.role in (READ, RESUMED):
            shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
        return str(path)

    return make


def below(*levels: str) -> Callable[[Place, Path], str]:
    return lambda place, inputs: "/".join((*levels, f"x{Path(place.path).suffix}"))


def linked(target: str) -> Callable[[Place, Path], str]:
    def make(place: Place, inputs: Path) -> str:
        path = f"link{Path(place.path).suffix}"
        os.symlink(target.format(path), path)
        return path

    return make


def made(make: Callable[[str], object]) -> Callable[[Place, Path], str]:
    def path_of(place: Place, inputs: Path) -> str:
        path = f"made{Path(place.path).suffix}"
        make(path)
        return path

    return path_of


ODD: dict[str, Callable[[Place, Path], str]] = {
    "nothing": below("no", "such"),
    "an empty text": lambda place, inputs: "",
    "this folder": lambda place, inputs: ".",
    "bytes that are not UTF-8": named(f"bad{BYTES}"),
    "a folder that is not UTF-8": below(f"bad{BYTES}", "x"),
    "a line break": named("a\nb"),
    "an escape sequence": named("\x1b[31mred"),
    "a long name": below("n" * 300),
    "a deep path": below(*"a" * 1500),
    "a long path": below(*["n" * 200] * 30),
    "below a file": below("file"),
    "a loop": linked("{}"),
    "a dead link": linked("nowhere"),
    "a folder": made(os.mkdir),
    "an empty file": made(lambda path: Path(path).touch()),
    "a text": made(lambda path: Path(path).write_text("mine\n")),
    "a pipe": made(os.mkfifo),
    **{name: lambda place, inputs, name=name: name for name in ("/dev/null", "/dev/zero", "/dev/full")},
}


@contextmanager
def empty_folder() -> Iterator[Path]:
    """Work in an empty folder, whose tree may become too deep for `shutil.rmtree`."""
    before, folder = Path.cwd(), Path(mkdtemp())
    os.chdir(folder)
    try:
        Path("file").touch()
        yield folder
    finally:
        os.chdir(before)
        try:
            shutil.rmtree(folder)
        except RecursionError:
            subprocess.run(["rm", "-rf", folder], check=True)


def check_path(inputs: Path, option: str, odd: str) -> None:
    """Assert that a call takes an odd path, or refuses it on one line and leaves nothing.

    Figures, which take most of a small run's time, are drawn if their folder has the odd path.
    """
    name, parameter, place = PLACES[option]
    with empty_folder() as folder, pytest.MonkeyPatch.context() as patch:
        if parameter != "out":
            lighten(patch)
            patch.setattr(figures, "png", lambda figure: PICTURE)
        path = ODD[odd](place, inputs)
        before = snapshot(folder)
        found = run(*CALLS[name].words(inputs, **{parameter: path}))
        assert found.code in (0, 2, 3), found
        if found.code:
            line = refused(found, 2, 3)
            assert line.isprintable(), line
            assert snapshot(folder) == before


@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.slow)], ids=["a few paths", "many paths"])
@pytest.mark.parametrize("name", TAKING)
def test_a_path_is_taken_or_refused_on_one_line(place: Path, name: str, examples: int) -> None:
    options = [option for option, about in PLACES.items() if about[0] == name]

    @settings(DRAWN, max_examples=examples)
    @given(st.sampled_from(options), st.sampled_from(sorted(ODD)))
    def drawn(option: str, odd: str) -> None:
        check_path(place, option, odd)

    drawn()


@pytest.mark.parametrize(
    ("option", "odd", "message"),
    [
        ("train: data", "bytes that are not UTF-8", r"data.path: 'bad\udcff.h5'; expected text in UTF-8 without NUL "),
        ("tune: data", "bytes that are not UTF-8", r"data.path: 'bad\udcff.h5'; expected text in UTF-8 without NUL "),
        ("train: config", "a pipe", "error: made.toml: not a regular file; expected a TOML configuration"),
        ("bench spmm: compare", "/dev/zero", "error: /dev/zero: not a regular file; expected rows.jsonl of an earlier"),
        ("bench spgemm: files", "a pipe", "error: made.mtx: not a regular file; expected a Matrix Market file"),
        ("data check: path", "a long path", "too long; expected at most 4095 bytes"),
        ("data check: path", "a long name", "too long for a file; expected at most 255 bytes"),
    ],
)
def test_the_line_says_what_is_wrong_with_a_path(place: Path, option: str, odd: str, message: str) -> None:
    name, parameter, about = PLACES[option]
    with empty_folder():
        found = run(*CALLS[name].words(place, **{parameter: ODD[odd](about, place)}))
    assert message in refused(found, 2)


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("train", "tune", "compare-runs", "baseline")]


@pytest.mark.parametrize("name", ["explain", *_SLOW])
def test_results_are_made_at_any_depth(place: Path, name: str) -> None:
    with empty_folder():
        deep = "/".join("a" * 1500)
        assert run(*CALLS[name].words(place, out=deep)).code == 0
        assert os.listdir(deep)


def test_a_run_in_a_folder_that_is_not_utf8_goes_on(place: Path) -> None:
    with empty_folder():
        os.mkdir(f"bad{BYTES}")
        os.chdir(f"bad{BYTES}")
        words = ("--epochs", "1", "-q", "--backend", "cpu", "--set", "model.widths=[4]", "-o", "run")
        assert run("train", *words).code == 0  # the quickstart, whose data are in the folder of the run
        assert run("train", "--resume", "run", "--epochs", "2", "-q").code == 0
        assert run("report", "run").code == 0
        shutil.copy(place / "set.h5", "set.h5")
        line = refused(run("train", "--data", "set.h5", *words[:-1], "other"), 2)
        assert "expected a path in UTF-8. Rename that folder." in line
        assert not os.path.exists("other")


def test_a_folder_that_is_gone_is_one_line(place: Path) -> None:
    with empty_folder() as folder:
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir(folder / "gone")
        ended = [run(*CALLS[name].words(place)) for name in ("train", "data info", "infer", "data synth", "report")]
    lines = [refused(found, 2) for found in ended if found.code]
    assert "error: the working folder: it was removed. Change to another folder." in lines


@pytest.mark.parametrize("name", ["data info", "train"])
def test_a_backend_of_pyplot_that_does_not_exist_disturbs_no_figure(place: Path, name: str) -> None:
    with empty_folder():
        words = command(*CALLS[name].words(place))
        broken = {**environment(), "MPLBACKEND": "nope"}
        done = subprocess.run(words, capture_output=True, text=True, env=broken, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert os.path.exists("new.png") or os.path.exists("new/learning_curves.png")
