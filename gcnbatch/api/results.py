"""Finished runs from Python, and the commands ``compare-runs``, ``report``, ``export`` and ``card``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import fileio
from gcnbatch.api.options import optional_path
from gcnbatch.api.run import folder_of, folders_of
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.results import CardOptions, CompareRunsOptions, ExportOptions, ReportOptions
from gcnbatch.outputs import STDOUT, Kind, begins_with, check

if TYPE_CHECKING:
    from gcnbatch.onnx_export.command import ExportSummary

CARD = Kind("a model card", begins_with(b"# Model card"), (".md",))


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs.

    Parameters
    ----------
    folder : Path
        Holds ``comparison.json``, ``scores.csv``, ``comparison.png`` and ``report.html``.
    content : dict
        ``comparison.json``: metric, confidence level, method, runs with their scores, pairs with their intervals.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def verdicts(self) -> list[str]:
        """A sentence per pair of runs."""
        return [pair["verdict"] for pair in self.content["pairs"]]


@arguments(CompareRunsOptions)
def compare_runs(given: CompareRunsOptions) -> Comparison:
    """Compare runs on the same data and splits; write a report.

    Raises
    ------
    InputError
        When the runs cannot be compared, or a score is not defined.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 6, [0.2, 1.9, -0.3, 0.1] * 6)
    >>> gcnbatch.write("molecules.h5", graphs)
    >>> runs = [
    ...     gcnbatch.train({"model": {"widths": [width]}}, "molecules.h5", epochs=1, folds=2, out=f"run{width}")
    ...     for width in (2, 4)
    ... ]
    >>> found = gcnbatch.compare_runs(runs, out="compared")
    >>> found.content["metric"], len(found.verdicts)
    ('rmse', 1)
    """
    from gcnbatch.run_comparison.comparison import compare

    folder, found = compare(folders_of(given.runs), optional_path(given.out), given.metric, given.level, given.parquet)
    return Comparison(folder, found.model_dump(mode="json"))


@arguments(ReportOptions)
def report(given: ReportOptions) -> Path:
    """Write ``report.html`` of a run, a study or a comparison of runs or backends; return its path.

    Raises
    ------
    InputError
        When the folder holds no finished result, a file in it is damaged, or figures are asked for of something other
        than a run, or of a run whose data set is gone or has changed.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
    >>> gcnbatch.report("quickstart").name
    'report.html'
    """
    from gcnbatch.lab.backend_comparison.report import JSON
    from gcnbatch.run_comparison.comparison import CONTENT
    from gcnbatch.training.run_files import STUDY, refuse_links

    place = Path(given.folder)
    if any((place / name).is_file() for name in (STUDY, CONTENT, JSON)):
        refuse_links(place)
        if given.figures:
            raise InputError("--figures", f"given with {place}", "the folder of a run")
    if (place / STUDY).is_file():
        from gcnbatch.tuning import search

        return search.report(place, given.say)
    if (place / CONTENT).is_file():
        from gcnbatch.run_comparison import comparison

        return comparison.report(place)
    if (place / JSON).is_file():
        from gcnbatch.lab.backend_comparison import report as backends_report

        return backends_report.rewrite(place)
    from gcnbatch.run_report import files

    return files.write(place, say=given.say, all_figures=given.figures)


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
    from gcnbatch.onnx_export import command

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
