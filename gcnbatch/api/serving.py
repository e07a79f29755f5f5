"""The server from Python, and the command ``gcnbatch serve``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gcnbatch.api.options import cuda
from gcnbatch.api.run import folders_of
from gcnbatch.errors import MachineError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.prediction import ServeOptions


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

    where = cuda(given.settings, given.resident)
    serve(
        Models(folders_of(given.runs), given.backend, given.device, where, given.processes, given.level),
        given.host,
        given.port,
        Limits(given.max_body << 20, given.max_molecules, given.timeout, given.max_waiting),
        token_file=None if given.token_file is None else Path(given.token_file),
        private=given.private,
        ready=given.ready,
        say=given.say,
    )
