"""Requests that are refused: each has a status and one line that says why."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gcnbatch.errors import InputError
from gcnbatch.serving.bodies import Limits
from gcnbatch.serving.keys import read_keys
from gcnbatch.serving.schema import CSV, JSON
from gcnbatch.serving.server import Models, loaded, serve
from tests.serving.servers import LIMITS, Server, serving

KEY = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "message"),
    [
        ("/predict", "{}", JSON, 422, "smiles: missing; expected a list of texts, at least one"),
        (
            "/predict",
            "{",
            JSON,
            422,
            "body: not JSON (EOF while parsing an object at line 1 column 1); expected an object of fields",
        ),
        ("/predict", '{"smiles": []}', JSON, 422, "smiles: []; expected a list of texts, at least one"),
        ("/predict", '{"smiles": "CCO"}', JSON, 422, "smiles: 'CCO'; expected a list of texts, at least one"),
        ("/predict", '{"smiles": [1]}', JSON, 422, "smiles.0: 1; expected a text"),
        (
            "/predict",
            '{"smiles": ["C"], "path": "/etc/passwd"}',
            JSON,
            422,
            "path: unknown field. Known: applicability, model, smiles.",
        ),
        (
            "/predict",
            '{"smiles": ["C"]}',
            JSON,
            422,
            "no model is named, and there are several. Known: mixture, plain.",
        ),
        ("/predict", '{"smiles": ["C"], "model": "plan"}', JSON, 404, "no model 'plan'. Did you mean 'plain'?"),
        ("/models/..%2F..%2Fetc/predict", '{"smiles": ["C"]}', JSON, 404, "no such path"),
        ("/models/etc/predict", '{"smiles": ["C"]}', JSON, 404, "no model 'etc'"),
        ("/predict", "smiles=C", "application/x-www-form-urlencoded", 415, "expected application/json or text/csv"),
        ("/predict", "{}", "", 415, "a body of no content type"),
        ("/predict?model=plain", "name,value\na,1\n", CSV, 422, "the table"),
        ("/predict?model=plain", "", CSV, 422, "the table"),
        ("/predict?model=plain", "smiles\n", CSV, 422, "the table: no row below the header line"),
        ("/predict?model=plain", b"smiles\n\xff\xfe\xff\n", CSV, 422, "the table"),
        ("/predict?model=plain&smiles_column=x", "smiles\nC\n", CSV, 422, "x"),
        ("/predict?model=plain&level=0.5", "smiles\nC\n", CSV, 422, "no parameter 'level'. Known: "),
        (
            "/models/plain/predict",
            '{"smiles": ["C"], "model": "mixture"}',
            JSON,
            422,
            "model 'mixture', in a request to model 'plain': expected one of them",
        ),
        ("/predict", "[]", JSON, 422, "body: []; expected an object of fields"),
        ("/predict", '{"smiles": ["C"], "applicability": 1}', JSON, 422, "applicability: 1; expected true or false"),
        ("/predict?model=plain", "a,b\nC,C\nCC,CC\n", CSV, 422, "Name it with smiles_column, or the separator"),
        (
            "/predict?model=plain&id_column=x",
            "smiles\nC\n",
            CSV,
            422,
            "no column 'x'; expected 'smiles'. See id_column",
        ),
        ("/predict?model=plain&delimiter=x", "smiles\nC\n", CSV, 422, "delimiter: 'x'; expected one of"),
        ("/predict?model=plain&encoding=x", "smiles\nC\n", CSV, 422, "encoding: 'x'; expected an encoding of text"),
        ("/explain", '{"smiles": "xx", "model": "plain"}', JSON, 422, "smiles: not valid SMILES"),
        ("/explain", '{"smiles": ["C"], "model": "plain"}', JSON, 422, "smiles: ['C']; expected a text"),
        ("/explain", "smiles\nC\n", CSV, 415, "expected application/json"),
    ],
)
def test_a_request_that_is_not_as_expected(
    server: Server, path: str, body: Any, kind: str, status: int, message: str
) -> None:
    found = server.ask("POST", path, body, kind)
    assert found.status == status, found
    assert message in found.error
    assert "--" not in found.error


def test_other_refusals(server: Server) -> None:
    assert "no such path; see /docs" in server.get("/predictions").error
    assert server.get("/predict").status == 405
    assert "no answer of image/png" in server.predict(["C"], accept="image/png").error
    found = server.ask("POST", "/predict", '{"smiles": ["C"]}', JSON, Host="attacker.example")
    assert (found.status, found.error.partition(";")[0]) == (421, "the header Host names another host than this one")


@pytest.fixture(scope="module")
def strict(runs: list[Path]) -> Iterator[Server]:
    """A server with small limits of sizes."""
    with serving(runs[:1], Limits(body=4000, molecules=10, seconds=60, waiting=20)) as found:
        yield found


@pytest.fixture(scope="module")
def hasty(runs: list[Path]) -> Iterator[Server]:
    """A server that waits one second."""
    with serving(runs[:1], Limits(body=4000, molecules=10, seconds=1, waiting=20)) as found:
        yield found


def test_the_only_model_needs_no_name(strict: Server) -> None:
    assert strict.ask("POST", "/predict", '{"smiles": ["C"]}', JSON).json["model"] == "plain"


def test_a_large_body(strict: Server) -> None:
    found = strict.predict(["C" * 5000])
    assert (found.status, found.error) == (413, "the body has more than 0 MiB")
    rows = b"smiles\n" + b"CCCCCCCCC\n" * 1000  # in one chunk, without its length beforehand
    with socket.create_connection(("127.0.0.1", urlsplit(strict.url).port or 0)) as connection:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(rows), rows))
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_many_molecules_of_json(strict: Server) -> None:
    found = strict.predict(["C"] * 11)
    assert (found.status, found.error) == (413, "11 molecules, more than 10: send fewer, or a CSV")
    assert strict.predict_csv("smiles\n" + "C\n" * 500).text.count("\n") == 501


def test_a_slow_body(hasty: Server) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(hasty.url).port or 0)) as connection:
        connection.sendall(head + b"\r\n{")
        answer = b"".join(iter(lambda: connection.recv(4000), b""))  # until the server closes
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body has not arrived in 1 s" in answer


def test_a_client_that_leaves_before_its_body_has_arrived_costs_nothing(server: Server) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)) as connection:
        connection.sendall(head + b"\r\n{")
    assert server.predict(["C"]).status == 200
    assert server.get("/health").json["waiting"] == 0


def test_models_whose_thread_has_ended(runs: list[Path]) -> None:
    with serving(runs[:1]) as server:
        server.queue.close()
        late = server.predict(["C"])
        assert (late.status, server.get("/health").status) == (500, 503)
        assert late.error == "the prediction failed: the models: their thread has ended. Start the server again."


def test_a_slow_prediction_and_a_full_queue(hasty: Server) -> None:
    with hasty.held():
        late = hasty.predict(["C"] * 10)
        assert (late.status, late.error) == (504, "no prediction in 1 s; send fewer molecules")
        full = hasty.predict_csv("smiles\n" + "C\n" * 30)
        assert full.status == 503
        assert "molecules wait; try again later" in full.error
        assert full.headers["retry-after"] == "1"
    found = asyncio.run(hasty.queue.predict(hasty.runs["plain"], ["C"]))  # without the limit of a second
    assert found.ids.tolist() == ["1"]
    assert hasty.get("/health").json["waiting"] == 0


def test_an_answer_that_has_begun_waits_for_a_full_queue(runs: list[Path]) -> None:
    with serving(runs[:1], LIMITS._replace(waiting=300)) as server:
        found = server.predict_csv("smiles\n" + "C\n" * 3000)  # parts of 256
    assert (found.status, found.text.count("\n")) == (200, 3001)


def test_a_failure_is_no_secret_and_no_end(strict: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inner words")

    with monkeypatch.context() as patch:
        patch.setattr(strict.runs["plain"], "finish", fail)
        found = strict.predict(["C"])
    assert (found.status, found.error) == (500, "the prediction failed: see the log of the server")
    assert strict.predict(["C"]).status == 200


def test_keys(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text(f"# of a colleague\n{KEY}\n\n{KEY[::-1]}\n")
    with serving(runs[:1], LIMITS, tmp_path / "keys.txt", private=True) as server:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": KEY}, {"Authorization": f"Basic {KEY}"}):
            found = server.get("/models", **headers)
            assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
            assert "a key is missing or wrong" in found.error
        for key in (KEY, KEY[::-1]):
            assert server.get("/models", Authorization=f"Bearer {key}", Host="other.example").status == 200
        assert server.get("/health").status == 200
        assert server.get("/openapi.json").json["security"] == [{"key": []}]
        assert 'id="key"' in server.get("/").text
        body = json.dumps({"smiles": "CCO"})
        found = server.ask("POST", "/explain", body, JSON, Authorization=f"Bearer {KEY}")
        assert found.json["nearest"] == []


def test_a_file_of_keys_that_has_none_or_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("# none\n")
    with pytest.raises(InputError, match=r"keys.txt: no key in it; expected a key on each line"):
        read_keys(path)
    path.write_text("short\n")
    with pytest.raises(InputError, match=r"keys.txt: a key of 5 characters; expected at least 16"):
        read_keys(path)


def test_runs_that_cannot_be_served(
    trained: tuple[Path, Path], described: tuple[Path, Path, Path], runs: list[Path]
) -> None:
    def refusal(*folders: Path) -> str:
        with pytest.raises(InputError) as caught, loaded(Models(folders, "cpu", processes=1)):
            pass
        return str(caught.value)

    assert re.search(
        r"run: a model of graphs; expected a model of molecules, as .* was not trained", refusal(trained[0])
    )
    assert "no feature column 'assay'" in refusal(described[0])
    assert "model plain: the name of two folders" in refusal(runs[0], runs[0])
    assert refusal() == "runs: none; expected at least one"


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("0.0.0.0", 0, r"--token-file: missing, with --host 0.0.0.0; expected a file of keys"),
        ("192.0.2.1", 0, r"--token-file: missing, with --host 192.0.2.1"),
        ("no such host", 0, r"--host: no such host: "),
    ],
)
def test_addresses(runs: list[Path], host: str, port: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        serve(Models(runs[:1], "cpu"), host, port, LIMITS)


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"--port: {port} is in use; expected a free one. Port 0 takes any."):
            serve(Models([Path("none")], "cpu"), "127.0.0.1", port, LIMITS)
