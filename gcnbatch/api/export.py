"""Export of a run as an ONNX model, and its model card; the commands ``gcnbatch export`` and ``gcnbatch card``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcnbatch import fileio
from gcnbatch.api.run import folder_of
from gcnbatch.onnx_export import command
from gcnbatch.options.declaration import arguments
from gcnbatch.options.results import CardOptions, ExportOptions
from gcnbatch.outputs import STDOUT, Kind, begins_with, check

if TYPE_CHECKING:
    from gcnbatch.onnx_export.command import ExportSummary

CARD = Kind("a model card", begins_with(b"# Model card"), (".md",))


@arguments(ExportOptions)
def export(given: ExportOptions) -> ExportSummary:
    """Write a run as an ONNX model, and beside it a Python file that makes its inputs from SMILES.

    Raises
    ------
    InputError
        When the run or the output cannot be used, or the model has a layer that the export does not support.
    CheckFailed
        When the predictions of ONNX Runtime differ from ours; then nothing is written.
    MachineError
        When the package onnx is not installed.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
    >>> gcnbatch.export(run, "model.onnx", check=10).members
    ('gcn',)
    """
    return command.export(
        folder_of(given.run), Path(given.out), without=given.without, check=given.check, say=given.say
    )


@arguments(CardOptions)
def card(given: CardOptions) -> str:
    """Return the model card of a run as Markdown, and write it where `out` names a file.

    A card in the folder of the run that somebody has edited is taken as it is.

    Raises
    ------
    InputError
        When the folder is not that of a finished run, or the output cannot be used.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
    >>> gcnbatch.card(run).splitlines()[0]
    '# Model card: quickstart'
    """
    from gcnbatch.run_report import files

    folder = folder_of(given.run)
    out = None if given.out == STDOUT else check(given.out, CARD, [folder])
    text = files.card(folder)
    if out is not None:
        fileio.write_text(out, text)
    return text
