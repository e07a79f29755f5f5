"""Answers over HTTP: the numbers of `infer`, in every kind of body and answer; explanations, pages, OpenAPI."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.predictions import Predictions
from gcnbatch.serving import schema
from gcnbatch.serving.answers import molecules
from gcnbatch.serving.schema import CSV, HTML, JSON
from tests.builders import build_graphset
from tests.serving.servers import Server, at_once

SMILES = ["CCO", "c1ccccc1", "no molecule", "OCC(O)CO", "C" * 15, "C" * 40_000]
# Networks compute in float32, values are about 1 and rounded to 7 decimal places; other molecules may be in a product.
CLOSE = {"rel": 1e-5, "abs": 1e-6}
REASONS = [None, None, "a blank inside the SMILES", None, "15 atoms, more than 14", "40000 characters, more than 32000"]


def molecules_of(server: Server, model: str, smiles: list[str], **fields: Any) -> list[dict[str, Any]]:
    answer = server.predict(smiles, model=model, **fields)
    assert (answer.status, answer.kind) == (200, JSON)
    assert schema.Predicted.model_validate(answer.json).model == model
    return list(answer.json["molecules"])


def test_numbers_are_those_of_infer(server: Server, runs: list[Path]) -> None:
    for run in runs:
        found = molecules_of(server, run.name, SMILES[:4], applicability=True)
        expected = gcnbatch.load(run).predict(SMILES[:4], applicability=True, backend="cpu", processes=1)
        for row in (0, 1, 3):
            for name, kinds in expected.by_output().items():
                for kind, values in kinds.items():
                    value = found[row]["outputs"][name].get(kind)
                    if isinstance(values[row], str):
                        assert value == values[row]
                    else:
                        assert value == pytest.approx(float(values[row]), **CLOSE)
            for name, values in expected.beside.items():
                assert found[row][name] == pytest.approx(float(values[row]), rel=1e-5)
            (alone,) = molecules_of(server, run.name, [SMILES[row]], applicability=True)
            for name, kinds in found[row]["outputs"].items():
                assert alone["outputs"][name] == pytest.approx(kinds, **CLOSE)


def test_a_mixture_has_a_deviation_and_an_interval(server: Server) -> None:
    (found,) = molecules_of(server, "mixture", ["CCCCO"])
    (output,) = found["outputs"].values()
    assert output["deviation"] > 0
    assert output["low"] < output["value"] < output["high"]


def test_a_bad_row_has_a_reason_and_costs_no_other(server: Server) -> None:
    found = molecules_of(server, "plain", SMILES)
    assert [one["error"] for one in found] == REASONS
    assert [one["outputs"] is None for one in found] == [reason is not None for reason in REASONS]
    assert [one["smiles"] for one in found] == SMILES
    assert [one["id"] for one in found] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("model", ["plain", "mixture"])
@pytest.mark.parametrize("applicability", [False, True])
def test_molecules_of_which_none_can_be_read(server: Server, model: str, applicability: bool) -> None:
    found = molecules_of(server, model, ["xx", ""], applicability=applicability)
    assert [one["error"] for one in found] == ["not valid SMILES", "blank SMILES"]


def test_a_csv_is_answered_as_infer_writes_it(server: Server, runs: list[Path], tmp_path: Path) -> None:
    rows = [f"M{row},{'C' * (1 + row % 16)}O,note {row}" for row in range(700)]  # several parts
    (tmp_path / "new.csv").write_text("\n".join(["mol_id,structure,remark", *rows]) + "\n")
    answer = server.predict_csv((tmp_path / "new.csv").read_text())
    assert (answer.status, answer.kind) == (200, CSV)
    gcnbatch.infer(runs[0], tmp_path / "new.csv", tmp_path / "out.csv", keep_columns=["structure"], backend="cpu")
    served, expected = (
        list(csv.DictReader(io.StringIO(text))) for text in (answer.text, (tmp_path / "out.csv").read_text())
    )
    assert list(served[0]) == list(expected[0])
    numbers = [name for name in served[0] if name.startswith(("even", "third")) and not name.endswith("_set")]
    for one, other in zip(served, expected, strict=True):
        assert [one[name] for name in ("id", "structure", "error")] == [
            other[name] for name in ("id", "structure", "error")
        ]
        pairs = [(float(one[name] or "nan"), float(other[name] or "nan")) for name in numbers]
        assert np.allclose(*np.array(pairs).T, rtol=CLOSE["rel"], atol=CLOSE["abs"], equal_nan=True)


def test_body_and_answer_may_be_of_different_kinds(server: Server) -> None:
    table = "smiles;name\nCCO;a\nxx;b\n"
    as_json = server.predict_csv(table, "/models/plain/predict?id_column=name", JSON)
    assert [(one["id"], one["error"]) for one in as_json.json["molecules"]] == [("a", None), ("b", "not valid SMILES")]
    as_csv = server.predict(["CCO", "xx"], "/models/plain/predict", CSV)
    rows = list(csv.DictReader(io.StringIO(as_csv.text)))
    assert [(row["id"], row["smiles"], row["error"]) for row in rows] == [
        ("1", "CCO", ""),
        ("2", "xx", "not valid SMILES"),
    ]
    assert float(rows[0]["even"]) == pytest.approx(as_json.json["molecules"][0]["outputs"]["even"]["value"])
    page = server.predict(["CCO", "<b>"], "/models/plain/predict", HTML)
    assert (page.status, page.kind) == (200, HTML)
    assert "<svg" in page.text
    assert "&lt;b&gt;" in page.text
    assert "<b>2</b>" in page.text


def test_a_csv_may_have_applicability_and_labels(server: Server) -> None:
    answer = server.predict_csv("smiles,even\nCCO,1\nCCN,x\n", "/predict?model=plain&applicability=1")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert all(0 < float(row["nearest_similarity"]) <= 1 for row in rows)


def test_whatever_a_model_gives_is_in_the_answer() -> None:
    header = build_graphset(4, target="multiclass", seed=1).header
    task, (first, second, _) = header.task_names[0], header.class_names
    outputs = np.array([[0.7, 0.2, 0.1], [np.nan] * 3], np.float32)
    more: dict[str, Any] = {
        f"{task}_set": np.array([f"{first}|{second}", ""]),
        f"p({first})_calibrated": np.array([0.6, np.nan], np.float32),
        "nearest_similarity": np.array([0.5, np.nan], np.float32),
        "embedding_distance": np.array([1.5, np.nan], np.float32),
    }
    errors = np.array(["", "not valid SMILES"])
    table = Predictions(header, np.array(["a", "b"]), outputs, outputs / 2, errors, more=more, smiles=["CCO", "xx"])
    known, unknown = molecules(table)
    assert known == {
        "id": "a",
        "smiles": "CCO",
        "outputs": {
            task: {"class": first, "set": f"{first}|{second}"},
            f"p({first})": {"value": 0.7, "deviation": 0.35, "calibrated": 0.6},
            f"p({second})": {"value": 0.2, "deviation": 0.1},
            f"p({header.class_names[2]})": {"value": 0.1, "deviation": 0.05},
        },
        "nearest_similarity": 0.5,
        "embedding_distance": 1.5,
        "error": None,
    }
    assert unknown == {"id": "b", "smiles": "xx", "outputs": None, "error": "not valid SMILES"}
    assert schema.Predicted.model_validate({"model": "m", "molecules": [known, unknown]})


def test_requests_that_arrive_together_are_predicted_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sizes = server.runs["plain"], []
    begin = run.begin
    monkeypatch.setattr(run, "begin", lambda smiles, alone: (sizes.append(len(smiles)), begin(smiles, alone))[1])

    def ask(number: int) -> Any:
        return molecules_of(server, "plain", ["C" * (1 + number % 14)] * 3)

    with server.held():
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.extend(at_once(8, ask)))
        thread.start()
        while server.queue.waiting < 24 and thread.is_alive():
            time.sleep(0.01)
    thread.join()
    assert sizes == [24]
    assert [found[0]["smiles"] for found in results] == ["C" * (1 + number % 14) for number in range(8)]


def test_models_are_described(server: Server) -> None:
    found = server.get("/models").json
    assert [schema.ModelInfo.model_validate(one).name for one in found] == ["plain", "mixture"]
    assert [one["networks"] for one in found] == [1, 4]
    assert [name["name"] for name in found[0]["outputs"]] == ["even", "third"]
    assert found[0]["applicability"] == ""


def test_health_needs_nothing(server: Server) -> None:
    found = server.get("/health")
    assert found.status == 200
    assert schema.Health.model_validate(found.json).status == "ok"


@pytest.mark.parametrize("model", ["plain", "mixture"])
def test_an_explanation_adds_up_and_names_the_nearest_training_molecules(server: Server, model: str) -> None:
    answer = server.ask("POST", f"/models/{model}/explain", json.dumps({"smiles": "OCC(O)CO"}), JSON)
    assert answer.status == 200
    found = schema.Explanation.model_validate(answer.json)
    assert len(found.outputs) == {"plain": 2, "mixture": 1}[model]
    assert sorted(part.name for part in found.outputs[0].atoms) == ["C", "C", "C", "O", "O", "O"]
    assert found.drawing.startswith("<svg")
    similarities = [one.similarity for one in found.nearest]
    assert len(similarities) == 6
    assert similarities == sorted(similarities, reverse=True)
    if model == "plain":
        known = found.nearest[0].smiles
        again = server.ask("POST", f"/models/{model}/explain", json.dumps({"smiles": known}), JSON).json
        assert (again["nearest"][0]["smiles"], again["nearest"][0]["similarity"]) == (known, 1.0)
        assert set(found.nearest[0].measured) == {"even", "third"}
    else:
        assert "the model is a mixture: its networks" in found.notes[0]
    page = server.ask("POST", f"/models/{model}/explain", json.dumps({"smiles": "OCC(O)CO"}), JSON, HTML)
    assert "Nearest training molecules" in page.text


def test_openapi_describes_every_path(server: Server) -> None:
    found = server.get("/openapi.json").json
    assert found["openapi"].startswith("3.")
    for path in ("/health", "/models", "/predict", "/explain", "/models/{name}/predict", "/models/{name}/explain"):
        assert path in found["paths"]
    text = json.dumps(found)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == set(found["components"]["schemas"])
    assert set(found["paths"]["/predict"]["post"]["responses"]) >= {"200", "413", "415", "422", "503", "504"}


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_needs_nothing_from_the_network(server: Server, path: str) -> None:
    page = server.get(path)
    assert (page.status, page.kind) == (200, HTML)
    assert "default-src 'none'" in page.text
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page.text)


def test_the_editor_comes_from_the_wheel(server: Server) -> None:
    frame = server.get("/editor/index.html")
    assert "default-src 'none'" in frame.headers["content-security-policy"]
    assert server.get("/editor/jsme.nocache.js").status == 200
    assert "Novartis" in server.get("/editor/license.txt").text
