"""Cross-fitted runs: members that leave rows out, their mixture with a kernel and trees, resuming, refusals."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.backends import registry
from gcnbatch.data.featurizer_options import FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.explanation.command import explain
from gcnbatch.inference.ensemble import infer, predict
from gcnbatch.inference.loaded import LoadedRun, Machine
from gcnbatch.mixture import Mixture
from gcnbatch.predictions import read_outputs
from gcnbatch.run_comparison.comparison import compare
from gcnbatch.run_report.files import write as write_report
from gcnbatch.runners.choice import FEW
from gcnbatch.training import checkpoint, cross_fit, inverter, mixed, reports, run
from gcnbatch.training.checkpoint import load
from gcnbatch.training.finished import read_fits, read_split
from gcnbatch.training.fits import Fits
from gcnbatch.training.plan import member_folders
from gcnbatch.workers.pool import Workers
from tests.builders import small_molecules
from tests.entries import CohortEntry, ComparingBackend, MadeEntry, register
from tests.training.kills import Killed, die_at
from tests.training.runs import configure, fit, gcnbatch, write_set

pytestmark = pytest.mark.usefixtures("light_module")

RICH = FeaturizerOptions(
    bond_channels=True, descriptors="rdkit2d", fingerprints=("morgan",), radius=2, size=256, atom_features="extended86"
)
PARTS = ("split.cross_fit=4", "split.test=0.2", "model.head=[8]")
MIXED = (*PARTS, "train.mixture=true")


def table(path: Path, kind: str = "regression") -> Path:
    """Write 60 molecules, five of them twice with another SMILES, and a target that their structure gives."""
    rows = small_molecules()
    smiles = rows + [f"[CH3:1]{text[1:]}" if text.startswith("C") and text[1:2] == "C" else text for text in rows[:5]]
    lines = ["smiles,y"]
    for text in smiles:
        value = text.count("O") - 0.5 * text.count("C") + 0.3 * text.count("c") + 0.1 * len(text)
        cell = {"regression": round(value, 3), "binary": int(value > -0.2), "multiclass": ["low", "mid", "high"]}[kind]
        lines.append(f"{text},{cell[(value > -0.6) + (value > 0)] if kind == 'multiclass' else cell}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a table and the data set of it."""
    folder = tmp_path_factory.mktemp("molecules")
    import_smiles(table(folder / "table.csv"), folder / "set.h5", RICH, target_columns=["y"])
    return folder / "table.csv", folder / "set.h5"


