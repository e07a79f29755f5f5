"""``gcnbatch select``: what is chosen, what is left out, and what is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.builders import build_graphset
from tests.training.runs import lighten

pytest.importorskip("rdkit", reason="rdkit is not installed (the extra 'chem')")
SETTINGS: dict[str, Any] = {"model.widths": [8], "train.batch_size": 8, "train.epochs": 3, "backend": "cpu"}
MEASURED = ["CCO", "c1ccccc1", "CC#N", "CCN", "CC(=O)O", "OCC(O)CO"]
POOL = ["CCCCO", "OCC", "c1ccccc1O", "c1ccncc1", "CCCl", "CCCCCCCC", "CCCCCCCCC", "C1CCCCC1"]


def trained(folder: Path, name: str, values: list[Any], **options: Any) -> gcnbatch.Run:
    graphs = gcnbatch.from_smiles(MEASURED * 6, values * 6, name=name)
    gcnbatch.write(folder / f"{name}.h5", graphs, smiles=MEASURED * 6)
    return gcnbatch.train(data=folder / f"{name}.h5", settings=SETTINGS, out=folder / name, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, gcnbatch.Run]:
    """Three models of values, one of values, and three of labels."""
    folder = tmp_path_factory.mktemp("select")
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        return {
            "several": trained(folder, "several", [0.2, 1.9, -0.3, 0.1, 0.5, 0.7], ensemble=3),
            "one": trained(folder, "one", [0.2, 1.9, -0.3, 0.1, 0.5, 0.7]),
            "labels": trained(folder, "labels", [0, 1, 0, 0, 1, 1], ensemble=2),
        }


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    rows = [f"P{number},{text},{'A' if number % 2 else 'B'}" for number, text in enumerate([*POOL, "C("])]
    (tmp_path / "pool.csv").write_text("\n".join(["code,smiles,vendor", *rows]) + "\n")
    return tmp_path / "pool.csv"


def select(run: Any, data: Any, **options: Any) -> gcnbatch.Selected:
    return gcnbatch.select(run, data, backend="cpu", **options)


def chosen(found: gcnbatch.Selected, column: str = "smiles") -> list[str]:
    return list(found.columns[column].tolist())


def test_the_rows_of_the_pool_in_the_order_of_their_score(runs, pool, tmp_path, command) -> None:
    out = tmp_path / "next.csv"
    code, printed, err = command("select", runs["several"].folder, pool, "--n", 3, "-o", out, "--backend", "cpu")
    assert (code, printed) == (0, ""), err
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    texts = dict(zip((f"P{number}" for number in range(8)), POOL, strict=True))
    assert all(texts[row["code"]] == row["smiles"] for row in rows)
    assert all("expected improvement" in row["why"] for row in rows)
    assert "3 of 9 molecules chosen by expected improvement, maximising task0" in err
    assert "1 unreadable, 1 measured already" in err


def test_a_pool_with_a_column_of_the_task_is_no_test_of_the_model(runs, pool, tmp_path) -> None:
    lines = pool.read_text().splitlines()
    table = tmp_path / "values.csv"
    cells = ["task0", *["1.5", ">2", "x"] * 3]
    table.write_text("\n".join(f"{line},{cell}" for line, cell in zip(lines, cells, strict=True)) + "\n")
    said: list[str] = []
    found = select(runs["several"], table, n=3, say=said.append)
    assert "task0_" in found.columns
    assert not [line for line in said if "metrics" in line]


def test_scores_are_those_of_the_predictions(runs) -> None:
    found = runs["several"].predict(POOL)
    mean, deviation = found.outputs[:, 0], found.std[:, 0]
    options = {"diversity": 1.0, "n": 8}
    for by, score in {
        "greedy": mean,
        "uncertainty": deviation,
        "upper-bound": mean + 2 * deviation,
    }.items():
        table = select(runs["several"], POOL, by=by, deviations=2.0, **options)
        own = {text: value for text, value in zip(POOL, score, strict=True) if text != "OCC"}
        assert chosen(table) == sorted(own, key=lambda text: -own[text])
        np.testing.assert_allclose(table.columns["score"], sorted(own.values(), reverse=True), rtol=1e-6)
    smallest = select(runs["several"], POOL, by="greedy", minimise="task0", **options)
    largest = select(runs["several"], POOL, by="greedy", **options)
    assert chosen(smallest) == chosen(largest)[::-1]


def test_expected_improvement_is_the_mean_of_what_exceeds_the_upper_fifth(runs) -> None:
    table = select(runs["several"], POOL, diversity=1.0)
    draws = np.random.default_rng(0).standard_normal(400_000)
    high = np.quantile([0.2, 1.9, -0.3, 0.1, 0.5, 0.7] * 6, 0.8)
    for mean, deviation, score in zip(*(table.columns[name] for name in ("task0", "task0_std", "score")), strict=True):
        assert score == pytest.approx(np.maximum(mean + deviation * draws - high, 0).mean(), abs=5e-3)


def test_draws_depend_on_the_seed_alone(runs) -> None:
    first, again, other = (select(runs["several"], POOL, by="thompson", seed=seed) for seed in (1, 1, 2))
    assert first.columns["score"].tolist() == again.columns["score"].tolist()
    assert first.columns["score"].tolist() != other.columns["score"].tolist()


def test_molecules_that_are_too_similar_to_a_better_one_are_left_out(runs) -> None:
    found = select(runs["several"], ["CCCCCCCC", "CCCCCCCCC", "c1ccncc1", "n1ccccc1"], diversity=0.7)
    assert len(found) == 2
    assert found.left_out == {"too similar to a chosen one": 2}
    copies = select(runs["several"], ["c1ccncc1", "n1ccccc1"], diversity=1.0)
    assert len(copies) == 1


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("MW < 80", {"P0", "P3", "P4"}),
        ("vendor = A and mw < 80", {"P3"}),
        ('"vendor" != A and NumHeteroatoms >= 1', {"P0", "P2", "P4"}),
        ("HBD > 0 AND LogP > 1", {"P2"}),
    ],
)
def test_conditions_on_columns_and_descriptors(runs, pool, where: str, kept: set[str]) -> None:
    found = select(runs["several"], pool, where=where, diversity=1.0)
    assert set(chosen(found, "code")) == kept
    assert any(reason.startswith("not ") for reason in found.left_out)


def test_another_run_bounds_what_is_chosen(runs) -> None:
    both = [runs["several"], runs["labels"]]
    values = runs["labels"].predict(POOL).outputs[:, 0]
    middle = float(np.median(values))
    found = select(both, POOL, maximise="several.task0", below=[f"labels.task0={middle}"], diversity=1.0)
    assert set(chosen(found)) == {text for text, value in zip(POOL, values, strict=True) if value < middle} - {"OCC"}
    assert (found.columns["bounds_probability"] >= 0.5).all()
    rest = select(both, POOL, maximise="several.task0", above=[f"labels.task0={middle}"], diversity=1.0)
    assert not set(chosen(found)) & set(chosen(rest))


def test_labels_rank_by_the_probability_of_label_1(runs) -> None:
    found = select(runs["labels"], POOL, diversity=1.0)
    assert found.by == "greedy"
    assert "the probability of label 1 of task0" in found.text()
    assert (np.diff(found.columns["task0"]) <= 0).all()
    least = select(runs["labels"], POOL, by="uncertainty", diversity=1.0).columns["task0"]
    assert (np.diff(np.abs(least - 0.5)) >= -1e-6).all()


@pytest.mark.slow
def test_only_the_best_rows_of_a_large_pool_are_read(runs, monkeypatch) -> None:
    monkeypatch.setattr("gcnbatch.selection.candidates._LEAST_KEPT", 2)
    monkeypatch.setattr("gcnbatch.selection.candidates._KEPT", 2)
    monkeypatch.setattr("gcnbatch.inference.inputs.PART_ROWS", 8)
    large = [f"{'C' * (1 + number % 9)}O{'C' * (1 + number // 9)}" for number in range(300)]
    whole = select(runs["several"], large, n=1, by="greedy")
    best = runs["several"].predict(large).outputs[:, 0]
    assert chosen(whole) == [large[int(np.argmax(best))]]
    assert whole.examined < 300


def test_a_selection_as_parquet(runs, tmp_path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra 'tables')")
    select(runs["several"], POOL, n=2, out=tmp_path / "next.parquet")
    assert parquet.read_table(tmp_path / "next.parquet").column_names[:3] == ["rank", "smiles", "score"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "best"}, "--by: best; expected expected-improvement"),
        ({"maximise": "logP"}, "no output 'logP'"),
        ({"maximise": "task0", "minimise": "task0"}, "given together"),
        ({"below": ["task0"]}, "not TASK=NUMBER"),
        ({"below": ["task0=much"]}, "not TASK=NUMBER"),
        ({"where": "MW <"}, "cannot be read from 'MW <' on"),
        ({"where": "MW < 5 or LogP < 2"}, "after 'MW < 5'; expected and, and another comparison"),
        ({"where": "MW < 5 and"}, "expected and, and another comparison"),
        ({"where": "Mass < 5"}, "no such column or descriptor"),
        ({"where": "MW < heavy"}, "compared with 'heavy'; expected a number"),
        ({"where": "MW < 1"}, "no molecule is left"),
    ],
)
def test_refused(runs, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        select(runs["several"], POOL, **options)
    assert message in str(error.value)


def test_refused_models(runs, tmp_path) -> None:
    with pytest.raises(InputError, match=r"is one model, without a deviation.*Take greedy"):
        select(runs["one"], POOL)
    assert len(select(runs["one"], POOL, by="greedy"))
    with pytest.raises(InputError, match="is a probability"):
        select(runs["labels"], POOL, by="expected-improvement")
    with pytest.raises(InputError, match="missing, with 2 outputs"):
        select([runs["several"], runs["labels"]], POOL)
    with pytest.raises(InputError, match="is an output of several runs"):
        select([runs["several"], runs["labels"]], POOL, maximise="task0")
    with pytest.raises(InputError, match="two runs are called several"):
        select([runs["several"], runs["several"]], POOL)
    with pytest.raises(InputError, match="a data set; expected a file of molecules"):
        select(runs["several"], runs["several"].folder.parent / "several.h5")
    with pytest.raises(InputError, match="no molecule"):
        select(runs["several"], [])
    settings = {"train.epochs": 1, "train.batch_size": 1, "backend": "cpu"}
    nodes = build_graphset(1, level="node", n_channels=1, max_nodes=40, seed=2)
    of_nodes = gcnbatch.train(
        {"model": {"kind": "kipf", "widths": [4]}}, nodes, settings=settings, out=tmp_path / "nodes"
    )
    with pytest.raises(InputError, match="predicts nodes; expected a model of molecules"):
        select(of_nodes, POOL)


def test_a_run_without_its_molecules_is_refused(runs, tmp_path) -> None:
    with Dataset(runs["one"].folder.parent / "one.h5") as stored:
        unnamed = replace(stored.load(), smiles=None)
    gcnbatch.write(tmp_path / "unnamed.h5", unnamed)
    run = gcnbatch.train(data=tmp_path / "unnamed.h5", settings=SETTINGS, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"no SMILES in it; expected the molecules of the run\. Train on molecules"):
        select(run, POOL, by="greedy")


def test_a_task_without_a_measured_value_is_refused(tmp_path) -> None:
    values = [[value, np.nan] for value in (0.2, 1.9, -0.3, 0.1, 0.5, 0.7)]
    run = trained(tmp_path, "half", values, ensemble=2)
    assert len(select(run, POOL, n=2, maximise="task0"))
    for by in ("", "greedy"):
        with pytest.raises(InputError, match=r"half\.h5: no measured value of task1; expected some\. Maximise or"):
            select(run, POOL, maximise="task1", by=by)


def test_refused_command_lines(runs, pool, tmp_path, command) -> None:
    run = runs["several"].folder
    for words, message in (
        ([], "RUN_DIR... POOL: missing"),
        ([run, pool, "--rounds", 3], "--rounds: given with runs and POOL"),
        ([run, pool, "--campaign", pool], "--campaign: given with"),
        (["--campaign", pool, "--where", "MW < 5"], "--where: given with --campaign"),
        ([run, pool, "--json"], "-o FILE beside it"),
    ):
        code, _, err = command("select", *words)
        assert (code, message in err) == (2, True), err
