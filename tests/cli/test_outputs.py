"""No command overwrites what it reads or what another product is: drawn over all commands and their options."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gcnbatch.data.importers.smiles import SKIPPED
from gcnbatch.data.outputs import DATASET
from gcnbatch.figures import FIGURE
from gcnbatch.onnx_export.command import PYTHON
from gcnbatch.predictions import OF_MODEL
from tests.cli.calls import (
    CALLS,
    MADE,
    PLACES,
    READ,
    RESULTS,
    RESUMED,
    TEXTS,
    WRITTEN,
    Call,
    parameters,
    refused,
    run,
    snapshot,
)
from tests.fuzz import DRAWN

FILES = [option for option, (*_, place) in PLACES.items() if place.writes_file]
FOLDERS = [option for option, (*_, place) in PLACES.items() if place.role in (MADE, RESUMED)]
# Folders that a call may write to again.
OWN = {
    "bench spgemm": ("spgemm",),
    "benchmark moleculenet": ("suite",),
    "train on": ("run",),
    "tune on": ("study",),
    "report": ("run", "forest", "study", "compared", "suite"),
}


@pytest.fixture(scope="module")
def files(place: Path) -> list[Path]:
    return sorted(path.relative_to(place) for path in place.rglob("*") if path.is_file())


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in the folder of inputs, which must stay as it is."""
    monkeypatch.chdir(place)
    before = snapshot(place)
    yield
    assert snapshot(place) == before


def test_every_path_of_every_command_is_declared() -> None:
    """An option that is new here must say whether it reads or writes; then it is drawn below."""
    declared: dict[str, set[str]] = {}
    for call in CALLS.values():
        name = max((words for words in parameters() if call.command.startswith(words)), key=len)
        declared.setdefault(name, set()).update(call.places)
    for name, found in parameters().items():
        paths = {parameter for parameter, kind in found.items() if Path in _parts(kind)}
        texts = {parameter for parameter, kind in found.items() if str in _parts(kind)} - TEXTS
        places = paths | texts
        if "paths" in places:  # the runs, then the data
            places = places - {"paths"} | {"runs", "data"}
        assert places == declared[name] - {"other"}, name
    assert set(declared) == set(parameters())


def _parts(kind: Any) -> set[Any]:
    return {kind}.union(*map(_parts, get_args(kind)))


# ------------------------------------------------------------------------------------------------ files


def kind_of(path: Path) -> str:
    """Return what a file of the inputs is, as the options name it; empty: nothing that an option writes."""
    if str(path) in WRITTEN or path.parts[0] not in RESULTS:
        return WRITTEN.get(str(path), "")
    if path.name.endswith(".skipped.csv"):
        return SKIPPED.name
    of_run = path.name == "predictions.csv" and path.parts[0] in ("run", "forest")
    return {".png": FIGURE.name, ".h5": DATASET.name}.get(path.suffix, OF_MODEL if of_run else "")


def is_read(call: Call, path: Path) -> bool:
    """Whether a call reads a file."""
    reads = [Path(place.path) for place in call.places.values() if place.role == READ]
    return any(source == path or source in path.parents for source in reads)


@st.composite
def outputs(draw: st.DrawFn, files: list[Path], option: str) -> tuple[Path, str, str, str]:
    """Draw a file that must stay, its second name's kind and ending, and which file of the option that name is."""
    name, _, place = PLACES[option]
    alike = [path for path in files if kind_of(path) == place.role]  # of these, few must stay
    path = draw(st.one_of(st.sampled_from(alike or files), st.sampled_from(files)))
    beside = draw(st.sampled_from(("", *place.beside)))
    how = draw(st.sampled_from(["copy", "hard link"] if beside else ["itself", "symbolic link", "hard link", "copy"]))
    endings = (".csv", ".jsonl") if beside.startswith("+") else place.endings
    ending = path.suffix if how == "itself" else draw(st.sampled_from(endings))
    written = {".skipped.csv": SKIPPED.name, ".py": PYTHON.name, "+.partial.json": "journal"}.get(beside, place.role)
    like = kind_of(path) == written and (written != OF_MODEL or path.suffix == ending)
    stays = not like or ending not in place.endings
    if how != "copy":
        stays = stays or is_read(CALLS[name], path)
    if how in ("itself", "symbolic link"):
        stays = stays or path.parts[0] in RESULTS
    itself = name == "data split" and str(path) == "set.h5" and how in ("itself", "symbolic link")  # it may be added to
    assume(stays and path.stat().st_size and not itself)
    return path, how, ending, beside


def check_output(
    folder: Path, contents: dict[str, bytes | str], option: str, drawn: tuple[Path, str, str, str]
) -> None:
    """Assert that a call leaves a file alone that an option names, and says why in one line.

    `contents` are those of the folder, which stay.
    """
    name, parameter, _ = PLACES[option]
    path, how, ending, beside = drawn
    with TemporaryDirectory(dir=folder.parent) as links:
        out = Path(links, f"out{ending}")
        second = out.with_suffix(beside) if beside.startswith(".") else out.with_name(f"{out.name}{beside[1:]}")
        if how == "itself":
            out = path
        else:
            {"symbolic link": os.symlink, "hard link": os.link, "copy": shutil.copy}[how](folder / path, second)
        before = snapshot(Path(links))
        refused(run(*CALLS[name].words(**{parameter: str(out)})), 2)
        assert (snapshot(Path(links)), snapshot(folder)) == (before, contents)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.slow)], ids=["a few files", "many files"])
