"""Parameters of the commands that read finished runs: ``compare-runs``, ``report``, ``export`` and ``card``."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from gcnbatch.fileio import StrPath
from gcnbatch.options.common import Messages, output_folder, silent
from gcnbatch.options.declaration import argument, declaration, option

if TYPE_CHECKING:
    from gcnbatch.api.run import Run


@declaration
class CompareRunsOptions:
    """``gcnbatch compare-runs``."""

    runs: "Iterable[Run | StrPath]" = argument("Folders of runs.", metavar="RUN_DIR RUN_DIR...", typed=list[Path])
    _: KW_ONLY
    out: StrPath | None = output_folder("DIR", "Folder of the report.", "compare-runs")
    metric: str = option("Figure of the test rows.", default="", shown="roc_auc, accuracy or rmse by target")
    level: float = option("Confidence level.", default=0.95, min=0.5, max=0.999)
    parquet: bool = option("Write scores.parquet beside scores.csv.", default=False)


@declaration
class ReportOptions:
    """``gcnbatch report``."""

    folder: StrPath = argument(
        "Folder of a run, a study or a comparison.",
        metavar="DIR",
        doc="Of a run, which also gets its ``model_card.md``; of a study, which also gets its tables; or of a "
        "comparison of runs or of backends.",
    )
    say: Messages = silent
    _: KW_ONLY
    figures: bool = option(
        "Draw the figures of every model of a run, not of the whole run alone.",
        default=False,
        doc="Draw the figures of every model of a run. Training draws those of the whole run only.",
    )


@declaration
class ExportOptions:
    """``gcnbatch export``."""

    run: "Run | StrPath" = argument("Folder of a run.", metavar="RUN_DIR", typed=Path)
    out: StrPath = option("ONNX model to write; a Python file is written beside it.", "-o", "--out", metavar="OUT.onnx")
    _: KW_ONLY
    without: Sequence[str] = option(
        "Member of a mixture to leave out: kernel, trees or gcn; may be given several times.",
        default=(),
        metavar="NAME",
        typed=list[str],
        doc="Members of a mixture to leave out.",
    )
    check: int = option(
        "Most rows of the run's data on which ONNX Runtime must give our predictions; 0: none.",
        default=1000,
        min=0,
        metavar="N",
    )
    say: Messages = silent


@declaration
class CardOptions:
    """``gcnbatch card``."""

    run: "Run | StrPath" = argument("Folder of a run.", metavar="RUN_DIR", typed=Path)
    out: StrPath = option(
        "Markdown to write; - for standard output.", "-o", "--out", default="-", metavar="OUT.md", typed=str
    )
