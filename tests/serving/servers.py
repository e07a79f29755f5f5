"""A server in a thread of the test process, and its client."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import uvicorn

from gcnbatch.serving.app import Service
from gcnbatch.serving.bodies import Limits
from gcnbatch.serving.keys import read_keys
from gcnbatch.serving.queue import PredictionQueue, Runs
from gcnbatch.serving.schema import CSV, JSON
from gcnbatch.serving.server import Models, loaded

LIMITS = Limits(body=1 << 20, molecules=1000, seconds=60, waiting=10_000)


class Answer(NamedTuple):
    status: int
    kind: str
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        """The only thing that a refusal says."""
        found = self.json
        assert list(found) == ["error"]
        assert "\n" not in found["error"]
        return str(found["error"])


@dataclass
class Server:
    url: str
    queue: PredictionQueue
    runs: Runs

    def ask(self, method: str, path: str, body: Any = None, kind: str = "", accept: str = "", **headers: str) -> Answer:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= {"Content-Type": kind} if kind else {}
        given |= {"Accept": accept} if accept else {}
        connection.request(method, path, body, given)
        found = connection.getresponse()
        text = found.read().decode()
        connection.close()
        kind = (found.getheader("content-type") or "").partition(";")[0]
        return Answer(found.status, kind, text, {name.lower(): value for name, value in found.getheaders()})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def predict(self, smiles: Sequence[str], path: str = "/predict", accept: str = "", **fields: Any) -> Answer:
        fields = {"model": "plain", **fields} if path == "/predict" else fields
        return self.ask("POST", path, json.dumps({"smiles": smiles, **fields}), JSON, accept)

    def predict_csv(self, text: str, path: str = "/predict?model=plain", accept: str = "") -> Answer:
        return self.ask("POST", path, text.encode(), CSV, accept)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the models busy."""
        begun, end = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            end.wait()

        thread = threading.Thread(target=asyncio.run, args=(self.queue.call(wait),))
        thread.start()
        begun.wait()
        try:
            yield
        finally:
            end.set()
            thread.join()


@contextmanager
def serving(
    runs: Sequence[Path], limits: Limits = LIMITS, token_file: Path | None = None, private: bool = False
) -> Iterator[Server]:
    queue = PredictionQueue(lambda: loaded(Models(runs, "cpu", processes=1)), limits.waiting)
    try:
        found = queue.start()
        keys = read_keys(token_file) if token_file else ()
        app = Service(queue, found, limits, keys, private).app()
        server = uvicorn.Server(uvicorn.Config(app, port=0, http="h11", ws="none", log_config=None))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Server(f"http://127.0.0.1:{port}", queue, found)
        finally:
            server.should_exit = True
            thread.join()
    finally:
        queue.close()


def at_once(count: int, call: Any) -> list[Any]:
    """Return what so many calls return that run at the same time."""
    results: list[Future[Any]] = [Future() for _ in range(count)]

    def work(number: int) -> None:
        try:
            results[number].set_result(call(number))
        except BaseException as error:
            results[number].set_exception(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one.result() for one in results]
