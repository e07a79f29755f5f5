"""Predictions on ranks: equal to the byte to those of one process, in the order of the input."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from gcnbatch.inference import inputs
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.molecules import CsvOptions
from tests.builders import build_graphset
from tests.inference.runs import SMILES, import_table, molecule_table, stored, train_on
from tests.ranks.launcher import mpirun

# Small parts, so that each rank has several.
SMALL_PARTS = "from gcnbatch.inference import inputs\n"
SMALL_PARTS += "inputs.PART_ROWS, inputs.WHOLE_BYTES, inputs.PART_BYTES = 256, 0, 4000\n"
MAIN = "from gcnbatch.cli.app import main\nmain()"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PART_ROWS", 256), ("WHOLE_BYTES", 0), ("PART_BYTES", 4000)):
        monkeypatch.setattr(inputs, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_table_of_molecules_on_three_ranks_equals_that_of_one_process(tmp_path: Path) -> None:
    featurizer = pytest.importorskip("gcnbatch.data.featurizer")
    pytest.importorskip("rdkit")
    data = import_table(
        molecule_table(tmp_path / "molecules.csv"), tmp_path / "molecules.h5", featurizer.FeaturizerOptions()
    )
    run = train_on(data, tmp_path / "run")
    table = tmp_path / "library.csv"
    rows = [f"L{i},{'C' * (i % 7)}{SMILES[i % len(SMILES)] if i % 97 else 'broken('},{i % 2}" for i in range(1500)]
    table.write_text("\n".join(["mol_id,structure,even", *rows]) + "\n")
    options = CsvOptions(smiles_column="structure", id_column="mol_id", keep_columns=("even",), processes=1)
    infer([run], table, str(tmp_path / "one.csv"), csv=options, backend="cpu")
    columns = ("--smiles-column", "structure", "--id-column", "mol_id", "--keep-columns", "even", "--processes", 1)
    about = ("infer", run, table, *columns, "--backend", "cpu", "-o", tmp_path / "three.csv")
    _, err = mpirun(3, *about, code=SMALL_PARTS + MAIN)
    assert err.count("1,500 rows predicted by 1 model on cpu in ") == 1
    assert (tmp_path / "three.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


@pytest.mark.numerical
@pytest.mark.usefixtures("small_parts")
def test_a_data_set_on_two_ranks_equals_that_of_one_process(tmp_path: Path) -> None:
    data = stored(tmp_path / "set.h5", build_graphset(60, seed=3))
    runs = [train_on(data, tmp_path / f"run{seed}", seed=seed) for seed in (1, 2)]
    infer(runs, data, str(tmp_path / "one.h5"), backend="cpu", quiet=True)
    mpirun(2, "infer", *runs, data, "--backend", "cpu", "-o", tmp_path / "two.h5", "-q", code=SMALL_PARTS + MAIN)
    assert (tmp_path / "two.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()
    other = (
        "import os\nfrom gcnbatch.inference import predictor\n"
        "if '1' in (os.environ.get('PMI_RANK'), os.environ.get('OMPI_COMM_WORLD_RANK')):\n"
        "    predictor.task_of = lambda *about: {}\n"
    )
    about = ("infer", *runs, data, "--backend", "cpu", "-o", tmp_path / "other.h5", "-q")
    _, err = mpirun(2, *about, code=SMALL_PARTS + other + MAIN, check=2)
    assert err.startswith(f"error: rank 1 on {platform.node()}: {data}: not that of rank 0; expected the same names")
    assert not (tmp_path / "other.h5").exists()
