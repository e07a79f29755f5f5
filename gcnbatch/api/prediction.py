"""Prediction from Python, and the command ``gcnbatch infer``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gcnbatch.api.options import csv_options, cuda
from gcnbatch.api.run import folders_of
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.errors import InputError
from gcnbatch.inference import ensemble
from gcnbatch.inference.inputs import STDIN, opened
from gcnbatch.inference.tabulation import Selection
from gcnbatch.options.declaration import arguments
from gcnbatch.options.prediction import InferOptions

if TYPE_CHECKING:
    from gcnbatch.inference.ensemble import InferenceSummary


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
    if given.resume and given.data == STDIN:
        raise InputError("--resume", "with data from standard input", "a file of data")
    layout = TableFormat(given.delimiter, given.decimal, given.encoding, tuple(given.missing))
    csv = replace(csv_options(given), keep_columns=tuple(given.keep_columns), format=layout)
    with opened(given.data, csv, given.say) as source:
        return ensemble.infer(
            folders_of(given.runs),
            source.data,
            str(given.out),
            backend=given.backend,
            device=given.device,
            cuda=cuda(given.settings, given.resident),
            batch_size=given.batch_size,
            on_bad_row=given.on_bad_row,
            csv=source.options,
            spreadsheet=given.spreadsheet,
            selection=Selection(given.top, given.threshold, given.by),
            resume=given.resume,
            level=given.level,
            applicability=given.applicability,
            quiet=given.quiet,
            say=source.say,
        )
