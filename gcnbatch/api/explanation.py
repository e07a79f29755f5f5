"""Explanations from Python, and the command ``gcnbatch explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcnbatch.api.options import csv_options, cuda
from gcnbatch.api.run import folders_of
from gcnbatch.explanation import command
from gcnbatch.explanation.command import Output
from gcnbatch.inference.inputs import opened
from gcnbatch.options.declaration import arguments
from gcnbatch.options.prediction import ExplainOptions

if TYPE_CHECKING:
    from gcnbatch.explanation.command import ExplanationSummary


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
    with opened(given.data, csv_options(given), given.say) as source:
        return command.explain(
            folders_of(given.runs),
            source.data,
            None if given.out is None else Path(given.out),
            tasks=given.tasks,
            top=given.top,
            steps=given.steps,
            backend=given.backend,
            device=given.device,
            cuda=cuda(given.settings, given.resident),
            batch_nodes=given.batch_nodes or 0,
            csv=source.options,
            on_bad_row=given.on_bad_row,
            output=Output(not given.no_drawings, given.parquet, given.spreadsheet),
            quiet=given.quiet,
            say=source.say,
        )
