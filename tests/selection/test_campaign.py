"""``gcnbatch select --campaign``: replayed campaigns."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import gcnbatch
from gcnbatch.errors import InputError

pytest.importorskip("rdkit", reason="rdkit is not installed (the extra 'chem')")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 molecules whose value is a sum of what their ends and their chain give."""
    ends = {"O": 1.0, "N": 0.3, "F": 2.2, "C#N": -0.5, "C(=O)O": 0.8}
    rows = [
        f"{left}{'C' * length}{right},{first + second + 0.1 * length:.3f}"
        for length in range(2, 10)
        for left, first in (("Cl", 0.7), ("O", 1.0), ("N", 0.3), ("C", 0.0), ("Br", 1.6))
        for right, second in ends.items()
    ]
    path = tmp_path_factory.mktemp("campaign") / "measured.csv"
    path.write_text("\n".join(["smiles,value", *rows]) + "\n")
    return path


def test_a_campaign_finds_more_than_chance(table, tmp_path, command) -> None:
    folder = tmp_path / "campaign"
    code, printed, err = command("select", "--campaign", table, "--rounds", 5, "-o", folder, "--json")
    assert code == 0
    with (folder / "campaign.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["measured"]) for row in rows] == [8, 14, 21, 27, 34, 40]
    shares = {name: np.array([float(row[name]) for row in rows]) for name in ("strategy", "greedy_forest", "random")}
    assert all((np.diff(of) >= 0).all() for of in shares.values())
    assert len({of[0] for of in shares.values()}) == 1
    assert shares["strategy"][-1] > 2 * shares["random"][-1]
    assert json.loads(printed)["strategy"] == shares["strategy"][-1]
    assert "after 40 of 200 rows" in err
    assert (folder / "campaign.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_campaign(table, tmp_path) -> None:
    first, again, other = (
        gcnbatch.campaign(table, rounds=2, n=5, by="thompson", seed=seed, out=tmp_path / name)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.columns["strategy"].tolist() == again.columns["strategy"].tolist()
    assert first.columns["strategy"].tolist() != other.columns["strategy"].tolist()


def test_the_smallest_values_are_the_best_when_minimising(table, tmp_path) -> None:
    found = gcnbatch.campaign(table, rounds=3, minimise="value", out=tmp_path / "small")
    assert found.summary["strategy"] > 2 * found.summary["random"]


def test_a_campaign_with_a_recipe_trains_networks(table, tmp_path) -> None:
    found = gcnbatch.campaign(
        table, rounds=1, n=4, recipe="gcn", settings={"train.epochs": 1}, backend="cpu", out=tmp_path / "gcn"
    )
    assert found.columns["measured"].tolist() == ["8", "12"]


def test_refused(table, tmp_path) -> None:
    lines = table.read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[:30]) + "\n")
    (tmp_path / "labels.csv").write_text("smiles,hit\n" + "".join(f"{'C' * n}O,{n % 2}\n" for n in range(1, 60)))
    (tmp_path / "hits.csv").write_text(
        "smiles,a,b\n" + "".join(f"{'C' * n}O,{n % 2},{n % 3 % 2}\n" for n in range(1, 60))
    )
    (tmp_path / "none.csv").write_text("smiles\n" + "".join(f"{'C' * n}O\n" for n in range(1, 60)))
    (tmp_path / "two.csv").write_text("smiles,a,b\n" + "".join(f"{'C' * n}O,{n}.5,{n}.2\n" for n in range(1, 60)))
    for place, options, message in (
        ("few.csv", {}, "29 measured rows.*expected at least 40"),
        ("labels.csv", {"maximise": "hit"}, "labels, no numbers: hit; expected a column of measured numbers"),
        ("hits.csv", {}, "labels, no numbers: a, b; expected .* Name it with --maximise"),
        ("none.csv", {}, "0 measured rows"),
        ("two.csv", {}, "not clear which of the columns are targets .*Name them with --maximise or --minimise"),
        (table, {"n": 100}, r"8 \+ 2000 of 200 rows"),
        (table, {"by": "best"}, "--by: best"),
    ):
        with pytest.raises(InputError, match=message):
            gcnbatch.campaign(tmp_path / place, out=tmp_path / "refused", **options)
        assert not (tmp_path / "refused").exists()