@pytest.mark.parametrize("option", FILES)
def test_a_file_is_replaced_only_by_its_like(place: Path, files: list[Path], option: str, examples: int) -> None:
    contents = snapshot(place)

    @settings(DRAWN, max_examples=examples)
    @given(outputs(files, option))
    def drawn(case: tuple[Path, str, str, str]) -> None:
        check_output(place, contents, option, case)

    drawn()


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.h5", "o.parquet"])
def test_predictions_are_replaced_by_predictions(place: Path, tmp_path: Path, out: str) -> None:
    of_table = (
        "infer",
        str(place / "run"),
        str(place / "table.csv"),
        "-o",
        str(tmp_path / out),
        "-q",
    )
    of_set = (*of_table[:2], str(place / "set.h5"), *of_table[3:])
    for words in ((*of_table, "--keep-columns", "all"), (*of_table, "--plain"), (*of_table, "--spreadsheet"), of_set):
        assert run(*words, "--processes", "1", "--backend", "cpu").code == 0
    (tmp_path / out).write_bytes(b"")
    assert run(*of_set, "--backend", "cpu").code == 0


def test_other_outputs_are_replaced_by_their_like(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shutil.copytree(place, tmp_path / "inputs"))
    for name in ("data info", "data synth", "data import smiles", "data import csv", "bench spgemm"):
        for _ in range(2):
            assert run(*CALLS[name].words()).code == 0, name


# ------------------------------------------------------------------------------------------------ folders


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("option", FOLDERS)
def test_a_folder_of_something_else_is_left_alone(place: Path, option: str) -> None:
    name, parameter, _ = PLACES[option]
    places = [path.relative_to(place) for path in place.rglob("*")]
    places = sorted(path for path in places if path.parts[0] not in OWN.get(name, ()))
    before = snapshot(place)

    @settings(DRAWN, max_examples=5)
    @given(st.sampled_from(places))
    def drawn(path: Path) -> None:
        refused(run(*CALLS[name].words(**{parameter: str(path)})), 2)
        assert snapshot(place) == before

    drawn()


# ------------------------------------------------------------------------------------------------ standard output


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "option", [one for one in (*FILES, *FOLDERS) if one not in ("infer: out", "card: out", "select: out")]
)
def test_no_file_or_folder_is_named_like_standard_output(option: str) -> None:
    name, parameter, place = PLACES[option]
    line = refused(run(*CALLS[name].words(**{parameter: "-"})), 2)
    if place.option not in ("", "--resume"):  # others name what is there already
        assert "cannot go to standard output; expected the name of a f" in line


@pytest.mark.usefixtures("here")
def test_predictions_go_to_standard_output() -> None:
    found = run(*CALLS["infer"].words(out="-"))
    assert (found.code, found.out.count("\n"), found.out.split(",")[0]) == (0, 65, "id")
    found = run(*CALLS["select"].words(out="-"))
    assert (found.code, found.out.count("\n"), found.out.split(",")[0]) == (0, 3, "rank")


# ------------------------------------------------------------------------------------------------ messages


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("option", "path", "message"),
    [
        ("data info: plot", "set.h5", "--plot set.h5: unknown ending; expected .png"),
        (
            "data info: plot",
            "other.png",
            "--plot other.png: something else is there; expected a new file, or a figure",
        ),
        ("data info: plot", "bench/spmm.png", "--plot bench/spmm.png: a file of the results in "),
        ("infer: out", "table.csv", "output table.csv: the same file as the input table.csv; expected another file"),
        ("infer: out", "run/predictions.csv", "output run/predictions.csv: the same file as the input run/predictions"),
        (
            "infer: out",
            "set.h5",
            "output set.h5: something else is there; expected a new file, or predictions of",
        ),
        ("data split itself: path", "shards/shard-00000.h5", "output shards/shard-00000.h5: a file of the results in"),
        ("data synth: out", "nowhere/new.h5", "nowhere/new.h5: no folder '"),
        ("data synth: out", "new.txt", "output new.txt: unknown ending; expected .h5 or .hdf5"),
        ("data synth: out", "run", "run: is a folder; expected a file name such as new.h5"),
        ("compare-backends: timeline", "new/report.json", "--timeline new/report.json: a file of the report itself;"),
        (
            "train on: resume",
            "study",
            "study: the folder of a study; expected that of a run. Go on with 'gcnb",
        ),
    ],
)
def test_the_line_says_what_is_there(option: str, path: str, message: str) -> None:
    name, parameter, _ = PLACES[option]
    assert refused(run(*CALLS[name].words(**{parameter: path})), 2).startswith(f"error: {message}")
