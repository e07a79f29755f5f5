"""Predictions from Python, and the commands ``infer``, ``explain``, ``embed`` and ``serve``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import startup
from gcnbatch.api.options import cuda, optional_path
from gcnbatch.api.run import folders_of
from gcnbatch.errors import InputError, MachineError
from gcnbatch.inference import WORKER_MODULES
from gcnbatch.options.declaration import arguments
from gcnbatch.options.prediction import EmbedOptions, ExplainOptions, InferOptions, PredictingOptions, ServeOptions
from gcnbatch.ranks.launch import launched

if TYPE_CHECKING:
    from gcnbatch.embedding.command import EmbeddingSummary
    from gcnbatch.explanation.command import ExplanationSummary
    from gcnbatch.inference.ensemble import InferenceSummary
    from gcnbatch.inference.inputs import Data, Given
    from gcnbatch.workers.pool import Workers


@arguments(InferOptions)
def infer(given: InferOptions) -> InferenceSummary:
    """Predict every row of a file with the mean of all models of `runs`, and write a table. Memory stays bounded.

    Returns
    -------
    InferenceSummary
        Rows, models, seconds; metrics, where the data have labels.

    Raises
    ------
    InputError
        When runs, data or output cannot be used or do not match; then nothing is written.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
    >>> gcnbatch.write("molecules.h5", graphs)
    >>> run = gcnbatch.train(data="molecules.h5", epochs=1, settings={"model.widths": [4]}, out="run")
    >>> gcnbatch.infer(run, "molecules.h5", "predictions.csv").rows
    16
    """
    if launched() is not None:  # ranks share the cores
        return _infer(given, None)
    with startup.molecule_workers(given.data, given.processes, *WORKER_MODULES) as workers:
        return _infer(given, workers)


def _infer(given: InferOptions, workers: Workers | None) -> InferenceSummary:
    from gcnbatch.inference import ensemble
    from gcnbatch.inference.inputs import STDIN
    from gcnbatch.inference.tabulation import Selection

    if given.resume and given.data == STDIN:
        raise InputError("--resume", "with data from standard input", "a file of data")
    with predicting(given, given.data) as (data, common):
        return ensemble.infer(
            folders_of(given.runs),
            data,
            str(given.out),
            batch_size=given.batch_size,
            on_bad_row=given.on_bad_row,
            spreadsheet=given.spreadsheet,
            selection=Selection(given.top, given.threshold, given.by),
            resume=given.resume,
            level=given.level,
            applicability=given.applicability,
            workers=workers,
            **common,
        )


@arguments(ExplainOptions)
def explain(given: ExplainOptions) -> ExplanationSummary:
    """Write what each atom and bond adds to predictions: tables, drawings and a page; `Run.explain` returns arrays.

    Raises
    ------
    InputError
        When runs, data or output cannot be used or do not match.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
    >>> gcnbatch.write("molecules.h5", graphs)
    >>> run = gcnbatch.train(data="molecules.h5", epochs=1, settings={"model.widths": [4]}, out="run")
    >>> gcnbatch.explain(run, "molecules.h5", "explained", top=2).molecules
    2
    """
    from gcnbatch.explanation import command

    with predicting(given, given.data) as (data, common):
        return command.explain(
            folders_of(given.runs),
            data,
            optional_path(given.out),
            tasks=given.tasks,
            top=given.top,
            steps=given.steps,
            batch_nodes=given.batch_nodes or 0,
            on_bad_row=given.on_bad_row,
            output=command.Output(not given.no_drawings, given.parquet, given.spreadsheet),
            **common,
        )


@arguments(EmbedOptions)
def embed(given: EmbedOptions) -> EmbeddingSummary:
    """Write a vector for each row of a file: the values that enter the output layer of each network, side by side.

    Raises
    ------
    InputError
        When runs, data or outputs cannot be used or do not match.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
    >>> gcnbatch.write("molecules.h5", graphs)
    >>> run = gcnbatch.train(data="molecules.h5", epochs=1, settings={"model.widths": [4]}, out="run")
    >>> gcnbatch.embed(run, "molecules.h5", "vectors.npy").embedding
    4
    """
    from gcnbatch.embedding import command

    with predicting(given, given.data) as (data, common):
        return command.embed(
            folders_of(given.runs),
            data,
            Path(given.out),
            fingerprint=given.fingerprint,
            descriptors=given.descriptors,
            map_file=optional_path(given.map_file),
            **common,
        )


@arguments(ServeOptions)
def serve(given: ServeOptions) -> None:
    """Answer requests over HTTP with the predictions of runs, until SIGINT or SIGTERM; call it in the main thread.

    Each run is a model with the name of its folder. ``/docs`` of the server describes requests and answers.

    Raises
    ------
    InputError
        When a run cannot be served, or the address cannot be used.
    MachineError
        When the libraries of the server are not installed.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.serve([])
    Traceback (most recent call last):
    gcnbatch.errors.InputError: runs: none; expected at least one
    """
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise MachineError(
            "gcnbatch serve", f"{missing[0]} is not installed", hint="Install it: pip install 'gcnbatch[serve]'."
        )
    from gcnbatch.serving.bodies import Limits
    from gcnbatch.serving.server import Models, serve

    serve(
        Models(folders_of(given.runs), given.backend, given.device, cuda(given), given.processes, given.level),
        given.host,
        given.port,
        Limits(given.max_body << 20, given.max_molecules, given.timeout, given.max_waiting),
        token_file=optional_path(given.token_file),
        private=given.private,
        ready=given.ready,
        say=given.say,
    )


@contextmanager
def predicting(
    given: PredictingOptions, data: Any, takes_smiles: bool = False
) -> Iterator[tuple[Data, dict[str, Any]]]:
    """Open the data of a command that predicts; yield them and the keyword arguments that all such commands take.

    `takes_smiles`: the data may be a sequence of SMILES.
    """
    from gcnbatch.data.tables.layout import TableFormat
    from gcnbatch.inference.inputs import Given, opened
    from gcnbatch.inference.molecules import CsvOptions

    missing, kept = (tuple(getattr(given, name, ())) for name in ("missing", "keep_columns"))
    layout = TableFormat(given.delimiter, getattr(given, "decimal", ""), given.encoding, missing)
    csv = CsvOptions(given.smiles_column, given.id_column, given.processes, kept, layout)
    if takes_smiles and not isinstance(data, str | os.PathLike):
        source: AbstractContextManager[Given] = nullcontext(Given(list(data), csv, given.say))
    else:
        source = opened(data, csv, given.say)
    with source as found:
        if not found.data:
            raise InputError("data", "no molecule", "at least one")
        common: dict[str, Any] = {"backend": given.backend, "device": given.device, "cuda": cuda(given)}
        yield found.data, common | {"csv": found.options, "quiet": given.quiet, "say": found.say}
