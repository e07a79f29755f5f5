"""A run as an ONNX model: ONNX Runtime gives our values, and plain Python makes our inputs to the bit."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer_options import ATOM_PAIR, MORGAN, RDKIT2D, FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.inference.models import load_models
from gcnbatch.metrics import label
from gcnbatch.onnx_export import command
from gcnbatch.onnx_export.command import TOLERANCE, plain
from gcnbatch.onnx_export.networks import inputs_of
from tests.builders import build_graphset, small_molecules
from tests.inference.runs import import_table, molecule_table, stored, train_on
from tests.training.runs import fit
from tests.training.runs import gcnbatch as cli

pytest.importorskip("onnx", reason="onnx is not installed (the extra 'onnx')")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (the extra 'test')")
pytestmark = pytest.mark.usefixtures("light_module")

RICH = FeaturizerOptions(
    bond_channels=True,
    bond_properties=("ring", "conjugated", "stereo"),
    atom_features="extended86",
    walk=3,
    descriptors=RDKIT2D,
    fingerprints=(MORGAN, ATOM_PAIR),
    size=128,
)
SMILES = small_molecules()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


def predicted(model: Path, feed: dict[str, Any]) -> list[Any]:
    import onnxruntime

    return list(onnxruntime.InferenceSession(model).run(None, feed))


def exported(run: Path, model: Path, **options: Any) -> list[str]:
    """Export a run; return the messages. It fails where ONNX Runtime differs on the run's data."""
    said: list[str] = []
    found = gcnbatch.export(run, model, say=said.append, **options)
    assert found.checked == options.get("check", found.checked)
    assert found.difference is not None
    assert found.difference <= TOLERANCE
    return said


