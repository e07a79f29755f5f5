"""The application: routes, handlers of requests, and their answers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gcnbatch import __version__
from gcnbatch.data.tables.smi import without_extension
from gcnbatch.errors import GcnbatchError, InputError, nearest
from gcnbatch.inference.loaded import LoadedRun
from gcnbatch.inference.molecules import SMILES
from gcnbatch.predictions import Predictions, output_names
from gcnbatch.serving import explaining, pages
from gcnbatch.serving.answers import ANSWERS, Answer
from gcnbatch.serving.bodies import Chunk, Limits, Refused, csv_chunks, read_json
from gcnbatch.serving.explaining import RunExplainer
from gcnbatch.serving.keys import check_key
from gcnbatch.serving.queue import Full, PredictionQueue, Runs
from gcnbatch.serving.schema import CSV, HTML, JSON, OF_CSV, ExplainRequest, PredictRequest, openapi
from gcnbatch.text import QUOTED, printable, quoted

PART = 256  # rows of JSON that are one job of the queue, and one part of the answer
_RETRY_SECONDS = 0.05  # until a part of an answer asks a full queue again
_AHEAD = 8  # parts of a request that are queued or predicted at once
Result = TypeVar("Result")
Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """Handlers of requests.

    Parameters
    ----------
    queue : PredictionQueue
        Started.
    runs : mapping of LoadedRun
    limits : Limits
    keys : tuple of bytes
        Digests; none: requests need no key.
    private : bool
        Show no training molecules.
    """

    def __init__(
        self, queue: PredictionQueue, runs: Runs, limits: Limits, keys: tuple[bytes, ...] = (), private: bool = False
    ) -> None:
        self._queue, self._runs, self._limits, self._keys = queue, runs, limits, keys
        self._explainers = {name: RunExplainer(run, private) for name, run in runs.items()}

    def app(self) -> Starlette:
        """Return the application."""
        described, policy = openapi(bool(self._keys)), {"Content-Security-Policy": pages.FRAME_POLICY}
        routes: list[Mount | Route] = []  # the first that matches answers: those that must be quick come first
        for start in ("", "/models/{name}"):
            routes.append(Route(f"{start}/predict", self._checked(self.predict), methods=["POST"]))
            routes.append(Route(f"{start}/explain", self._checked(self.explain), methods=["POST"]))
        routes += [
            Route("/health", self.health),
            Route("/models", self._checked(self.models)),
            Route("/", _fixed(pages.main(list(self._runs), bool(self._keys)), HTML)),
            Route("/docs", _fixed(pages.interface(described), HTML)),
            Route("/openapi.json", _fixed(json.dumps(described), JSON)),
            Route("/favicon.ico", _fixed(b"", "image/x-icon")),  # browsers ask for it
            Route("/editor/index.html", _fixed(pages.FRAME_PAGE, HTML, policy)),
            Mount("/editor", StaticFiles(directory=pages.JSME)),
        ]
        handlers: dict[Any, Any] = {Refused: _refuse, HTTPException: _no_such, Exception: _failed}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def health(self, request: Request) -> Response:
        """Answer the state of the server."""
        failed = self._queue.failure or ("" if self._queue.alive else "the thread of the models has ended")
        about = {"status": "failed" if failed else "ok", "waiting": self._queue.waiting, "version": __version__}
        return JSONResponse(about, 503 if failed else 200)

    async def models(self, request: Request) -> Response:
        """Answer the list of models."""
        return JSONResponse([describe(name, run) for name, run in self._runs.items()])

    async def predict(self, request: Request) -> Response:
        """Predict the molecules of a body."""
        kind = _kind_of_body(request, (JSON, CSV))
        answer_kind = _kind_of_answer(request, kind, tuple(ANSWERS))
        if kind == JSON:
            given = await read_json(request, PredictRequest, self._limits)
            if len(given.smiles) > self._limits.molecules:
                most = f"more than {self._limits.molecules:,}: send fewer, or a CSV"
                raise Refused(413, f"{len(given.smiles):,} molecules, {most}")
            name, run = self._run(request, given.model)
            chunks, applicability = _parts(given.smiles), given.applicability
        else:
            asked = request.query_params
            if unknown := sorted(set(asked) - set(OF_CSV)):
                raise Refused(422, f"no parameter {quoted(unknown[0])}. {nearest(unknown[0], OF_CSV)}")
            name, run = self._run(request, asked.get("model", ""))
            chunks = csv_chunks(request, self._limits, run.header, asked)
            applicability = asked.get("applicability", "") in ("1", "true")
        tables = self._predicted(run, chunks, applicability)
        return await _written(ANSWERS[answer_kind], answer_kind, name, tables)

    async def explain(self, request: Request) -> Response:
        """Explain the prediction of a molecule."""
        _kind_of_body(request, (JSON,))
        kind = _kind_of_answer(request, JSON, (JSON, HTML))
        given = await read_json(request, ExplainRequest, self._limits)
        name, _ = self._run(request, given.model)
        try:
            found = await self._in_time(self._queue.call(partial(self._explainers[name], given.smiles)))
        except InputError as error:
            raise Refused(422, str(error)) from error
        if kind == HTML:
            return Response(await run_in_threadpool(explaining.page, found), media_type=HTML)
        return JSONResponse({"model": name, **found._asdict()})

    def _checked(self, handler: Handler) -> Handler:
        async def call(request: Request) -> Response:
            check_key(request, self._keys)
            return await handler(request)

        return call

    def _run(self, request: Request, named: str) -> tuple[str, LoadedRun]:
        """Return the name and run of the model that the path or the field names."""
        name = request.path_params.get("name", "") or named
        if named and name != named:
            raise Refused(422, f"model {quoted(named)}, in a request to model {quoted(name)}: expected one of them")
        if not name and len(self._runs) == 1:
            name = next(iter(self._runs))
        if not name:
            raise Refused(422, f"no model is named, and there are several. {nearest('', self._runs)}")
        if name not in self._runs:
            raise Refused(404, f"no model {quoted(name)}. {nearest(name, self._runs)}")
        return name, self._runs[name]

    async def _predicted(
        self, run: LoadedRun, chunks: AsyncGenerator[Chunk], applicability: bool
    ) -> AsyncGenerator[Predictions]:
        """Yield the predictions of chunks in order; up to _AHEAD chunks are in the queue at once."""
        under_way: deque[tuple[Chunk, asyncio.Task[Predictions]]] = deque()
        try:
            async for chunk in chunks:
                answer = self._part(run, chunk, applicability, begun=bool(under_way))
                under_way.append((chunk, asyncio.create_task(answer)))
                if len(under_way) >= _AHEAD:
                    yield _with_own(under_way[0][0], await under_way[0][1])
                    under_way.popleft()
            for chunk, job in under_way:
                yield _with_own(chunk, await job)
        finally:
            for _, job in under_way:
                job.cancel()
            await chunks.aclose()

    async def _part(self, run: LoadedRun, chunk: Chunk, applicability: bool, begun: bool) -> Predictions:
        """Return the predictions of a chunk. If the queue is full, an answer that has `begun` retries."""
        while True:
            try:
                return await self._in_time(self._queue.predict(run, chunk.smiles, applicability))
            except Refused as error:
                if error.status != 503 or not begun:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _in_time(self, job: Awaitable[Result]) -> Result:
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await job
        except TimeoutError:
            raise Refused(504, f"no prediction in {self._limits.seconds:g} s; send fewer molecules") from None
        except Full:
            waiting = f"{self._queue.waiting:,} molecules wait"
            raise Refused(503, f"{waiting}; try again later", Retry_After="1") from None


def describe(name: str, run: LoadedRun) -> dict[str, Any]:
    """Return a model as `gcnbatch.serving.schema.ModelInfo`."""
    header, predictor = run.header, run.predictor
    return {
        "name": name,
        "target": header.target,
        "outputs": [{"name": one, "unit": header.units.get(one, "")} for one in output_names(header)],
        "networks": len(predictor.members),
        "backend": predictor.choice.fastest.name,
        "level": predictor.trust.level if predictor.trust.uncertainties else None,
        "applicability": run.why_no_domain,
    }


async def _parts(smiles: Sequence[str]) -> AsyncGenerator[Chunk]:
    """Yield molecules of JSON."""
    for first in range(0, len(smiles), PART):
        own = list(smiles[first : first + PART])
        texts = [without_extension(text.strip()) for text in own]
        ids = np.arange(first + 1, first + 1 + len(own)).astype(np.str_)
        yield Chunk(texts, ids, {SMILES: np.array(own, dtype=np.str_)})


def _with_own(chunk: Chunk, table: Predictions) -> Predictions:
    """Return predictions with the ids and columns of their chunk."""
    return replace(table, ids=chunk.ids, kept=chunk.kept, smiles=chunk.smiles)


async def _written(answer: Answer, kind: str, name: str, tables: AsyncGenerator[Predictions]) -> Response:
    """Return predictions as one response, or stream them by part: then the first part gives the status."""
    first = await anext(tables)
    rows = await run_in_threadpool(answer.rows, first, True) if kind == HTML else answer.rows(first, True)
    begin = answer.head(name, first) + rows
    following = None if answer.parts else await anext(tables, None)
    if following is None:
        await tables.aclose()
        return Response(begin + answer.tail, media_type=kind)

    async def parts() -> AsyncGenerator[str]:
        yield begin
        yield answer.rows(following, False)
        async for table in tables:
            yield answer.rows(table, False)
        yield answer.tail

    return StreamingResponse(parts(), media_type=kind)


def _kind_of_body(request: Request, known: Sequence[str]) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in known:
        got = printable(kind, QUOTED) or "no content type"
        raise Refused(415, f"a body of {got}; expected {' or '.join(known)}")
    return kind


def _kind_of_answer(request: Request, default: str, known: Sequence[str]) -> str:
    """Return the first known media type that the header Accept names; `default` if it accepts any."""
    asked = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "*/*").split(",")]
    for kind in asked:
        if kind in known:
            return kind
        if kind in ("*/*", f"{default.partition('/')[0]}/*"):
            return default
    raise Refused(406, f"no answer of {printable(', '.join(asked), QUOTED)}; there are {', '.join(known)}")


def _fixed(content: str | bytes, kind: str, headers: Mapping[str, str] | None = None) -> Handler:
    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers=headers)

    return answer


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


async def _refuse(request: Request, error: Any) -> Response:
    return _refusal(error.status, error.message, error.headers)


async def _no_such(request: Request, error: Any) -> Response:
    """Answer a path or a method that is not there."""
    if error.status_code == 404:
        return _refusal(404, "no such path; see /docs")
    return _refusal(error.status_code, f"{str(error.detail).lower()}; see /docs", error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer an error of the server; its log has the traceback."""
    known = str(error) if isinstance(error, GcnbatchError) else "see the log of the server"
    return _refusal(500, f"the prediction failed: {known}")
