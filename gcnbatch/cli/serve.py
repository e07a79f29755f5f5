"""``gcnbatch serve``: collects its options and prints the address."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command, messages
from gcnbatch.options.prediction import ServeOptions

EPILOG = """\b
Examples:
  gcnbatch serve runs/tox21              then open http://127.0.0.1:8000/
  gcnbatch serve runs/tox21 runs/logp    two models, named like their folders
  gcnbatch serve runs/tox21 --host 0.0.0.0 --token-file keys.txt
  curl http://127.0.0.1:8000/predict -H 'Content-Type: application/json' \\
    -d '{"smiles": ["CCO"]}'

The page / predicts molecules that are pasted, dropped as a CSV or drawn. /docs describes requests for programs:
POST /predict with JSON or a CSV, GET /models, GET /health. Molecules that arrive together are predicted together.
Ctrl-C or SIGTERM ends the server after the answers under way.
"""

Runs = Annotated[list[str], typer.Argument(metavar="RUN_DIR...", help="Folders of runs.", show_default=False)]


@command(ServeOptions)
def serve(
    runs: Runs,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages.")] = False,
    **options: Any,
) -> None:
    """Serve predictions over HTTP, and as a page in the browser.

    The URL on stdout says that requests are answered.
    """
    from gcnbatch.api import prediction

    def ready(url: str) -> None:
        print(url, flush=True)

    prediction.serve(runs, **options, ready=ready, say=messages(quiet))