MODELS: dict[str, dict[str, Any]] = {
    "batch norm": {"widths": [8, 8], "residual": True, "readout": ["sum", "mean", "max"]},
    "layer norm": {"widths": [8, 6], "norm": "layer", "virtual_node": True, "jumping_knowledge": "cat"},
    "no norm": {"widths": [8, 8, 8], "norm": "none", "jumping_knowledge": "max", "dense": [5], "head": [7]},
    "feed forward": {"widths": [8, 8], "ffn": True, "virtual_node": True, "dropout": 0.1, "adjacency": "stored"},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_every_layer_gives_our_values(name: str, target: str, place: Path) -> None:
    data = place / f"{target}.h5"
    if not data.exists():
        stored(data, build_graphset(30, seed=3, target=target))
    run = train_on(data, place / f"{name}-{target}", model=MODELS[name])
    exported(run, place / "layers.onnx", check=30)


def test_folds_give_their_mean_and_deviation(place: Path) -> None:
    data = stored(place / "folds.h5", build_graphset(40, seed=1))
    run = train_on(data, place / "folds", split={"folds": 3})
    exported(run, place / "folds.onnx")
    with Dataset(data) as dataset:
        graphs = dataset.load()
    feed = inputs_of(BatchSource(graphs).batch(np.arange(40)), None)
    value, deviation = predicted(place / "folds.onnx", feed)
    ours = gcnbatch.Run.load(run).predict(graphs)
    assert ours.std is not None
    np.testing.assert_allclose(value, ours.outputs, atol=1e-6)
    np.testing.assert_allclose(deviation, ours.std, atol=1e-6)


def table(path: Path, kind: str) -> Path:
    lines = ["smiles,y"]
    for text in SMILES:
        value = text.count("O") - 0.5 * text.count("C") + 0.3 * text.count("c") + 0.1 * len(text)
        cell = {"regression": round(3 + value, 3), "binary": int(value > -0.2)}.get(kind)
        lines.append(f"{text},{['low', 'mid', 'high'][(value > -0.6) + (value > 0)] if cell is None else cell}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["regression", "binary", "multiclass"])
def best(request: pytest.FixtureRequest, place: Path) -> Path:
    """A run with a mixture."""
    kind = request.param
    data = place / f"mixed-{kind}.h5"
    import_smiles(table(place / f"{kind}.csv", kind), data, RICH, target_columns=["y"], processes=1)
    assignments = ("split.cross_fit=3", "split.test=0.2", "model.head=[8]", "train.mixture=true", "train.epochs=2")
    fit(data, place / f"best-{kind}", *assignments)
    return place / f"best-{kind}"


def test_a_mixture_gives_our_values_and_plain_python_our_inputs(best: Path, place: Path) -> None:
    said = exported(best, place / "best.onnx", check=60)
    assert "ONNX Runtime differs from ours by at most" in said[0]
    assert said[1].startswith("the Python file makes the same inputs from SMILES")


def test_all_members_left_out_are_refused(best: Path, place: Path) -> None:
    names = [row["name"] for row in gcnbatch.Run.load(best).metrics["members"] if row["weight"] > 0]
    with pytest.raises(InputError, match="fewer: a task would have no member with a weight"):
        gcnbatch.export(best, place / "none.onnx", without=names)
    assert not (place / "none.onnx").exists()


def test_without_the_package_one_line_says_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MachineError, match=r"onnx: not installed\. Install it: pip install 'gcnbatch\[onnx\]'"):
        gcnbatch.export(place, place / "none.onnx")


def test_a_member_left_out_is_named_with_its_cost(best: Path, place: Path) -> None:
    weights = {row["name"]: row["weight"] for row in gcnbatch.Run.load(best).metrics["members"]}
    name = max(weights, key=weights.__getitem__)
    if name == "gcn" or weights[name] == 1:
        name = next((other for other, weight in weights.items() if 0 < weight < 1 and other != "gcn"), "")
    if not name:
        with pytest.raises(InputError, match="would have no member with a weight"):
            gcnbatch.export(best, place / "none.onnx", without=[max(weights, key=weights.__getitem__)])
        return
    said = exported(best, place / "less.onnx", without=[name])
    metrics = gcnbatch.Run.load(best).metrics
    start = f"without {name}, of weight {weights[name]:.2f}: out-of-fold {label(metrics['metric'])} "
    found = re.fullmatch(rf"{re.escape(start)}(\S+) in place of (\S+)", said[0])
    assert found, said[0]
    without, whole = map(float, found.groups())
    assert whole == pytest.approx(metrics["valid"][metrics["metric"]], rel=1e-3)
    alone = {row["name"]: row["out_of_fold"] for row in metrics["members"] if row["weight"] and row["name"] != name}
    if len(alone) == 1:
        assert without == pytest.approx(*alone.values(), rel=1e-3)
    with pytest.raises(InputError, match="'forest'"):
        gcnbatch.export(best, place / "other.onnx", without=["forest"])


def test_of_several_mixtures_each_leaves_the_member_out(place: Path) -> None:
    data = place / "repeated.h5"
    import_smiles(table(place / "repeated.csv", "regression"), data, RICH, target_columns=["y"], processes=1)
    assignments = ("split.cross_fit=3", "split.repeats=2", "split.test=0.2", "model.head=[8]", "train.mixture=true")
    run = place / "repeated"
    fit(data, run, *assignments, "train.epochs=2")
    with Dataset(data) as dataset:
        graphs = dataset.load()
    feed = inputs_of(BatchSource(graphs).batch(np.arange(len(graphs.y))), graphs.graph_features.dense())
    values = []
    for name in ("", "repeat1", "repeat2"):
        said: list[str] = []
        gcnbatch.export(run / name, place / f"whole{name}.onnx", without=["trees"], say=said.append)
        assert re.search(r"of weight \d.*: out-of-fold RMSE \d.* in place of \d", said[0])
        values.append(predicted(place / f"whole{name}.onnx", feed)[0])
    np.testing.assert_allclose(values[0], (values[1] + values[2]) / 2, rtol=1e-6)


ODD = (
    *("C[C@H](N)C(=O)O", "F/C=C/F", "F/C=C\\F", "[2H]C([2H])O", "[H][H]", "[Na+].[Cl-]", "CC(=O)[O-].[NH4+]"),
    *("c1cc[nH]c1", "C1=CC=C[N-]1", "[O-][n+]1ccccc1", "[Fe]", "[13CH4]", "*CC*", "C[Si](C)(C)C", "N#N", "[H]OC"),
    *("C[N+](C)(C)C", "O=S(=O)(O)O", "[Cu+2].[O-]S(=O)(=O)[O-]", "B1OCCO1", "C#C", "c1ccc2ccccc2c1", "[CH2]C"),
    *("[CH3:1][OH:2]", "C12CC1C2", "C[Pt@SP1](F)(Cl)Br"),
)
OPTIONS = {
    "plain": FeaturizerOptions(),
    "channels": FeaturizerOptions(bond_channels=True, self_loops=False, normalize=True),
    "salts": FeaturizerOptions(largest_fragment=True, neutralize=True),
    "rich": RICH,
    "rich salts": replace(RICH, largest_fragment=True, neutralize=True, descriptors="", self_loops=False),
}


def of_python(run: Path, features: bool) -> ModuleType:
    """Return the module of the Python file of a run."""
    module = ModuleType("model")
    exec(plain(load_models([run], lambda line: None)[0], features, ["y"]), vars(module))
    return module


def compare_inputs(smiles: list[str], options: FeaturizerOptions, folder: Path) -> tuple[int, int]:
    """Compare the inputs of the molecules that we read; return their number and that of unequal descriptors."""
    rows = "".join(f"{text},{row % 2}\n" for row, text in enumerate(smiles))
    (folder / "all.csv").write_text(f"smiles,y\n{rows}", encoding="utf-8")
    table, data = folder / "all.csv", folder / "all.h5"
    import_smiles(table, data, options, target_columns=["y"], skip_bad_rows=True)
    run = train_on(folder / "all.h5", folder / "all", train={"epochs": 1}, model={"widths": [2]}, split={"valid": 0.1})
    module, unequal = of_python(run, options.of_molecules), 0
    with Dataset(folder / "all.h5") as dataset:
        graphs = dataset.load()
    source = BatchSource(graphs)
    places = [int(name) - 1 for name in graphs.ids.tolist()]
    for first in range(0, graphs.n_graphs, 256):
        rows_of = np.arange(first, min(first + 256, graphs.n_graphs))
        features = None if graphs.graph_features is None else graphs.graph_features.dense()[rows_of]
        ours = inputs_of(source.batch(rows_of), features)
        theirs = module.inputs([smiles[places[row]] for row in rows_of])
        assert set(ours) == set(theirs)
        for name, values in ours.items():
            if name != "features":
                assert theirs[name].dtype == values.dtype
                np.testing.assert_array_equal(theirs[name], values, err_msg=name)
                continue
            same = (values == theirs[name]) | (np.isnan(values) & np.isnan(theirs[name]))
            unequal += int((~same).sum())
            counts = graphs.header.graph_feature_counts
            assert same[:, -counts:].all()
    return graphs.n_graphs, unequal


@pytest.mark.parametrize("name", OPTIONS)
def test_plain_python_reads_unusual_molecules_as_we_do(name: str, tmp_path: Path) -> None:
    smiles = [*ODD, *SMILES[:12]]
    count, _ = compare_inputs(smiles, OPTIONS[name], tmp_path)
    assert count > len(smiles) - 4


def measured(name: str, most: int) -> list[str]:
    """Return SMILES of a table of MoleculeNet."""
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    with gzip.open(Path(folder) / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        return [row["smiles"] for row in csv.DictReader(file)][:most]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["plain", "channels", "salts"])
def test_plain_python_makes_the_same_graphs_of_a_thousand_molecules(name: str, tmp_path: Path) -> None:
    count, _ = compare_inputs(measured("tox21", 1000), OPTIONS[name], tmp_path)
    assert count > 980


def test_sums_that_cancel_are_0_here_and_there(tmp_path: Path) -> None:
    """The order of their terms decides what is left of a MolLogP, an EState or a surface that is 0."""
    smiles = [
        "O=NN1CCOCC1",
        "O=C(O)c1cc(Br)c(O)c(Br)c1",
        "O=C(O)C1CCC1",
        "Clc1nc(Cl)nc(Cl)n1",
        "O=C1OC(O)C(C(Cl)Cl)=C1Cl",
    ]
    assert compare_inputs(smiles, replace(RICH, descriptors=RDKIT2D), tmp_path) == (len(smiles), 0)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("described", "most"), [("", 10_500), (RDKIT2D, 300)], ids=["no descriptors", "descriptors"])
