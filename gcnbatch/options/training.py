"""Parameters of ``train``, ``tune`` and ``baseline``."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.fileio import StrPath
from gcnbatch.options import common
from gcnbatch.options.common import Settings, names, output_folder, setting, silent
from gcnbatch.options.declaration import argument, declaration, option, python
from gcnbatch.options.imports import OnBadRow, TableOptions
from gcnbatch.options.sources import BackendKey, ConfigFile, ConfigLike, DataLike, DataSet

if TYPE_CHECKING:
    from gcnbatch.api.run import Run

_BY_NAME = 'Further keys by name, ``{"model.widths": [128, 128]}``; they win over all others.'


@declaration
class RunningOptions:
    """Where a model is trained, and what is made beside it: what may change when a run goes on."""

    _: KW_ONLY
    backend: BackendKey = None
    device: common.DeviceKey = None
    resident: common.ResidentKey = None
    epochs: common.EpochsKey = None
    jobs: common.JobsKey = None
    baseline: bool = option("Also fit a random forest to the same rows, and compare.", default=False)
    applicability: bool = option("Also plot test errors by nearness to the training rows.", default=False)
    quiet: common.Quiet = True
    say: common.Messages = silent


@declaration
class TrainOptions(RunningOptions, TableOptions):
    """``gcnbatch train``."""

    config: "ConfigLike | None" = argument(
        "Table of molecules or data set; or a TOML configuration.",
        default=None,
        metavar="DATA|CONFIG.toml",
        typed=Path,
        doc='A TOML file, the name of a shipped one, or its tables: ``{"train": {"epochs": 20}}``; or `data`.',
    )
    data: "DataLike | None" = option(
        "Data set, or molecules: .csv, .smi, .sdf, .xlsx, …",
        default=None,
        typed=Path,
        key="data.path",
        doc="HDF5 file, folder of shards, or a set in memory; or a table or structure file of molecules, which is "
        "imported. The run keeps a set that is in no HDF5 file in its folder.",
    )
    _: KW_ONLY
    recipe: str = option(
        "Shipped configuration in place of CONFIG: best, gcn, molecules, …",
        default="",
        metavar="NAME",
        shown="best for a table",
    )
    use_all: bool = option("Test on no rows: all train, and left-out rows give the scores.", default=False)
    on_bad_row: OnBadRow = "skip"
    batch_size: common.BatchSizeKey = None
    seed: common.SeedKey = None
    folds: common.FoldsKey = None
    repeats: common.RepeatsKey = None
    ensemble: common.EnsembleKey = None
    from_run: "Run | StrPath | None" = option(
        "Start from the weights of this run (fine-tuning).",
        "--from",
        default=None,
        metavar="RUN_DIR",
        typed=Path,
        key="train.from_run",
    )
    freeze: "str | Sequence[str] | None" = option(
        "Layers that keep those weights: conv1,conv2 or all-conv.",
        default=None,
        metavar="LAYERS",
        typed=str,
        key="train.freeze",
        doc='Layers that keep those weights: ``"conv1"``, …, ``"all-conv"``.',
    )
    settings: "Settings | None" = setting(
        "SECTION.KEY=VALUE", "Set any key of the configuration; see --keys.", _BY_NAME
    )
    out: StrPath | None = output_folder("RUN_DIR", "Folder of the run.", "<name>")


@declaration
class ResumeOptions(RunningOptions):
    """``gcnbatch train --resume``; more epochs than the run has extend it, also a finished one."""

    run: "StrPath | Run" = python("The run, or its folder.")


@declaration
class TuneOptions:
    """``gcnbatch tune``."""

    config: ConfigFile = None
    data: DataSet = None
    _: KW_ONLY
    trials: int | None = option(
        "Trials of the study.",
        default=None,
        min=1,
        shown="50 without --minutes",
        doc="Trials of the study. Default: 50, or no limit with `minutes`.",
    )
    minutes: float | None = option("Begin no more trials then.", default=None, min=0)
    space: "StrPath | Mapping[str, Any] | None" = option(
        "Keys to search.",
        default=None,
        metavar="SPACE.toml",
        shown="a built-in one",
        typed=Path,
        doc="Keys to search, as a TOML file or its tables. Default: a built-in space.",
    )
    folds: int | None = option("Validate on k folds, without test rows.", default=None, key="split.folds")
    repeats: int | None = option("Validate on splits with other seeds.", default=None, key="split.repeats")
    epochs: common.EpochsKey = None
    seed: int | None = option("Seed of search and runs.", default=None, key="seed")
    backend: BackendKey = None
    device: common.DeviceKey = None
    jobs: common.JobsKey = None
    settings: "Settings | None" = setting("SECTION.KEY=VALUE", "Set a key that is not searched.", _BY_NAME)
    out: StrPath | None = output_folder("STUDY_DIR", "Folder.", "<name>-tune")
    resume: StrPath | None = option(
        "Go on with a study.",
        default=None,
        metavar="STUDY_DIR",
        doc="Go on with the study in this folder; only `trials`, `minutes`, `device` and `jobs` may be given "
        "beside it.",
    )
    quiet: common.Quiet = True
    say: common.Messages = silent


@declaration
class BaselineOptions:
    """``gcnbatch baseline``."""

    config: "ConfigLike | None" = argument(
        "TOML configuration; only its data, split and seed.",
        default=None,
        metavar="CONFIG.toml",
        typed=Path,
        doc="As for `gcnbatch.train`; only data, split, seed and name matter.",
    )
    data: StrPath | None = option(
        "HDF5 file, folder of shards, or table of molecules.", "--data", default=None, key="data.path"
    )
    _: KW_ONLY
    seed: int | None = option("Seed of the forest and of the split, as for train.", default=None, key="seed")
    folds: common.FoldsKey = None
    repeats: common.RepeatsKey = None
    trees: int = option("Trees of each forest.", default=100, min=1, max=100_000)
    settings: "Settings | None" = setting("SECTION.KEY=VALUE", "Set any key; see train --keys.", _BY_NAME)
    out: StrPath | None = output_folder("RUN_DIR", "Folder of the run.", "<name>-baseline")
    smiles_column: str = option("Table: column of SMILES.", default="", shown="detected")
    target_columns: Sequence[str] = names("Table: targets.", default=(), shown="detected")
    quiet: common.Quiet = True
    say: common.Messages = silent
