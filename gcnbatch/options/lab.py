"""Parameters of the commands that measure: ``compare-backends``, ``bench …`` and ``benchmark …``."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from gcnbatch.fileio import StrPath
from gcnbatch.options import common
from gcnbatch.options.common import Settings, jobs_option, names, output_folder, setting, silent
from gcnbatch.options.declaration import argument, declaration, option, python
from gcnbatch.options.sources import Backend, ConfigFile


@declaration
class CompareBackendsOptions:
    """``gcnbatch compare-backends``."""

    config: ConfigFile = None
    data: common.DataFile = None
    _: KW_ONLY
    backends: Sequence[str] = names(
        "Backends to compare.", default=(), shown="all", doc="Backends, in the order of the report; empty: all."
    )
    device: common.DeviceKey = None
    resident: common.ResidentKey = None
    batch_size: common.BatchSizeKey = None
    seed: common.SeedKey = None
    settings: "Settings | None" = setting(
        "SECTION.KEY=VALUE",
        "Set any key of the configuration; see train --keys.",
        "Further keys by name; they win over all others.",
    )
    steps: int | None = option(
        "Timed steps of a repetition; 0: a whole epoch.",
        default=None,
        min=0,
        shown="50",
        doc="Timed steps of a repetition; 0: a whole epoch; None: 50, or 5 with `quick`.",
    )
    repeats: int | None = option(
        "Repetitions.", default=None, min=1, shown="5", doc="Repetitions; None: 5, or 2 with `quick`."
    )
    quick: bool = option("Run a few steps only: for a quick look.", default=False)
    out: StrPath | None = output_folder("DIR", "Folder of the report.", "compare-<name>")
    timeline: StrPath | None = option("Trace of a step, for Perfetto or Chrome.", default=None, metavar="FILE")
    say: common.Messages = silent


@declaration
class BenchSpmmOptions:
    """``gcnbatch bench spmm``."""

    data: StrPath | None = argument("Take a batch of this HDF5 data set.", default=None, metavar="DATA.h5")
    _: KW_ONLY
    figures: Sequence[str] = option(
        "May be repeated.",
        "--figure",
        default=(),
        metavar="8a|8b|9a…9f|10|all",
        shown="all",
        typed=list[str],
        doc='Figures of the papers, ``"8a"`` … ``"10"``; empty, with no other choice: all.',
    )
    batch: int | None = option("Matrices in the batch.", default=None, shown="100, of a data set 50")
    dim: int | str | None = option(
        "Rows of a matrix, or their range.", default=None, metavar="N[-M]", shown="50", typed=str
    )
    nnz_per_row: int | str | None = option(
        "Entries of a row, or their range.", default=None, metavar="N[-M]", shown="3", typed=str
    )
    columns: Sequence[int | str] = option(
        "Columns of the dense matrix (nB).",
        default=(),
        metavar="A,B,…",
        shown="2,4,…,1024",
        typed=str,
        read=lambda text: text.split(","),
    )
    seed: int = option("Seed of the random matrices.", default=0, min=0)
    methods: Sequence[str] = names(
        "Methods, listed below.",
        default=(),
        shown="all but naive and csr",
        doc="Names of the command's help; empty: all but naive and csr.",
    )
    repeats: int = option("Repetitions of a measurement.", default=20, min=1)
    device: common.Device = 0
    compare: StrPath | None = option(
        "Report what is slower than in that rows.jsonl.", default=None, metavar="OLD.jsonl"
    )
    out: StrPath | None = output_folder("DIR", "Folder of the result.", "bench-spmm")
    say: common.Messages = silent


@declaration
class BenchSpgemmOptions:
    """``gcnbatch bench spgemm``."""

    files: Sequence[StrPath] = argument(
        "Matrix Market files or data sets (.h5).", default=(), metavar="[FILE]...", typed=list[Path]
    )
    _: KW_ONLY
    classes: Sequence[str] | None = names(
        "Matrix classes.",
        default=None,
        shown="all, none beside files",
        doc="Of molecules, power_law, stencil and uniform; None: all; beside files, none.",
    )
    methods: Sequence[str] | None = names(
        "Methods: gcnbatch, cusparse, scipy.", default=None, shown="all that can start"
    )
    scale: float = option("Size of the classes, at most 16.", default=1.0)
    seed: int = option("Seed of the classes.", default=0, min=0)
    repeats: int = option("Timed calls; a call above half a second is timed once.", default=20, min=1)
    device: common.Device = 0
    out: StrPath | None = option(
        "Also write the rows (JSON) and a figure.",
        "-o",
        "--out",
        default=None,
        metavar="DIR",
        doc="Also write the rows (JSON) and a figure into this folder: a new or empty one, or that of an earlier call.",
    )
    say: common.Messages = silent


@declaration
class BenchTuneOptions:
    """``gcnbatch bench tune``."""

    device: common.Device = 0
    _: KW_ONLY
    grid: Sequence[Sequence[int]] | None = python(
        "Rows of a matrix, entries of a row, columns of the dense matrix, matrices; None: those of the command.",
        default=None,
    )


@declaration
class SuiteOptions:
    """Parameters of all suites."""

    data: StrPath = option("Folder with the tables.", metavar="DIR")
    _: KW_ONLY
    sets: Sequence[str] = names("Sets, of those that are there.", default=(), shown="all")
    epochs: int | None = option("Epochs of every run.", default=None, min=1, shown="by configuration")
    backend: Backend = "auto"
    device: common.Device = 0
    jobs: Annotated[int, jobs_option("As for `gcnbatch.train`.")] = 0
    quiet: common.Quiet = True
    say: common.Messages = silent


@declaration
class MoleculenetOptions(SuiteOptions):
    """``gcnbatch benchmark moleculenet``."""

    _: KW_ONLY
    splits: Sequence[str] = names("random, scaffold.", default=(), shown="all")
    models: Sequence[str] = names("plain, tuned, descriptors, ensemble, best, baseline, mean.", default=(), shown="all")
    seeds: int = option("Splits; on the scaffold split, models.", default=5, min=1, max=1000)
    out: StrPath | None = output_folder("DIR", "Folder of the runs.", "moleculenet")


@declaration
class RecipeOptions(SuiteOptions):
    """Parameters of suites whose splits are given."""

    _: KW_ONLY
    recipe: str = option("Shipped configuration: best, gcn, …", default="best", metavar="NAME")
    seeds: int = option("Models with different seeds, each scored.", default=1, min=1, max=1000)


@declaration
class MoleculeaceOptions(RecipeOptions):
    """``gcnbatch benchmark moleculeace``."""

    _: KW_ONLY
    out: StrPath | None = output_folder("DIR", "Folder of the runs.", "moleculeace")


@declaration
class AdmetOptions(RecipeOptions):
    """``gcnbatch benchmark admet``."""

    _: KW_ONLY
    out: StrPath | None = output_folder("DIR", "Folder of the runs.", "admet")
