"""Molecules from CSV: stored arrays, detected columns, refused tables; the featuriser for predictions."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import gcnbatch
from gcnbatch.data import featurizer, guard
from gcnbatch.data import molecule_graphs as molecules
from gcnbatch.data.atom_features import FEATURE_NAMES, SYMBOLS
from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.featurizer_options import BOND_CHANNELS
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.splits import SplitRows
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError, InputError, MachineError
from gcnbatch.workers import pool
from tests.builders import build_graphset

PLAIN = FeaturizerOptions()
ETHANOL_AND_BENZENE = "mol_id,smiles,toxic,active\nA,CCO,1,\nB,c1ccccc1,0,1\n"


def write(folder: Path, text: str | bytes, name: str = "molecules.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def converted(folder: Path, text: str | bytes, options: FeaturizerOptions = PLAIN, **more: object) -> GraphSet:
    out = folder / "out.h5"
    import_smiles(write(folder, text), out, options, processes=1, **more)  # type: ignore[arg-type]
    with Dataset(out) as dataset:
        return dataset.load()


def adjacency(graphs: GraphSet, graph: int, channel: int = 0) -> np.ndarray:
    size = int(np.diff(graphs.node_ptr)[graph])
    matrix = np.zeros((size, size))
    rows = slice(*graphs.edge_ptr[graph : graph + 2])
    here = graphs.channel[rows] == channel
    weight = np.ones(graphs.n_edges) if graphs.weight is None else graphs.weight
    np.add.at(matrix, (graphs.dst[rows][here], graphs.src[rows][here]), weight[rows][here])
    return matrix


def features(graphs: GraphSet, node: int) -> dict[str, int]:
    return {name: int(value) for name, value in zip(FEATURE_NAMES, graphs.x[node], strict=True) if value}


# ------------------------------------------------------------------------------------------------ what is stored


@pytest.mark.usefixtures("rows_in_forks")
def test_atoms_bonds_targets_and_ids_of_two_molecules(tmp_path: Path) -> None:
    graphs = converted(tmp_path, ETHANOL_AND_BENZENE)
    assert graphs.ids.tolist() == ["A", "B"]
    assert graphs.header.task_names == ("toxic", "active")
    assert graphs.header.target == "binary"
    np.testing.assert_array_equal(graphs.y, [[1, np.nan], [0, 1]])
    assert graphs.node_ptr.tolist() == [0, 3, 9]
    np.testing.assert_array_equal(adjacency(graphs, 0), [[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    assert (adjacency(graphs, 1).sum(axis=0) == 3).all()
    assert graphs.x.dtype == np.int8
    assert len(FEATURE_NAMES) == 75
    oxygen = {"symbol=O", "degree=1", "implicit_valence=1", "hybridisation=sp3", "hydrogens=1"}
    assert features(graphs, 2) == dict.fromkeys(oxygen, 1)
    carbon = {"symbol=C", "degree=2", "implicit_valence=1", "hybridisation=sp2", "aromatic", "hydrogens=1"}
    assert features(graphs, 3) == dict.fromkeys(carbon, 1)


def test_charges_radicals_and_unknown_elements(tmp_path: Path) -> None:
    graphs = converted(tmp_path, "smiles,y\n[O-],1\n[CH3],0\n[U],1\n[N+](C)(C)(C)C,0\n")
    assert features(graphs, 0)["formal_charge"] == -1
    assert features(graphs, 1)["radical_electrons"] == 1
    assert features(graphs, 2)["symbol=other"] == 1
    charged = next(row for row in range(3, 8) if features(graphs, row).get("formal_charge") == 1)
    assert features(graphs, charged)["degree=4"] == 1


def test_bond_channels_hold_one_bond_type_each_and_self_loops_are_a_fifth(tmp_path: Path) -> None:
    graphs = converted(tmp_path, "smiles,y\nN#CC=C,1\nc1ccccc1,0\n", FeaturizerOptions(bond_channels=True))
    assert graphs.header.channel_names == (*BOND_CHANNELS, "self")
    symbols = [SYMBOLS[row.argmax()] for row in graphs.x[:4, : len(SYMBOLS)]]
    assert symbols == ["C", "C", "C", "N"]  # in the order of RDKit's canonical SMILES, C=CC#N
    pairs = [[tuple(map(int, at)) for at in np.argwhere(np.triu(adjacency(graphs, 0, c)))] for c in range(4)]
    assert pairs == [[(1, 2)], [(0, 1)], [(2, 3)], []]
    np.testing.assert_array_equal(adjacency(graphs, 0, 4), np.eye(4))
    assert adjacency(graphs, 1, 3).sum() == 12


def test_without_self_loops_only_bonds_are_stored(tmp_path: Path) -> None:
    bare = converted(tmp_path, ETHANOL_AND_BENZENE, FeaturizerOptions(self_loops=False))
    assert np.trace(adjacency(bare, 0)) == 0
    four = converted(tmp_path, ETHANOL_AND_BENZENE, FeaturizerOptions(self_loops=False, bond_channels=True))
    assert four.header.channel_names == BOND_CHANNELS


@pytest.mark.parametrize("bond_channels", [False, True])
def test_normalize_stores_symmetric_weights_per_channel(tmp_path: Path, bond_channels: bool) -> None:
    plain = converted(tmp_path, ETHANOL_AND_BENZENE, FeaturizerOptions(bond_channels))
    scaled = converted(tmp_path, ETHANOL_AND_BENZENE, FeaturizerOptions(bond_channels, normalize=True))
    assert scaled.header.normalized
    for channel in range(scaled.header.n_channels):
        for graph in range(2):
            a = adjacency(plain, graph, channel)
            root = np.zeros(len(a))
            np.divide(1.0, np.sqrt(a.sum(axis=1)), out=root, where=a.sum(axis=1) > 0)
            np.testing.assert_allclose(adjacency(scaled, graph, channel), root[:, None] * a * root, rtol=1e-6)


def test_symmetric_weights_of_directed_weighted_edges_match_dense_algebra() -> None:
    graphs = build_graphset(8, weights=True, n_channels=3, edges_per_node=4, seed=3)
    graphs = GraphSet(**{**vars(graphs), "weight": np.abs(graphs.weight)})
    scaled = GraphSet(**{**vars(graphs), "weight": symmetric_weights(graphs)})
    assert scaled.weight is not None
    assert scaled.weight.dtype == np.float32
    for graph in range(8):
        for channel in range(3):
            a = adjacency(graphs, graph, channel)
            product = a.sum(axis=1)[:, None] * a.sum(axis=0)
            expected = np.divide(a, np.sqrt(product), out=np.zeros_like(a), where=product > 0)
            np.testing.assert_allclose(adjacency(scaled, graph, channel), expected, rtol=1e-6)


def test_symmetric_weights_are_zero_where_a_sum_is_not_positive() -> None:
    graphs = build_graphset(8, weights=True, seed=3)
    graphs = GraphSet(**{**vars(graphs), "weight": np.zeros(graphs.n_edges, np.float32)})
    assert (symmetric_weights(graphs) == 0).all()


def test_groups_are_murcko_scaffolds(tmp_path: Path) -> None:
    text = "smiles,y\nCc1ccccc1,1\nCCO,0\nOCc1ccccc1,1\nC1CCCCC1,0\nCCC,1\n"
    assert converted(tmp_path, text).groups is None
    with Dataset(tmp_path / "out.h5") as dataset:
        assert dataset.header.group_kind == "murcko scaffold"
        assert SplitRows.of(dataset, "random").groups is None
        groups = SplitRows.of(dataset, "scaffold").groups
    assert groups is not None
    assert groups.tolist() == [0, 1, 0, 2, 1]
    graphs = gcnbatch.read(tmp_path / "out.h5", scaffolds=True)
    assert graphs.groups is not None
    assert graphs.groups.tolist() == [0, 1, 0, 2, 1]


def test_gzip_quotes_byte_order_mark_and_blank_lines_are_read(tmp_path: Path) -> None:
    text = '\ufeffSMILES,"Compound ID","y, log"\r\n"CCO","a ""b"", c",1.5\r\n\r\n CC ,d,\r\n'
    path = write(tmp_path, gzip.compress(text.encode()), "molecules.csv.gz")
    import_smiles(path, tmp_path / "out.h5", PLAIN, processes=1)
    with Dataset(tmp_path / "out.h5") as dataset:
        assert dataset.ids.tolist() == ['a "b", c', "d"]
        assert dataset.header.task_names == ("y, log",)
        assert dataset.header.target == "regression"
        assert dataset.header.name == "molecules"
        assert dataset.header.source["file"] == "molecules.csv.gz"
        assert len(dataset.header.source["sha256"]) == 64


def test_ids_are_stored_as_they_are(tmp_path: Path) -> None:
    graphs = converted(tmp_path, 'id,smiles,y\n"a\nb",C,1\n" c ",CC,2\n,CCC,3\n')
    assert graphs.ids.tolist() == ["a\nb", " c ", "3"]


def test_rows_are_numbered_where_there_is_no_id(tmp_path: Path) -> None:
    graphs = converted(tmp_path, "smiles,y\nC,0\nCC,1\n")
    assert graphs.ids.tolist() == ["1", "2"]


def test_multiclass_names_come_from_the_values(tmp_path: Path) -> None:
    graphs = converted(tmp_path, "smiles,kind\nC,b\nCC,a\nCCC,\nCCCC,b\n", task="multiclass", target_columns=["kind"])
    assert graphs.header.class_names == ("a", "b")
    np.testing.assert_array_equal(graphs.y, [[1], [0], [-1], [1]])
    numbered = converted(tmp_path, "smiles,kind\nC,10\nCC,9\n", task="multiclass")
    assert numbered.header.class_names == ("9", "10")


def test_task_overrides_the_detected_kind(tmp_path: Path) -> None:
    assert converted(tmp_path, "smiles,y\nC,0\nCC,1\n", task="regression").header.target == "regression"


def test_processes_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecules, "CHUNK", 4)
    rows = [f"{'C' * (row % 7 + 1)}{'(O)' * (row % 5 == 0)}N,{row % 2}" for row in range(50)]
    rows[21] = "C1CC,1"
    path = write(tmp_path, "smiles,y\n" + "\n".join(rows) + "\n")
    written = []
    for processes in (1, 3):
        out = tmp_path / f"{processes}.h5"
        summary = import_smiles(path, out, PLAIN, processes=processes, skip_bad_rows=True)
        assert (summary.graphs, summary.skipped) == (49, 1)
        written.append(out.read_bytes())
    assert written[0] == written[1]


# ------------------------------------------------------------------------------------------------ bad rows

BAD = "mol_id,smiles,y\nA,CCO,1\nB,C(C)(C)(C)(C)C,0\nD,,1\nE,c1cc,0\nF,CCCCC,1\n"


def test_bad_rows_stop_the_import_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        converted(tmp_path, BAD)
    message = str(caught.value)
    for part in ("row 2, id B, SMILES 'C(C)(C)(C)(C)C'", "valence", "--on-bad-row skip"):
        assert part in message
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["molecules.csv"]


def test_skipped_rows_are_reported_with_their_reasons(tmp_path: Path) -> None:
    graphs = converted(tmp_path, BAD, FeaturizerOptions(max_nodes=4), skip_bad_rows=True)
    assert graphs.ids.tolist() == ["A"]
    lines = (tmp_path / "out.skipped.csv").read_text().splitlines()
    assert lines[0] == "row,id,smiles,reason"
    assert lines[1].startswith("2,B,C(C)(C)(C)(C)C,")
    assert lines[2:] == ["3,D,,blank SMILES", "4,E,c1cc,not valid SMILES", '5,F,CCCCC,"5 atoms, more than 4"']


def test_text_after_a_smiles_is_an_error(tmp_path: Path) -> None:
    graphs = converted(tmp_path, "smiles,y\n CCO ,1\nCC ethane,0\nC\t1,0\nCCC,1\n", skip_bad_rows=True)
    assert graphs.n_graphs == 2
    reasons = [line.rpartition(",")[2] for line in (tmp_path / "out.skipped.csv").read_text().splitlines()[1:]]
    assert reasons == ["a blank inside the SMILES"] * 2


def test_a_molecule_over_the_limit_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 1.*5 atoms, more than 4; expected at most 4 atoms \(--max-nodes\)"):
        converted(tmp_path, "smiles,y\nCCCCC,1\nC,0\n", FeaturizerOptions(max_nodes=4))


def test_all_bad_rows_are_counted_and_the_first_five_shown(tmp_path: Path) -> None:
    text = "smiles,y\nC,1\n" + "".join(f"x{row},0\n" for row in range(7))
    with pytest.raises(InputError, match=r"7 of 8 rows give no graph: row 2, SMILES 'x0'.*'x4': not valid.*and 2 more"):
        converted(tmp_path, text)


def test_an_import_without_any_valid_molecule_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected at least one molecule that gives a graph"):
        converted(tmp_path, "smiles,y\nxx,1\nc1cc,0\n", skip_bad_rows=True)
    assert not (tmp_path / "out.h5").exists()


# ------------------------------------------------------------------------------------------------ bad tables

TABLES = {
    "empty": (b"", {}, "empty file; expected a CSV table"),
    "header only": (b"smiles,y\n", {}, "no row below the header line"),
    "not UTF-8": (b"smiles,y\n\xff\xfe,1\n", {}, "byte 0xff is not UTF-8"),
    "no smiles": (
        b"smile,y\nC,1\n",
        {},
        "no column of SMILES; there are 'smile', 'y'. Name it with --smiles-column, or the separator with --delimiter.",
    ),
    "one column": (b"y\n1\n", {}, "no column of SMILES; there is 'y'. Name it with --smiles-column"),
    "the column of SMILES": (
        b"smiles,y\nC,1\n",
        {"target_columns": ["smiles"]},
        "--target-columns: 'smiles' is the column of SMILES; expected another column",
    ),
    "the column of ids": (
        b"smiles,id,y\nC,a,1\n",
        {"feature_columns": ["id"]},
        "--feature-columns: 'id' is the column of ids; expected another column",
    ),
    "two smiles": (
        b"smiles,SMILES\nC,N\n",
        {},
        "several columns of SMILES: 'smiles', 'SMILES'; expected one. Name it with --smiles-column.",
    ),
    "wrong smiles": (
        b"smi,y\nC,1\n",
        {"smiles_column": "smie"},
        "no column 'smie'; expected 'smi', 'y'. Did you mean 'smi'?",
    ),
    "wrong id": (
        b"smiles,name,y\nC,a,1\n",
        {"id_column": "nam"},
        "no column 'nam'; expected 'smiles', 'name', 'y'. Did",
    ),
    "id is smiles": (b"smiles,y\nC,1\n", {"id_column": "smiles"}, "'smiles' is the column of SMILES"),
    "wrong target": (b"smiles,toxic\nC,1\n", {"target_columns": ["toxi"]}, "no target column 'toxi'. Did you mean"),
    "target twice": (b"smiles,t\nC,1\n", {"target_columns": ["t", "t"]}, "'t' twice"),
    "target unnamed": (b"smiles,t\nC,1\n", {"target_columns": []}, "--target-columns: no name"),
    "no target": (
        b"smiles,note\nC,x\nCC,y\n",
        {},
        "no column that is clearly a target ('note': text with 2 different values). Name the targets with",
    ),
    "unclear": (b"smiles,mass,logp\nC,16.0,1.1\n", {}, "not clear which of the columns are targets ('mass', 'logp')"),
    "mixed": (b"smiles,IC50\nC,1\nCC,5-10\nN,2\n", {}, "row 2, column 'IC50': '5-10'; expected a finite number"),
    "wrong split": (b"smiles,y\nC,1\n", {"split_column": "part"}, "no column 'part'. Known: y. See --split-column"),
    "split is target": (
        b"smiles,y\nC,1\n",
        {"split_column": "y", "target_columns": ["y"]},
        "--split-column: 'y' is a target",
    ),
    "both targets and none": (
        b"smiles,y\nC,1\n",
        {"no_targets": True, "target_columns": ["y"]},
        "--no-targets: given with --target-columns",
    ),
    "kinds": (
        b"smiles,a,b\nC,yes,1.5\nN,no,2\n",
        {"target_columns": ["a", "b"]},
        "targets of different kinds or several columns of classes: 'a' binary, 'b' regression",
    ),
    "many labels": (
        b"smiles,a\nC,x\nN,y\nO,z\n",
        {"target_columns": ["a"], "task": "binary"},
        "column 'a': 3 different labels; expected two labels of a known meaning. Use --task multiclass",
    ),
    "one label": (b"smiles,a\nC,x\nN,x\n", {"target_columns": ["a"]}, "column 'a': the same text in every row"),
    "labels as numbers": (
        b"smiles,a\nC,\nN,yes\nN,no\n",
        {"target_columns": ["a"], "task": "regression"},
        "row 2, column 'a': 'yes'; expected a finite number",
    ),
    "blank target": (b"smiles,y\nC,\n", {"target_columns": ["y"]}, "column 'y': no value in any row"),
    "no number": (
        b"smiles,y\nC,1\nC,high\n",
        {"target_columns": ["y"]},
        "row 2, column 'y': 'high'; expected a finite",
    ),
    "infinite": (b"smiles,y\nC,inf\n", {"target_columns": ["y"]}, "row 1, column 'y': 'inf'"),
    "too large": (b"smiles,y\nC,2\nC,1e309\n", {}, "row 2, column 'y': '1e309'; expected a finite number"),
    "not binary": (b"smiles,y\nC,0\nC,2\n", {"task": "binary"}, "row 2, column 'y': 2; expected 0, 1 or blank"),
    "one class": (b"smiles,y\nC,1\n", {"task": "multiclass"}, "only class '1'; expected at least 2 classes"),
    "two class columns": (
        b"smiles,a,b\nC,1,0\n",
        {"task": "multiclass", "target_columns": ["a", "b"]},
        "2 target columns for --task multiclass",
    ),
    "short row": (b"smiles,y\nC,1\nC\n", {}, "row 2: 1 field; expected 2"),
    "column twice": (b"smiles,y,y\nC,1,1\n", {}, "two columns are named 'y'"),
    "target with a mark of direction": (
        "smiles,y\u202e\nC,1\n".encode(),
        {},
        r"s.csv, column 'y\u202e': invisible characters in its name; expected printable ones. Rename the column.",
    ),
    "label with an invisible character": (
        "smiles,y\nC,low\u200b\nCC,high\nCCC,low\u200b\nCCCC,high\n".encode(),
        {},
        r"s.csv, column 'y': invisible characters in label 'low\u200b'; expected printable ones",
    ),
    "feature with a mark of direction": (
        "smiles,y,\u202en\nC,1,1\n".encode(),
        {"target_columns": ["y"], "feature_columns": ["\u202en"]},
        r"molecules.csv, column '\u202en': invisible characters in its name",
    ),
    "nameless column": (b"smiles,\nC,1\n", {}, "column 2 has no name"),
    "bad quoting": (b'smiles,y\n"C"C,1\n', {}, "line 2"),
}


@pytest.mark.parametrize("case", TABLES)
def test_bad_tables_get_one_clear_line(tmp_path: Path, case: str) -> None:
    text, options, message = TABLES[case]
    with pytest.raises(InputError) as caught:
        converted(tmp_path, text, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["molecules.csv"]


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        import_smiles(tmp_path / "none.csv", tmp_path / "out.h5", PLAIN)
    with pytest.raises(InputError, match="is a folder; expected a readable file"):
        import_smiles(tmp_path, tmp_path / "out.h5", PLAIN)
    with pytest.raises(InputError, match=r"no folder .*Make the folder first"):
        import_smiles(write(tmp_path, ETHANOL_AND_BENZENE), tmp_path / "none" / "out.h5", PLAIN)
    with pytest.raises(InputError, match=r"is a folder; expected a file name"):
        import_smiles(write(tmp_path, ETHANOL_AND_BENZENE), tmp_path, PLAIN)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(ETHANOL_AND_BENZENE.encode() * 50)
    for broken in (data[:40], b"plain text"):
        with pytest.raises(InputError, match="damaged gzip file"):
            import_smiles(write(tmp_path, broken, "m.csv.gz"), tmp_path / "out.h5", PLAIN)


def test_without_rdkit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(MachineError, match=r"RDKit: not installed. Install it: pip install 'gcnbatch\[chem\]'"):
        load_rdkit()


@pytest.mark.usefixtures("rows_in_forks")
def test_rows_of_dead_workers_are_read_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecules, "CHUNK", 2)
    monkeypatch.setattr(pool, "_START", "import sys; sys.exit(3)")
    parts = list(molecules.featurize(["C", "CC", "x", "N", "O", "CO"], PLAIN, processes=2))
    assert [row for part in parts for row in part.rows] == [0, 1, 3, 4, 5]


# ------------------------------------------------------------------------------------------------ hostile rows

LIMITS = {
    "longer than any molecule": ("[CH3]" + "[13CH2]" * 5000, "35005 characters, more than 32000"),
    "too many atoms": ("C1" + "C" * 2000 + "1", "2001 atoms, more than 2000"),
    "an error of a page": ("c1" + "c" * 1000 + "1", "Can't kekulize mol.  Unkekulized atoms: 0 1 2 3 4"),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_molecule_over_a_limit_gets_a_short_reason(case: str) -> None:
    smiles, reason = LIMITS[case]
    (part,) = molecules.featurize(["C", smiles, "N"], PLAIN, processes=1)
    assert part.rows.tolist() == [0, 2]
    assert part.bad[0].reason.startswith(reason)
    assert len(part.bad[0].reason) <= 80


def test_explicit_hydrogens_do_not_count_and_a_larger_limit_is_kept() -> None:
    (part,) = molecules.featurize(["[H]C([H])([H])" + "C" * 1999], PLAIN, processes=1)
    assert part.rows.tolist() == [0]
    (part,) = molecules.featurize(["C" * 2500], FeaturizerOptions(max_nodes=3000), processes=1)
    assert part.node_ptr.tolist() == [0, 2500]


@pytest.mark.usefixtures("rows_in_forks")
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_row_that_crashes_rdkit_or_hangs_costs_itself(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecules, "CHUNK", 4)
    monkeypatch.setattr(guard, "SECONDS", 0.5)
    crash, hang = "C1" + "C" * 30_000 + "1", "C" * 131_000
    rows = ["C", "CC", crash, "N", "O", hang]
    parts = list(molecules.featurize(rows, FeaturizerOptions(max_nodes=0), processes=processes, scaffolds=True))
    assert [row for part in parts for row in part.rows] == [0, 1, 3, 4]
    assert [(bad.index, bad.reason) for part in parts for bad in part.bad] == [
        (2, "crashes RDKit (SIGSEGV)"),
        (5, "RDKit takes more than 0.5 s of processor time"),
    ]


def test_an_error_of_rdkits_code_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def page(text: str, *_: object, **__: object) -> object:
        raise RuntimeError("\n\n****\nPre-condition Violation\n" + text * 99 + "\nBOOST: 1_85")

    monkeypatch.setattr(featurizer, "normal_form", page)
    (part,) = molecules.featurize(["[H]C(F)(Cl)Br"], PLAIN, processes=1)
    assert part.bad[0].reason == "RDKit: Pre-condition Violation"


def test_skipped_rows_are_written_as_safe_text(tmp_path: Path) -> None:
    converted(tmp_path, "smiles,id,y\nC,a,1\nx\x1b[31m,\u202eb,0\n", skip_bad_rows=True)
    assert (tmp_path / "out.skipped.csv").read_text().splitlines()[1].startswith("2,\\u202eb,x\\x1b[31m,")


# ------------------------------------------------------------------------------------------------ predictions


def test_a_set_not_made_from_smiles_cannot_be_repeated() -> None:
    with pytest.raises(InputError, match="expected kind molecule or smiles, atom features deepchem75"):
        FeaturizerOptions.from_header(None)
    with pytest.raises(InputError, match="max_nodes: -1; expected"):
        FeaturizerOptions.from_header(PLAIN.to_header() | {"max_nodes": -1})
    with pytest.raises(InputError, match="normalize: 'yes'; expected"):
        FeaturizerOptions.from_header(PLAIN.to_header() | {"normalize": "yes"})


# ------------------------------------------------------------------------------------------------ real data


def real_data() -> Path:
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA does not point to the real data sets")
    return Path(folder)


@pytest.mark.slow
@pytest.mark.real
def test_tox21_as_published(tmp_path: Path) -> None:
    source, out = real_data() / "tox21.csv.gz", tmp_path / "tox21.h5"
    with pytest.raises(GcnbatchError, match="--on-bad-row skip"):
        import_smiles(source, out, PLAIN)
    summary = import_smiles(source, out, PLAIN, skip_bad_rows=True)
    assert (summary.graphs, summary.skipped) == (8006, 8)
    with Dataset(out) as dataset:
        assert dataset.header.target == "binary"
        assert len(dataset.header.task_names) == 12
        assert dataset.ids[0] == "TOX3021"
        assert int((np.diff(dataset.node_ptr) > 50).sum()) == 151


@pytest.mark.real
def test_delaney_as_published(tmp_path: Path) -> None:
    source, out = real_data() / "delaney-processed.csv", tmp_path / "esol.h5"
    with pytest.raises(InputError, match="--target-columns"):
        import_smiles(source, out, PLAIN)
    target = "measured log solubility in mols per litre"
    import_smiles(source, out, PLAIN, target_columns=[target], id_column="Compound ID")
    with Dataset(out) as dataset:
        assert dataset.n_graphs == 1128
        assert dataset.header.target == "regression"
        assert dataset.ids[0] == "Amigdalin"
        np.testing.assert_allclose(dataset.y[0], -0.77)
