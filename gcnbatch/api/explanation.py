"""Explanations from Python, and the command ``gcnbatch explain``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gcnbatch.api.options import Settings, cuda
from gcnbatch.api.run import Run, folders_of
from gcnbatch.explanation import command
from gcnbatch.explanation.command import Output
from gcnbatch.inference.inputs import opened
from gcnbatch.inference.molecules import CsvOptions

if TYPE_CHECKING:
    from gcnbatch.explanation.command import ExplanationSummary
    from gcnbatch.fileio import StrPath


def explain(
    runs: Run | StrPath | Iterable[Run | StrPath],
    data: StrPath,
    out: StrPath | None = None,
    *,
    tasks: Sequence[str] = (),
    top: int = 0,
    steps: int = 0,
    backend: str = "auto",
    device: int = 0,
    resident: str | None = None,
    settings: Settings | None = None,
    batch_nodes: int | None = None,
    table: CsvOptions | None = None,
    on_bad_row: Literal["keep", "fail"] = "keep",
    output: Output | None = None,
    quiet: bool = True,
    say: Callable[[str], object] = lambda line: None,
) -> ExplanationSummary:
    """Write what each atom and bond adds to predictions: tables, drawings and a page; `Run.explain` returns arrays.

    Parameters
    ----------
    runs, data, backend, device, resident, settings, on_bad_row, table, quiet, say
        As for `gcnbatch.infer`.
    out : path
        A new folder; None: ``runs/explain-<time>``.
    tasks : sequence of str
        Tasks or classes; empty: all.
    top : int
        Only the rows with the highest prediction; 0: all.
    steps : int
        Positions on the path of integrated gradients; 0: as many as the completeness error needs.
    batch_nodes : int or None
        Nodes per batch, over all copies; None: chosen by the backend.
    output : Output
        Drawings or not, Parquet in place of CSV.

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
    with opened(data, table or CsvOptions(), say) as given:
        return command.explain(
            folders_of(runs),
            given.data,
            None if out is None else Path(out),
            tasks=tasks,
            top=top,
            steps=steps,
            backend=backend,
            device=device,
            cuda=cuda(settings or {}, resident),
            batch_nodes=batch_nodes or 0,
            csv=given.options,
            on_bad_row=on_bad_row,
            output=output,
            quiet=quiet,
            say=given.say,
        )
