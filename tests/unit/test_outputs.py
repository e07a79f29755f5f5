"""Files that the user names for writing: never over an input, a result or something of another kind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import h5py
import pytest

import gcnbatch
from gcnbatch import outputs
from gcnbatch.data import khop
from gcnbatch.data.importers.plain_csv import import_csv
from gcnbatch.data.outputs import output_path
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.options.datasets import HopOptions
from gcnbatch.outputs import Kind, begins_with
from tests.builders import build_graphset

NOTE = Kind("a note", begins_with(b"note"), (".txt",))


def refused(path: Path, message: str, *reads: Path) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        outputs.check(path, NOTE, reads)


def test_a_new_file_and_an_old_one_of_the_same_kind_may_be_written(tmp_path: Path) -> None:
    out = tmp_path / "a.TXT"
    for content in (None, b"note 1", b""):
        if content is not None:
            out.write_bytes(content)
        assert outputs.check(out, NOTE, [tmp_path / "missing"]).path == out
    (tmp_path / "link.txt").symlink_to(tmp_path / "nothing.txt")
    assert outputs.check(tmp_path / "link.txt", NOTE).path == tmp_path / "link.txt"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: path.write_text("another"),
            "a.txt: something else is there; expected a new file, or a note",
        ),
        (os.mkdir, "a.txt: is a folder; expected a file name such as new.txt"),
        (os.mkfifo, "a.txt: not a regular file; expected the name of a file"),
        (lambda path: path.symlink_to("/dev/null"), "a.txt: not a regular file"),
        (lambda path: path.symlink_to(path), "a.txt: cannot be a file (Too many levels of symbolic links)"),
    ],
    ids=["another kind", "folder", "pipe", "device", "loop"],
)
def test_what_is_there_and_no_file_of_the_kind_is_refused(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "a.txt")
    refused(tmp_path / "a.txt", message)


def test_names_and_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "a.md", "a.md: unknown ending; expected .txt")
    refused(tmp_path / "none" / "a.txt", "Make the folder first.")
    refused(tmp_path / ("n" * 300 + ".txt"), "cannot be a file (File name too long)")


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
@pytest.mark.parametrize("in_folder", [False, True])
def test_an_input_is_never_overwritten(tmp_path: Path, link, in_folder: bool) -> None:
    folder = tmp_path / "inputs" / "deep"
    folder.mkdir(parents=True)
    source = out = folder / "a.txt"
    source.write_bytes(b"note")
    if link:
        out = tmp_path / "b.txt"
        link(source, out)
    read = tmp_path / "inputs" if in_folder else source
    refused(out, f"the same file as the input {source}; expected another file", read)
    (tmp_path / "alias").symlink_to(tmp_path / "inputs")
    refused(tmp_path / "alias" / "deep" / "a.txt", "the same file as the input", read)


@pytest.mark.parametrize("marks", [["data.sha256", "env.json"], ["benchmark.json"], ["best.safetensors"]])
def test_a_file_of_results_is_never_overwritten(tmp_path: Path, marks: list[str]) -> None:
    (tmp_path / "run" / "fold1").mkdir(parents=True)
    for mark in marks:
        (tmp_path / "run" / mark).touch()
    for out in (tmp_path / "run" / "a.txt", tmp_path / "run" / "fold1" / "a.txt"):
        assert outputs.check(out, NOTE).path == out
        out.write_bytes(b"note")
        refused(out, f"a file of the results in {tmp_path / 'run'}; expected another file")
    (tmp_path / "link.txt").symlink_to(tmp_path / "run" / "a.txt")
    refused(tmp_path / "link.txt", "a file of the results in")


def test_a_second_name_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"note 1")
    outputs.check_beside(tmp_path / "a.txt", NOTE)
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    with pytest.raises(InputError, match=r"b\.txt: a file that has another name, too; expected a free name"):
        outputs.check_beside(tmp_path / "b.txt", NOTE)


def test_only_data_sets_of_this_format_are_replaced(tmp_path: Path) -> None:
    graphs = build_graphset(3)
    path = tmp_path / "set.h5"
    for _ in range(2):
        gcnbatch.write(path, graphs)
    for name, content in (("x", b"mine"), ("cut", path.read_bytes()[:200])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"output .*{name}: something else is there; expected a new file"):
            gcnbatch.write(tmp_path / name, graphs)
        assert (tmp_path / name).read_bytes() == content
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.attrs["format"] = "another"
    with pytest.raises(InputError, match=r"other\.h5: something else is there"):
        gcnbatch.write(tmp_path / "other.h5", graphs)
    with pytest.raises(InputError, match=r"output .*a\.csv: unknown ending; expected \.h5 or \.hdf5"):
        output_path(tmp_path / "a.csv")


def test_khop_refuses_its_own_input(tmp_path: Path) -> None:
    path = tmp_path / "set.h5"
    write_graphset(path, build_graphset(3))
    before = path.read_bytes()
    with Dataset(path) as dataset, pytest.raises(InputError, match="the same file as the input"):
        khop.write(dataset, path, HopOptions(hops=2, mode="channels"), products=None)  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_tables_named_like_data_sets_are_not_overwritten(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.h5"
    nodes.write_text("node,label\na,0\nb,1\n")
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\na,b\n")
    with pytest.raises(InputError, match="the same file as the input"):
        import_csv(nodes, edges=edges, nodes=nodes, node_targets=["label"])


def test_a_file_beside_an_output_may_go_while_it_is_read(tmp_path: Path) -> None:
    """As the journal of a prediction that another process has just finished."""
    path = tmp_path / "rows.csv.partial.json"

    def is_one(path: Path) -> bool:
        path.unlink()
        return NOTE.is_one(path)

    path.write_text("note", encoding="utf-8")
    outputs.check_beside(path, Kind("a note", is_one))
    assert not path.exists()
