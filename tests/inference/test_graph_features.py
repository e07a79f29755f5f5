"""Features of whole molecules in predictions: computed again from SMILES to the bit, read from columns, refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data import descriptors, molecule_features
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.molecule_features import graph_feature_names
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.inference import columns
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.inputs import open_input
from gcnbatch.inference.models import load_models
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.run_report.figures import training_facts
from gcnbatch.run_report.record import read
from gcnbatch.training.finished import read_split
from tests.inference.described import OPTIONS, converted
from tests.inference.runs import molecule_table, numbers, read_rows, train_on

TASKS = ["even", "third"]


def test_predictions_from_smiles_read_the_arrays_of_the_data_set_to_the_bit(described) -> None:
    run, table, data = described
    with Dataset(data) as dataset, open_input(table, load_models([run], print), CsvOptions()) as source:
        (part,) = source.parts
        stored = dataset.load()
    assert isinstance(part.data, GraphSet)
    assert stored.graph_features is not None
    assert stored.graph_features.shape == (40, 1 + len(graph_feature_names(OPTIONS)))
    assert np.isnan(stored.graph_features.measured[::5, 0]).all()
    for name in ("x", "channel", "src", "graph_features"):
        np.testing.assert_array_equal(getattr(part.data, name), getattr(stored, name), err_msg=name)


def test_table_and_data_set_give_equal_predictions_and_features_matter(described, tmp_path: Path) -> None:
    run, table, data = described
    other = tmp_path / "other.csv"
    other.write_text(re.sub(r",[0-9.]*\n", ",0.001\n", table.read_text()))
    for name, source in (("table", table), ("set", data), ("other", other)):
        infer([run], source, str(tmp_path / f"{name}.out.csv"), quiet=True)
    one, same, moved = (numbers(read_rows(tmp_path / f"{name}.out.csv"), TASKS) for name in ("table", "set", "other"))
    np.testing.assert_allclose(one, same, rtol=1e-6)
    assert np.abs(moved - one).max() > 1e-4


def test_a_cell_that_is_no_number_costs_its_row(described, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("mol_id,structure,assay\na,CCO,1.5\nb,CCO,much\nc,C(,1\nd,CCO,\ne,CCN,1e99\n")
    assert infer([described[0]], table, str(tmp_path / "out.csv"), quiet=True).unreadable == 3
    found = {name: row["error"] for name, row in read_rows(tmp_path / "out.csv").items()}
    assert found == {
        "a": "",
        "b": "column 'assay': 'much' is not a number of 32 bits",
        "c": "not valid SMILES",
        "d": "",
        "e": "column 'assay': '1e99' is not a number of 32 bits",
    }


def test_missing_and_other_features_are_refused_by_name(described, tmp_path: Path, monkeypatch) -> None:
    run, table, _ = described
    bare = molecule_table(tmp_path / "bare.csv")
    plain = converted(bare, tmp_path / "plain.h5", replace(OPTIONS, descriptors="", fingerprints=()), ())
    wider = converted(table, tmp_path / "wider.h5", replace(OPTIONS, radius=2))
    names = 1 + len(graph_feature_names(OPTIONS))
    for source, message in (
        (bare, r"bare\.csv: no feature column 'assay'"),
        (plain, rf"plain\.h5: graph features: none; expected {names} \(assay, MaxAbs.*, as in .*run"),
        (wider, r"wider\.h5: graph features: 'morgan2=0' at place \d+; expected 'morgan1=0', as in .*run"),
    ):
        with pytest.raises(InputError, match=message):
            infer([run], source, str(tmp_path / "no.csv"), quiet=True)
    monkeypatch.setattr(descriptors, "_functions", lambda: (("Other", len),))
    with pytest.raises(InputError, match=r"RDKit \S+ computes 33; expected those of the run, of RDKit \S+\. Install"):
        infer([run], table, str(tmp_path / "no.csv"), quiet=True)
    assert not (tmp_path / "no.csv").exists()


def test_another_version_of_rdkit_is_told(described, tmp_path: Path, monkeypatch) -> None:
    run, table, _ = described
    monkeypatch.setattr(columns, "rdkit_version", lambda: "1999.1")
    said: list[str] = []
    infer([run], table, str(tmp_path / "out.csv"), quiet=True, say=said.append)
    made = molecule_features.rdkit_version()
    line = f"descriptors may differ: those of the training set are of RDKit {made}, these of RDKit 1999.1"
    assert line in said


def test_a_run_that_leaves_features_out_reads_molecules_without_them(described, tmp_path: Path) -> None:
    run = train_on(described[2], tmp_path / "run", model={"graph_features": "off"})
    bare = molecule_table(tmp_path / "bare.csv")
    assert infer([run], bare, str(tmp_path / "out.csv"), quiet=True).unreadable == 0
    with pytest.raises(InputError, match="no feature column 'assay'"):  # of the ensemble's other model
        infer([run, described[0]], bare, str(tmp_path / "no.csv"), quiet=True)


def test_applicability_and_the_model_card_know_of_features(described, tmp_path: Path) -> None:
    run, _, data = described
    infer([run], data, str(tmp_path / "out.csv"), quiet=True, applicability=True)
    split = read_split(run / "splits.json")
    distance = numbers(read_rows(tmp_path / "out.csv"), ["embedding_distance"])[:, 0]
    np.testing.assert_allclose(distance[split.train], 0, atol=1e-2)
    assert (distance[split.test] > 0).any()
    card = dict(training_facts(read(run, check_data=False)))["Model"]
    assert f"; {1 + len(graph_feature_names(OPTIONS))} features of graphs joined to the readout; " in card
