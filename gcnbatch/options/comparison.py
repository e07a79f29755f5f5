"""Parameters of the commands that compare: ``compare-runs`` and ``compare-backends``."""

from collections.abc import Iterable
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from gcnbatch.fileio import StrPath
from gcnbatch.options.common import output_folder
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