@pytest.fixture(scope="module")
def best(molecules: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run with a mixture."""
    folder = tmp_path_factory.mktemp("runs") / "best"
    fit(molecules[1], folder, *MIXED)
    return folder


def figures_of(folder: Path) -> dict:
    found = json.loads((folder / "metrics.json").read_text())
    return {key: found[key] for key in ("valid", "test", "members", "uncertainty", "transforms")}


def test_each_training_row_is_left_out_once_and_no_copy_is_learnt_beside_it(molecules, best: Path) -> None:
    whole = read_split(best / "splits.json")
    parts = [read_split(place / "splits.json") for place in member_folders(best)]
    with Dataset(molecules[1]) as dataset:
        first = cross_fit_copies(dataset)
    assert [place.name for place in member_folders(best)] == ["part1", "part2", "part3", "part4"]
    assert len(np.unique(first)) == 60
    assert np.array_equal(np.sort(np.concatenate([part.valid for part in parts])), whole.train)
    for part in parts:
        assert np.array_equal(np.union1d(part.train, part.valid), whole.train)
        assert np.array_equal(part.test, whole.test)
        assert not set(first[part.train]) & set(first[part.valid])


def cross_fit_copies(dataset: Dataset) -> np.ndarray:
    from rdkit import Chem

    names = [Chem.MolFromSmiles(text) for text in dataset.smiles() or ()]
    for molecule in names:
        for atom in molecule.GetAtoms():
            atom.SetAtomMapNum(0)
    return np.unique([Chem.MolToSmiles(molecule) for molecule in names], return_inverse=True)[1]


def test_out_of_fold_outputs_are_those_of_the_networks_that_left_the_rows_out(molecules, best: Path) -> None:
    lines = (best / "out_of_fold.csv").read_text().splitlines()
    header = lines[0].split(",")
    rows = {line.split(",")[0]: dict(zip(header, line.split(","), strict=True)) for line in lines[1:]}
    assert header == ["id", "part", "y_target", "y", "y_kernel", "y_trees", "y_gcn"]
    with Dataset(molecules[1]) as dataset:
        for number, place in enumerate(member_folders(best), start=1):
            part = read_split(place / "splits.json").valid
            outputs = predict([place], dataset.read(part), backend="cpu", level=None).outputs[:, 0]
            for name, output in zip(dataset.ids[part], outputs, strict=True):
                assert rows[name]["part"] == str(number)
                assert float(rows[name]["y_gcn"]) == pytest.approx(output, abs=1e-5)


def test_targets_of_a_part_do_not_change_its_out_of_fold_outputs(molecules, tmp_path: Path) -> None:
    """Other targets of the rows of part 1 leave the outputs of networks and trees there as they are.

    All rows choose the transform of targets; it must be the same for the comparison.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    fit(molecules[1], one, *MIXED, "train.epochs=1")
    split = read_split(one / "part1" / "splits.json")
    changed = tmp_path / "changed.h5"
    with Dataset(molecules[1]) as dataset:
        graphs = dataset.load()
    y = graphs.y.copy()
    y[split.valid] += 0.02
    write_graphset(changed, replace(graphs, y=y))
    fit(changed, two, *MIXED, "train.epochs=1")
    tables = [np.genfromtxt(folder / "out_of_fold.csv", delimiter=",", names=True) for folder in (one, two)]
    own = tables[0]["part"] == 1
    assert np.array_equal(tables[0]["part"], tables[1]["part"])
    kinds = [json.loads((folder / "metrics.json").read_text())["transforms"] for folder in (one, two)]
    assert kinds[0] == kinds[1]
    for member in ("y_gcn", "y_trees"):
        np.testing.assert_array_equal(tables[0][member][own], tables[1][member][own])
        assert not np.array_equal(tables[0][member][~own], tables[1][member][~own])


def test_infer_gives_the_predictions_of_the_test_rows(molecules, best: Path, tmp_path: Path) -> None:
    """The kernel and the trees to the bit; the networks up to the rounding of float32 in batches of another size."""
    with Dataset(molecules[1]) as dataset:
        test, ids = read_split(best / "splits.json").test, dataset.ids
        written = read_outputs(best / "predictions.csv", dataset.header, len(test))
        every = predict([best], dataset.load(), backend="cpu")
        scale = float(np.std(dataset.y))
    found = predict([best], molecules[0], backend="cpu")
    assert np.array_equal(every.ids[test], ids[test])
    np.testing.assert_allclose(every.outputs[test], written, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(found.outputs, every.outputs, rtol=0, atol=1e-5 * scale)
    assert found.std is not None
    assert (found.std > 0).all()
    half = (found.more["y_high"] - found.more["y_low"]) / 2
    assert np.ptp(half) < 1e-6
    errors = np.abs(np.genfromtxt(best / "out_of_fold.csv", delimiter=",", names=True)["y_target"] - left_out(best))
    rank = int(np.ceil((len(errors) + 1) * 0.9))
    assert half[0] == pytest.approx(np.sort(errors)[rank - 1], rel=1e-5)


def left_out(folder: Path) -> np.ndarray:
    return np.genfromtxt(folder / "out_of_fold.csv", delimiter=",", names=True)["y"]


def test_tables_have_the_digits_that_outputs_have(molecules, best: Path, tmp_path: Path) -> None:
    infer([best], molecules[0], str(tmp_path / "out.csv"), backend="cpu", quiet=True)
    with Dataset(molecules[1]) as dataset:
        places = 7 - int(np.floor(np.log10(np.std(dataset.y))))
    for file, columns in ((tmp_path / "out.csv", ("y", "y_std")), (best / "out_of_fold.csv", ("y_kernel", "y_trees"))):
        values = np.genfromtxt(file, delimiter=",", names=True)
        for column in columns:
            np.testing.assert_array_equal(values[column], np.round(values[column], places), err_msg=column)


@pytest.mark.numerical
def test_members_of_the_mixture_do_not_depend_on_the_rows_beside_them(molecules, best: Path) -> None:
    with Dataset(molecules[1]) as dataset:
        header, rows = dataset.header, np.arange(dataset.n_graphs)
        own = mixed.Mixed.load(best, header)
        whole = own.mixture.members.predict(mixed.molecules(header, dataset.feature_tables(rows)))
        for some in (rows[:7], rows[3:16], rows[40:41]):
            part = own.mixture.members.predict(mixed.molecules(header, dataset.feature_tables(some)), jobs=2)
            for name, outputs in part.items():
                assert np.array_equal(outputs, whole[name][some]), name


@pytest.mark.numerical
def test_processes_give_what_the_members_of_the_mixture_give_here(
    molecules, best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk and single rows cannot be read; for the others, in the data set, this process computes all.

    Networks compute in float32 and give other last bits in other batches; values are about 1, rounded to 7 places.
    """
    lines = [line.split(",")[0] for line in molecules[0].read_text().splitlines()]
    (tmp_path / "all.csv").write_text("\n".join([*lines[:9], *"no" * 3, *lines[9:], "no"]) + "\n")
    with Dataset(molecules[1]) as dataset:
        expected = predict([best], dataset.load(), backend="cpu")
    monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", 4)
    monkeypatch.setattr("gcnbatch.inference.inputs.PART_ROWS", 8)
    one, found = (predict([best], tmp_path / "all.csv", processes, backend="cpu") for processes in (1, 2))
    read = np.isfinite(found.outputs[:, 0])
    assert np.flatnonzero(~read).tolist() == [*range(8, 14), len(read) - 1]
    for name in ("outputs", "std"):
        np.testing.assert_array_equal(getattr(found, name), getattr(one, name), err_msg=name)
        np.testing.assert_allclose(getattr(found, name)[read], getattr(expected, name), 1e-5, 1e-6, err_msg=name)


@pytest.mark.numerical
def test_a_backend_predicts_with_kernel_and_trees(
    molecules, best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a chunk without molecules, of a data set, and not of molecules that its host predicts.

    Similarities have float32's rounding; values are about 1, rounded to 7 places.
    """
    lines = [line.split(",")[0] for line in molecules[0].read_text().splitlines()]
    (tmp_path / "all.csv").write_text("\n".join([*lines[:9], *"no" * 8, *lines[9:]]) + "\n")
    backend = ComparingBackend("other")
    register(monkeypatch, MadeEntry("other", made=backend, on_gpu=True), registry.entry("cpu"))
    monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", 4)
    monkeypatch.setattr("gcnbatch.inference.inputs.PART_ROWS", 8)
    with Dataset(molecules[1]) as dataset:
        inputs = [(tmp_path / "all.csv", 1), (tmp_path / "all.csv", 2), (dataset.load(), 0)]
    for data, processes in inputs:
        expected, found = (predict([best], data, processes, backend=name) for name in ("cpu", "other"))
        assert sum(backend.rows) == np.isfinite(found.outputs[:, 0]).sum() > 60
        backend.rows.clear()
        for name in ("outputs", "std"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), 1e-5, 1e-6, err_msg=name)
    with (machine := Machine.open("auto", processes=1)).workers:
        served = LoadedRun(best, machine)
        assert np.isfinite(served.predict(lines[1:FEW]).outputs).all()
        assert not backend.rows
        assert np.isfinite(served.predict(lines[1 : FEW + 1]).outputs).all()
        assert backend.rows == [FEW]


class Full(ComparingBackend):
    def inverse(self, *about: object) -> None:
        raise MachineError("memory of the GPU", "too little")


@pytest.mark.numerical(bound="bits of equal calls")
@pytest.mark.parametrize("kind", [ComparingBackend, Full])
def test_a_gpu_inverts_the_kernel_unless_it_lacks_memory(
    molecules, best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ComparingBackend]
) -> None:
    """Also where a run goes on after its networks: it ends in the same bits. This process fits, as no other starts."""
    backend, said = kind("other"), list[str]()
    monkeypatch.setattr(inverter, "ON_GPU", 40)
    monkeypatch.setattr(cross_fit, "Workers", no_process)
    register(monkeypatch, MadeEntry("other", made=backend, on_gpu=True), registry.entry("cpu"))
    fit(molecules[1], tmp_path / "run", *MIXED, "backend=other", say=said.append)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for file in ("metrics.json", mixed.FILE):
        (tmp_path / "again" / file).unlink()
    run.resume(tmp_path / "again", quiet=True, say=said.append)
    assert (tmp_path / "again" / mixed.FILE).read_bytes() == (tmp_path / "run" / mixed.FILE).read_bytes()
    one, other = (load(folder / mixed.FILE, finite=False).arrays for folder in (tmp_path / "run", best))
    told = said.count("the host fits the kernel: memory of the GPU: too little")
    if kind is Full:
        assert told == 2
        assert np.array_equal(one["members.kernel.weights"], other["members.kernel.weights"])
    else:
        assert told == 0
        assert backend.rows == [52, 0, 52, 0]  # inverted, and given back
        assert not np.array_equal(one["members.kernel.weights"], other["members.kernel.weights"])


def no_process(*about: object, **more: object) -> None:
    raise OSError


@pytest.mark.gpu
def test_predictions_on_a_gpu_are_those_of_the_host(
    molecules, best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks and similarities have float32's rounding; values are about 1, rounded to 7 places."""
    monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", 4)
    monkeypatch.setattr("gcnbatch.inference.inputs.PART_ROWS", 16)
    with Dataset(molecules[1]) as dataset:
        for data, processes in ((molecules[0], 2), (dataset.load(), 0)):
            host, gpu = (predict([best], data, processes, backend=name) for name in ("cpu", "batched"))
            for name in ("outputs", "std"):
                np.testing.assert_allclose(getattr(gpu, name), getattr(host, name), 1e-5, 1e-6, err_msg=name)


@pytest.mark.gpu
def test_a_process_beside_a_gpu_inverts_the_kernel_there(
    molecules, best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in the bits of a run that goes on after its networks, in this process."""
    monkeypatch.setattr(inverter, "ON_GPU", 40)
    said: list[str] = []
    fit(molecules[1], tmp_path / "run", *MIXED, "backend=batched", say=said.append)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for file in ("metrics.json", mixed.FILE):
        (tmp_path / "again" / file).unlink()
    run.resume(tmp_path / "again", quiet=True)
    assert not [line for line in said if "the host fits" in line]
    assert (tmp_path / "again" / mixed.FILE).read_bytes() == (tmp_path / "run" / mixed.FILE).read_bytes()
    one, other = (load(folder / mixed.FILE, finite=False).arrays for folder in (tmp_path / "run", best))
    assert not np.array_equal(one["members.kernel.weights"], other["members.kernel.weights"])


def test_molecules_that_cannot_be_read_keep_their_rows(best: Path) -> None:
    found = predict([best], ["C1CC"], backend="cpu")
    assert np.isnan(found.outputs).all()
    assert found.errors is not None
    assert found.errors[0]
    some = predict([best], ["C1CC", "CCCO", "no"], backend="cpu")
    assert np.isfinite(some.outputs[:, 0]).tolist() == [False, True, False]
    assert some.std is not None
    assert np.isfinite(some.std[:, 0]).tolist() == [False, True, False]


def test_metrics_tell_of_members_and_of_the_whole_run(molecules, best: Path) -> None:
    found = json.loads((best / "metrics.json").read_text())
    assert [of["name"] for of in found["members"]] == ["kernel", "trees", "gcn"]
    assert sum(of["weight"] for of in found["members"]) == pytest.approx(1)
    assert found["metric"] == "rmse"
    assert found["valid"]["labelled"] + found["test"]["labelled"] == 65
    errors = np.genfromtxt(best / "out_of_fold.csv", delimiter=",", names=True)
    for of in found["members"]:
        alone = np.sqrt(np.mean((errors["y_target"] - errors[f"y_{of['name']}"]) ** 2))
        assert of["out_of_fold"] == pytest.approx(alone)
    assert found["valid"]["rmse"] == pytest.approx(np.sqrt(np.mean((errors["y_target"] - errors["y"]) ** 2)))
    (one,) = read_fits(best)
    assert one.folder == best


def test_a_run_folder_has_arrays_and_texts_alone(best: Path) -> None:
    endings = {path.suffix for path in best.rglob("*") if path.is_file()}
    assert endings <= {".safetensors", ".json", ".jsonl", ".csv", ".toml", ".png", ".html", ".md", ".sha256"}
    stored = load(best / mixed.FILE, finite=False)
    assert all(array.dtype.kind in "iuf" for array in stored.arrays.values())
    again = Mixture.from_arrays(stored.arrays, stored.about["mixture"])
    assert {name: array.tobytes() for name, array in again.arrays().items()}.items() <= {
        name: array.tobytes() for name, array in stored.arrays.items()
    }.items()


def test_report_shows_the_members(best: Path) -> None:
    page = write_report(best).read_text()
    assert "Members of the mixture" in page
    assert "cross-fitted by 4 networks" in page


@pytest.mark.parametrize(
    ("place", "name", "call"),
    [
        (Fits, "_report", 2),
        (mixed.Mixed, "save", 0),
        (cross_fit, "_write_out_of_fold", 0),
        (reports.Report, "write", 4),
    ],
)
def test_a_killed_run_goes_on_to_equal_bits(molecules, best: Path, tmp_path: Path, place, name: str, call: int) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, place, name, call)
        with pytest.raises(Killed):
            fit(molecules[1], folder, *MIXED)
    assert not (folder / "metrics.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("part*/metrics.json")}
    run.resume(folder, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert_same_run(folder, best)


def test_a_resumed_run_does_not_fit_kernel_and_trees_again(molecules, best: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, mixed.Mixed, "save", 0)
        with pytest.raises(Killed):
            fit(molecules[1], folder, *MIXED)
    fitted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_fit, "fit_members", lambda *about: fitted.append(about))
        run.resume(folder, quiet=True)
    assert not fitted
    assert not (folder / mixed.FITTED).exists()
    assert_same_run(folder, best)


def test_damaged_members_of_a_run_under_way_are_fitted_again(molecules, best: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, mixed.Mixed, "save", 0)
        with pytest.raises(Killed):
            fit(molecules[1], folder, *MIXED)
    (folder / mixed.FITTED).write_bytes(b"no checkpoint")
    run.resume(folder, quiet=True)
    assert_same_run(folder, best)


def assert_same_run(one: Path, other: Path) -> None:
    for file in (mixed.FILE, "out_of_fold.csv", "predictions.csv", "uncertainty.safetensors", "splits.json"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    assert figures_of(one) == figures_of(other)


def test_an_extended_run_is_mixed_again(molecules, best: Path, tmp_path: Path) -> None:
    fit(molecules[1], tmp_path / "run", *MIXED, "train.epochs=2")
    run.resume(tmp_path / "run", quiet=True, epochs=3)
    assert_same_run(tmp_path / "run", best)


def test_a_finished_run_that_cannot_be_extended_keeps_no_state_of_its_networks(molecules, tmp_path: Path) -> None:
    fit(molecules[1], tmp_path / "run", *MIXED, "train.schedule=cosine")
    assert list(tmp_path.glob("run/part*/best.safetensors"))
    assert not list(tmp_path.glob("run/part*/last.safetensors"))
    assert run.resume(tmp_path / "run", quiet=True)["members"]


@pytest.mark.slow
def test_processes_give_the_bits_of_one(molecules, best: Path, tmp_path: Path) -> None:
    fit(molecules[1], tmp_path / "run", *MIXED, "jobs=2")
    assert_same_run(tmp_path / "run", best)


@pytest.mark.parametrize("is_started", [False, True])
def test_a_process_beside_a_gpu_fits_the_same_kernel_and_trees(
    molecules, best: Path, is_started: bool, tmp_path, monkeypatch
) -> None:
    register(monkeypatch, CohortEntry("cpu", most=4, on_gpu=True))
    fitted = []
    monkeypatch.setattr(cross_fit, "fit_members", lambda *about: fitted.append(about))
    with Workers(1, one_blas_thread=False) if is_started else nullcontext() as workers:
        if workers is not None:
            monkeypatch.setattr(cross_fit, "Workers", None)  # it starts no other
        fit(molecules[1], tmp_path / "run", *MIXED, of_mixture=workers)
    assert not fitted, "this process fits nothing"
    one, other = (load(folder / mixed.FILE, finite=False).arrays for folder in (tmp_path / "run", best))
    assert one.keys() == other.keys()
    for name in one.keys() - {"weights"}:  # which depend on the networks, those on the sizes of batches
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_without_a_mixture_the_networks_predict_together(molecules, tmp_path: Path) -> None:
    found = fit(molecules[1], tmp_path / "run", *PARTS, "train.ensemble=2", "split.test=0")
    assert [of["name"] for of in found["parts"]][:3] == ["part1-model1", "part1-model2", "part2-model1"]
    assert "members" not in found
    assert "test" not in found
    assert found["valid"]["labelled"] == 65
    assert not (tmp_path / "run" / mixed.FILE).exists()
    seeds = {
        load(place / "best.safetensors").arrays["output.weight"].tobytes() for place in member_folders(tmp_path / "run")
    }
    assert len(seeds) == 8
    summary = infer([tmp_path / "run"], molecules[0], str(tmp_path / "out.csv"), backend="cpu", quiet=True)
    assert summary.members == 8
    assert "y_low" in (tmp_path / "out.csv").read_text()
    assert f"Out-of-fold RMSE {found['valid']['rmse']:.4g}; no test rows." in write_report(tmp_path / "run").read_text()


def test_classes_are_mixed_as_probabilities(tmp_path: Path) -> None:
    data = tmp_path / "set.h5"
    import_smiles(table(tmp_path / "table.csv", "binary"), data, RICH, target_columns=["y"])
    found = fit(data, tmp_path / "run", *MIXED)
    outputs = predict([tmp_path / "run"], tmp_path / "table.csv", backend="cpu")
    assert outputs.outputs.dtype == np.float32
    assert ((outputs.outputs >= 0) & (outputs.outputs <= 1)).all()
    assert found["metric"] == "roc_auc"
    assert {"y_calibrated", "y_set"} & outputs.more.keys()


def test_classes_of_one_task_are_mixed_as_probabilities_of_sum_1(tmp_path: Path) -> None:
    data = tmp_path / "set.h5"
    import_smiles(table(tmp_path / "table.csv", "multiclass"), data, RICH, target_columns=["y"])
    found = fit(data, tmp_path / "run", *MIXED)
    outputs = predict([tmp_path / "run"], tmp_path / "table.csv", backend="cpu").outputs
    assert outputs.shape == (65, 3)
    np.testing.assert_allclose(outputs.sum(axis=1), 1, atol=1e-5)
    assert len(found["members"]) == 3
    header = (tmp_path / "run" / "out_of_fold.csv").read_text().splitlines()[0]
    assert header.startswith("id,part,y_target,p(high),p(high)_kernel,p(high)_trees,p(high)_gcn,p(low)")


def test_a_mixture_is_compared_with_a_plain_run(molecules, best: Path, tmp_path: Path) -> None:
    fit(molecules[1], tmp_path / "plain", "split.test=0.2")
    _, found = compare([best, tmp_path / "plain"], tmp_path / "out")
    assert [one.model for one in found.runs] == ["mixture", "gcn"]


def test_few_rows_have_fewer_parts_and_a_note(molecules, tmp_path: Path) -> None:
    said: list[str] = []
    config = configure(f"data.path={molecules[1]}", "split.cross_fit=10", "split.test=0.5", "train.mixture=true")
    _, found = run.start(config, tmp_path / "run", quiet=True, say=said.append)
    assert len(found["parts"]) == 6
    assert any(line.startswith("32 training rows in 6 parts: scores are uncertain") for line in said)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["train.mixture=true"], "train.mixture needs split.cross_fit"),
        (["split.cross_fit=1"], "cross_fit must be 0 or at least 2"),
        (["split.cross_fit=51"], "at least 0 and at most 50"),
    ],
)
def test_configurations_that_contradict_are_refused(keys: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure(*keys)


def test_data_that_a_mixture_cannot_read_are_refused_before_training(tmp_path: Path, molecules) -> None:
    write_set(tmp_path / "graphs.h5", 40)
    with pytest.raises(InputError, match=r"no fingerprint, descriptors.*gcnbatch train TABLE"):
        fit(tmp_path / "graphs.h5", tmp_path / "run", *MIXED)
    with pytest.raises(InputError, match="graph_features = 'off'"):
        fit(molecules[1], tmp_path / "run", *MIXED, "model.graph_features=off")
    assert not (tmp_path / "run").exists()


def test_graphs_without_smiles_can_be_cross_fitted(tmp_path: Path) -> None:
    write_set(tmp_path / "graphs.h5", 40)
    found = fit(tmp_path / "graphs.h5", tmp_path / "run", "split.cross_fit=3")
    assert len(found["parts"]) == 3


DAMAGES = {
    "members.kernel.weights": (lambda of: of[1:], "weights of the kernel"),
    "members.trees.0.features": (lambda of: np.where(of >= 0, of + 10_000, of), "a column that rows lack"),
    "members.trees.0.nodes": (
        lambda of: of + np.append([2, -2], np.zeros(len(of) - 2, of.dtype)).astype(of.dtype),
        "lack children",
    ),
    "members.trees.0.values": (lambda of: of[1:], "a forest of"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_mixture_whose_arrays_do_not_fit_is_refused(molecules, best: Path, tmp_path: Path, name: str) -> None:
    """A GPU would read beyond them."""
    shutil.copytree(best, tmp_path / "run")
    stored = load(tmp_path / "run" / mixed.FILE, finite=False)
    damage, told = DAMAGES[name]
    arrays = stored.arrays | {name: damage(stored.arrays[name])}
    checkpoint.save(tmp_path / "run" / mixed.FILE, replace(stored, arrays=arrays))
    with pytest.raises(InputError, match=rf"mixture\.safetensors: a damaged mixture \(.*({told})"):
        predict([tmp_path / "run"], molecules[0], backend="cpu")


def test_a_damaged_mixture_is_refused(molecules, best: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(best, copy)
    raw = bytearray((copy / mixed.FILE).read_bytes())
    raw[-9] ^= 1
    (copy / mixed.FILE).write_bytes(raw)
    with pytest.raises(InputError, match=r"mixture\.safetensors.*damaged"):
        predict([copy], molecules[0], backend="cpu")
    (copy / mixed.FILE).unlink()
    with pytest.raises(InputError, match=r"mixture\.safetensors.*no such checkpoint"):
        predict([copy], molecules[0], backend="cpu")


def test_explanations_say_the_share_of_the_networks(molecules, best: Path, tmp_path: Path) -> None:
    said: list[str] = []
    weight = json.loads((best / "metrics.json").read_text())["members"][2]["weight"]
    explain([best], molecules[0], tmp_path / "out", steps=4, backend="cpu", quiet=True, say=said.append)
    line = f"{best} is a mixture: its networks, of weight {weight:.2f}, are explained"
    assert any(text.startswith(line) for text in said)
    assert "is a mixture: its networks" in (tmp_path / "out" / "index.html").read_text()


def test_the_command_prints_scores_and_members(best: Path) -> None:
    found = json.loads((best / "metrics.json").read_text())
    lines = gcnbatch("train", "--resume", best).stdout.splitlines()
    assert lines[0] == (
        "4 networks, each trained without its part; cpu, random split, seed 0: 52 training and 13 test rows"
    )
    assert [line.split()[0] for line in lines[2:4]] == ["out", "test"]
    table = [line.split() for line in lines if line.split()[0] in ("kernel", "trees", "gcn")]
    assert table == [
        [of["name"], *(f"{of[key]:.4g}" for key in ("weight", "out_of_fold", "test"))] for of in found["members"]
    ]