def test_plain_python_makes_the_same_inputs_of_ten_thousand(described: str, most: int, tmp_path: Path) -> None:
    """Of descriptors, a tenth has the longest molecules, of which RDKit's own Ipc has no right digit."""
    smiles = [*measured("lipo", 4200), *measured("tox21", 7800)][:10_500]
    smiles = [*sorted(smiles, key=len)[-most // 10 :], *smiles][:most]
    count, unequal = compare_inputs(smiles, replace(RICH, descriptors=described), tmp_path)
    assert count >= 0.95 * most
    assert unequal < 1e-4 * count * 217  # descriptors that are rounded otherwise


@pytest.mark.real
@pytest.mark.slow
def test_ten_thousand_molecules_of_all_sizes_have_our_values(tmp_path: Path) -> None:
    """The inputs are compared above. A sum over the atoms has the largest roundings."""
    smiles = [*measured("lipo", 4200), *measured("tox21", 7800)]
    rows = "".join(f"{text},{len(text)}\n" for text in smiles)
    (tmp_path / "all.csv").write_text(f"smiles,y\n{rows}", encoding="utf-8")
    options = FeaturizerOptions(bond_channels=True, atom_features="extended86")
    import_smiles(tmp_path / "all.csv", tmp_path / "all.h5", options, target_columns=["y"], skip_bad_rows=True)
    model, train = {"readout": ["sum"], "dense": [8]}, {"epochs": 2, "batch_size": 64}
    run = train_on(tmp_path / "all.h5", tmp_path / "run", model=model, train=train)
    said = exported(run, tmp_path / "all.onnx", check=10_000)
    assert said[0].startswith("10,000 rows of the run's data: ")
    assert said[1] == "the Python file makes the same inputs from SMILES, to the bit"


def test_the_python_file_predicts_from_the_shell(place: Path) -> None:
    data = import_table(molecule_table(place / "shell.csv"), place / "shell.h5", FeaturizerOptions())
    run = train_on(data, place / "shell", split={"folds": 2})
    done = cli("export", run, "-o", place / "shell.onnx", "--json")
    summary = json.loads(done.stdout)
    assert summary["members"] == ["gcn"]
    assert "ONNX Runtime differs from ours by at most" in done.stderr
    words = [sys.executable, summary["python"], "CCO", "no", "c1ccccc1"]
    shell = subprocess.run(words, capture_output=True, text=True, check=True, cwd=place, env={"PATH": ""})
    assert shell.stderr == "cannot be predicted: no\n"
    rows = list(csv.DictReader(shell.stdout.splitlines()))
    assert rows[1] == {"smiles": "no", "even": "", "third": "", "even_std": "", "third_std": ""}
    ours = gcnbatch.Run.load(run).predict(["CCO", "c1ccccc1"])
    assert ours.std is not None
    for row, outputs, std in zip(rows[::2], ours.outputs, ours.std, strict=True):
        found = [float(row[name]) for name in ("even", "third", "even_std", "third_std")]
        np.testing.assert_allclose(found, [*outputs, *std], atol=1e-6)


def test_a_run_without_its_data_is_written_unchecked(place: Path) -> None:
    data = stored(place / "gone.h5", build_graphset(24, seed=5))
    run = train_on(data, place / "gone")
    data.unlink()
    said: list[str] = []
    found = gcnbatch.export(run, place / "gone.onnx", say=said.append)
    assert (found.checked, found.difference, found.python) == (0, None, "")
    assert said[0].startswith("not checked: ")


def test_other_values_are_an_error_and_write_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored(place / "wrong.h5", build_graphset(24, seed=5))
    run = train_on(data, place / "wrong")
    monkeypatch.setattr(command, "TOLERANCE", -1.0)
    with pytest.raises(gcnbatch.CheckFailed, match="values of ONNX Runtime"):
        gcnbatch.export(run, place / "wrong.onnx")
    assert not (place / "wrong.onnx").exists()


def test_a_model_of_nodes_is_refused(place: Path) -> None:
    data = stored(place / "nodes.h5", build_graphset(1, level="node", n_channels=1, max_nodes=40, seed=2))
    model = {"kind": "kipf", "widths": [4]}
    run = train_on(data, place / "nodes", model=model, train={"batch_size": 1})
    done = cli("export", run, "-o", place / "nodes.onnx", check=2)
    assert "predicts nodes of a graph; expected a model of graphs" in done.stderr
    assert len(done.stderr.splitlines()) == 1
