"""Bodies of requests: JSON is read into memory, a CSV into a temporary file that is read in chunks of rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from gcnbatch.data.schema import Header
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.smi import without_extension
from gcnbatch.data.tables.table import with_numbers
from gcnbatch.errors import GcnbatchError, InputError, Misfit, nearest
from gcnbatch.inference.molecules import CsvOptions, open_rows
from gcnbatch.serving.schema import OF_CSV

Body = TypeVar("Body", bound=BaseModel)
TABLE = "the table"  # what messages call the file of a CSV
_TYPES: dict[Any, str] = {list[str]: "a list of texts, at least one", str: "a text", bool: "true or false"}


class Refused(Exception):
    """A refused request: HTTP status, one line of text, and headers.

    Parameters
    ----------
    status : int
    message : str
    headers : dict of str
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Limits(NamedTuple):
    """Limits of a request: bytes of the body, molecules of JSON, seconds for the body and for each part of the answer.

    `waiting`: molecules of all requests that may wait.
    """

    body: int
    molecules: int
    seconds: float
    waiting: int


async def pieces(request: Request, limits: Limits) -> AsyncGenerator[bytes]:
    """Yield the body.

    Raises
    ------
    Refused
        When it is too large or arrives too slowly.
    """
    most = f"{limits.body >> 20:,} MiB"
    if int(request.headers.get("content-length") or 0) > limits.body:
        raise Refused(413, f"the body has more than {most}", Connection="close")
    size = 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > limits.body:
                    raise Refused(413, f"the body has more than {most}", Connection="close")
                yield piece
    except TimeoutError:
        raise Refused(408, f"the body has not arrived in {limits.seconds:g} s", Connection="close") from None
    except ClientDisconnect:
        raise Refused(408, "the body has not arrived") from None


async def read_json(request: Request, kind: type[Body], limits: Limits) -> Body:
    """Return a body of JSON.

    Raises
    ------
    Refused
        As `pieces`, and when it is not as expected.
    """
    body = b"".join([piece async for piece in pieces(request, limits)])
    try:
        return kind.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise Refused(422, str(_misfit(error, kind))) from None


def _misfit(error: ValidationError, kind: type[BaseModel]) -> InputError:
    """Return the first field of a body that is not as expected, and why."""
    first = Misfit.of(error)
    subject = ".".join(first.keys)
    if first.kind == "extra_forbidden":
        return InputError(subject, "unknown field", hint=nearest(subject, kind.model_fields))
    if not first.keys:
        return InputError("body", first.got, "an object of fields")
    name, *place = first.keys
    return InputError(subject, first.got, _TYPES[str if place else kind.model_fields[name].annotation])


class Chunk(NamedTuple):
    """Rows: SMILES to predict, ids, and columns that are copied to the answer."""

    smiles: list[str]
    ids: NDArray[np.str_]
    kept: dict[str, NDArray[np.str_]]


async def csv_chunks(
    request: Request, limits: Limits, header: Header, asked: Mapping[str, str]
) -> AsyncGenerator[Chunk]:
    """Yield the rows of a CSV for models of this header, after the whole body has arrived; `asked` are its parameters.

    An earlier answer could deadlock with a client that sends the whole body before it reads.

    Raises
    ------
    Refused
        As `pieces`, and when the table cannot be read.
    """
    with TemporaryDirectory(prefix="gcnbatch-") as folder, ExitStack() as stack:
        path = Path(folder) / "body.csv"
        with path.open("wb") as file:
            async for piece in pieces(request, limits):
                file.write(piece)
        try:
            form = TableFormat(asked.get("delimiter", ""), asked.get("decimal", ""), asked.get("encoding", ""))
            options = CsvOptions(asked.get("smiles_column", ""), asked.get("id_column", ""), format=form)
            opened = open_rows(path, header, options)
            columns, _, _, chunks = await run_in_threadpool(stack.enter_context, opened)
            while (rows := await run_in_threadpool(next, chunks, None)) is not None:
                ids = with_numbers(rows.texts(columns.id) if columns.id else [""] * len(rows), rows.before)
                kept = {columns.smiles: np.array(rows.texts(columns.smiles), dtype=np.str_)}
                yield Chunk(list(map(without_extension, rows[columns.smiles])), np.array(ids, dtype=np.str_), kept)
        except GcnbatchError as error:
            error.rename(str(path), TABLE)
            for name in OF_CSV:  # as the command line calls it
                error.rename(f"--{name.replace('_', '-')}", name)
            raise Refused(422, str(error)) from error
