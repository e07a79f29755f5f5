"""Folders of number files (TUDataset, OGB) with changed numbers, lines and kinds of file."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from gcnbatch.data.importers.ogb import import_ogb
from gcnbatch.data.importers.tudataset import import_tudataset
from gcnbatch.errors import InputError

TUDATASET = {
    "DS_A.txt": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "DS_graph_indicator.txt": "1\n1\n1\n3\n3\n",
    "DS_graph_labels.txt": "1\n-1\n1\n",
    "DS_node_labels.txt": "7\n5\n7\n7\n5\n",
    "DS_edge_labels.txt": "0\n0\n1\n1\n0\n0\n",
    "DS_node_attributes.txt": "0.5, 1\n1.5, 2\n0, 0\n0, 0\n0, -7\n",
}
OGB = {
    "raw/num-node-list.csv.gz": "3\n1\n2\n",
    "raw/num-edge-list.csv.gz": "2\n0\n1\n",
    "raw/edge.csv.gz": "0,1\n1,2\n0,1\n",
    "raw/node-feat.csv.gz": "5,0\n7,0\n5,1\n5,0\n7,0\n7,1\n",
    "raw/edge-feat.csv.gz": "0,9\n2,9\n0,9\n",
    "raw/graph-label.csv.gz": "0,1\n,0\n1,nan\n",
    "split/scaffold/train.csv.gz": "0\n",
    "split/scaffold/valid.csv.gz": "2\n",
    "split/scaffold/test.csv.gz": "1\n",
    "mapping/mol.csv.gz": "smiles,mol_id\nC,a\nC,b\nC,c\n",
}
FORMATS = {"tudataset": TUDATASET, "ogb": OGB}
TEXTS = st.one_of(
    st.sampled_from([-(2**63), 2**63 - 1, 2**63, 2**31, 10**20 - 1, -(10**25), 10**4000, 0, -1, 1, 2, 1000]).map(str),
    st.sampled_from(
        ["", "nan", "inf", "1e400", "0x10", "1_0", "٣", "1.5", " ", "'", "\0", "\x1b[31m", "=1", "1;2", "9" * 500]
    ),
    st.text(max_size=6),
)

Folder = dict[str, str | None]  # None: a folder in place of the file


@st.composite
def changed_folders(draw: st.DrawFn) -> tuple[str, Folder]:
    """Draw a format and its files with one or two changes."""
    kind = draw(st.sampled_from(sorted(FORMATS)))
    files: Folder = dict(FORMATS[kind])
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(files)))
        text = files[name]
        if text is None or draw(st.integers(0, 5)) == 0:
            files[name] = None
            continue
        lines = [line.split(",") for line in text.split("\n")]
        line = draw(st.sampled_from(lines))
        line[draw(st.integers(0, len(line) - 1))] = draw(TEXTS)
        files[name] = "\n".join(map(",".join, lines))
    return kind, files


def verdict(kind: str, files: Folder) -> str:
    """Import the folder; return "read" or the line that refuses it."""
    folder = Path(tempfile.mkdtemp())
    try:
        for name, text in files.items():
            path = folder / "source" / name
            (path if text is None else path.parent).mkdir(parents=True, exist_ok=True)
            if text is not None:
                raw = text.encode("utf-8", "surrogatepass")
                path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
        run = import_tudataset if kind == "tudataset" else import_ogb
        try:
            run(folder / "source", folder / "out.h5")
        except InputError as error:
            line = str(error).replace(str(folder), "")
            assert "\n" not in line
            assert line.isprintable()
            assert len(line) < 400, f"{len(line)} characters"
            assert sorted(path.name for path in folder.iterdir()) == ["source"]
            return line
        return "read"
    finally:
        shutil.rmtree(folder)
