"""Paths of new data sets: never over an input, always with a known ending."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gcnbatch.data import khop
from gcnbatch.data.importers.plain_csv import import_csv
from gcnbatch.data.outputs import output_path
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import build_graphset


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"output .*a\.csv: unknown ending; expected \.h5 or \.hdf5"):
        output_path(tmp_path / "a.csv")
    assert output_path(tmp_path / "a.HDF5") == tmp_path / "a.HDF5"


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_input_is_never_overwritten(tmp_path: Path, link) -> None:
    source = tmp_path / "a.h5"
    source.write_bytes(b"data")
    out = source
    if link:
        out = tmp_path / "b.h5"
        link(source, out)
    with pytest.raises(InputError, match=r"the same file as the input .*a\.h5; expected another file"):
        output_path(out, [source])


def test_khop_refuses_its_own_input(tmp_path: Path) -> None:
    path = tmp_path / "set.h5"
    write_graphset(path, build_graphset(3))
    before = path.read_bytes()
    with Dataset(path) as dataset, pytest.raises(InputError, match="the same file as the input"):
        khop.write(dataset, path, khop.Options(2, "channels"), products=None)  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_tables_named_like_data_sets_are_not_overwritten(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.h5"
    nodes.write_text("node,label\na,0\nb,1\n")
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\na,b\n")
    with pytest.raises(InputError, match="the same file as the input"):
        import_csv(nodes, edges=edges, nodes=nodes, node_targets=["label"])
