"""Prediction from Python, and the command ``gcnbatch infer``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from gcnbatch.api.options import Settings, cuda
from gcnbatch.api.run import Run, folders_of
from gcnbatch.api.training import Say
from gcnbatch.errors import InputError
from gcnbatch.inference import ensemble
from gcnbatch.inference.inputs import STDIN, opened
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.outputs import STDOUT

if TYPE_CHECKING:
    from gcnbatch.fileio import StrPath
    from gcnbatch.inference.ensemble import InferenceSummary
    from gcnbatch.inference.tabulation import Selection
    from gcnbatch.inference.trust import Level


def infer(
    runs: Run | StrPath | Iterable[Run | StrPath],
    data: StrPath,
    out: StrPath = STDOUT,
    *,
    backend: str = "auto",
    device: int = 0,
    resident: str | None = None,
    settings: Settings | None = None,
    batch_size: int | None = None,
    on_bad_row: Literal["keep", "fail"] = "keep",
    table: CsvOptions | None = None,
    spreadsheet: bool = False,
    selection: Selection | None = None,
    resume: bool = False,
    level: Level = "training",
    applicability: bool = False,
    quiet: bool = True,
    say: Say = lambda line: None,
) -> InferenceSummary:
    """Predict every row of a file with the mean of all models of `runs`, and write a table. Memory stays bounded.

    Parameters
    ----------
    runs : Run, path, or several
        A run with folds counts as all its folds.
    data : path or str
        HDF5 data set, or a file or folder of molecules; ``"-"``: a table or lines of SMILES on standard input. A text
        that names no file and is a SMILES is one molecule.
    out : path
        A .csv, .jsonl, .h5 or .parquet file; ``"-"``: CSV on standard output.
    backend, device, resident, batch_size
        The options of the command.
    settings : mapping
        Keys of [cuda] by name, such as ``{"cuda.precision": "tf32"}``.
    on_bad_row : {"keep", "fail"}
        A molecule that cannot be read keeps a blank row with the reason, or raises an error.
    table : CsvOptions
        Columns and format of a table of molecules.
    spreadsheet : bool
        Put an apostrophe before texts of a CSV that a spreadsheet would run as formulas.
    selection : Selection
        The rows to write; None: all.
    resume : bool
        Go on where a killed prediction was stopped.
    level : float, "training" or None
        Level of conformal intervals and sets, that of training by default; None: predictions alone.
    applicability : bool
        Add similarity and embedding distance to the nearest training molecule.
    quiet, say
        As for `gcnbatch.train`.

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
    if resume and data == STDIN:
        raise InputError("--resume", "with data from standard input", "a file of data")
    with opened(data, table or CsvOptions(), say) as given:
        return ensemble.infer(
            folders_of(runs),
            given.data,
            str(out),
            backend=backend,
            device=device,
            cuda=cuda(settings or {}, resident),
            batch_size=batch_size,
            on_bad_row=on_bad_row,
            csv=given.options,
            spreadsheet=spreadsheet,
            selection=selection,
            resume=resume,
            level=level,
            applicability=applicability,
            quiet=quiet,
            say=given.say,
        )
