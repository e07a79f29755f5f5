"""Parameters that several commands have."""

import csv
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from gcnbatch.backends import registry
from gcnbatch.config_tree import parse_assignment
from gcnbatch.fileio import StrPath
from gcnbatch.options.declaration import Argument, Option, Python, option

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.data.graphs import GraphSet

Say = Callable[[str], object]
Settings: TypeAlias = Mapping[str, Any]  # "section.key" -> value
ConfigLike: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | Config"
DataLike: TypeAlias = "str | PathLike[str] | GraphSet"

BACKENDS = f"{', '.join(registry.choices()[:-1])} or {registry.choices()[-1]}."
_GPU = "GPU, of those that CUDA_VISIBLE_DEVICES shows."


def silent(line: str) -> None:
    """Report nothing."""


def read_settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the keys of ``--set`` with their values."""
    return {".".join(path): value for path, value in map(parse_assignment, assignments)}


def read_jobs(text: str) -> Any:
    """Return the value of key `jobs` for ``--jobs``: 0 for auto."""
    return int(text) if text.isdecimal() else 0 if text == "auto" else text


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of names; a name with a comma is in double quotes."""
    fields = next(csv.reader([text], skipinitialspace=True), []) if text else []
    return [field.strip() for field in fields if field.strip()]


def output_folder(metavar: str, help: str, name: str) -> Any:
    """Declare ``--out``, a folder whose default is ``runs/<name>-<time>``."""
    shown = f"runs/{name}-<time>"
    doc = f"{help} Default: ``{shown}``."
    return option(help, "-o", "--out", default=None, metavar=metavar, shown=shown, doc=doc)


def jobs_option(doc: str, key: str = "") -> Option:
    """Declare ``--jobs``."""
    help = "Models that train at once: together on a GPU, in K processes on the host."
    shown = "auto: as many as the GPU takes, on the host one per core"
    return Option(help, metavar="auto|K", shown=shown, typed=str, read=read_jobs, doc=doc, key=key)


def setting(metavar: str, help: str, doc: str) -> Any:
    """Declare ``--set``, which gives keys of the configuration by name."""
    return option(help, "--set", default=None, metavar=metavar, doc=doc, typed=list[str], read=read_settings)


def names(help: str, *flags: str, default: Any, metavar: str = "A,B,…", doc: str = "", shown: str = "") -> Any:
    """Declare a list of names, which the command line separates by commas."""
    return option(help, *flags, default=default, metavar=metavar, doc=doc, shown=shown, typed=str, read=split_names)


ConfigFile = Annotated[
    "ConfigLike | None",
    Argument(
        "TOML configuration.",
        metavar="CONFIG.toml",
        typed=Path,
        doc='A TOML file, the name of a shipped configuration, or its tables: ``{"train": {"epochs": 20}}``.',
    ),
]
DataSet = Annotated[
    "DataLike | None",
    Option(
        "HDF5 file or folder of shards.",
        typed=Path,
        key="data.path",
        doc="HDF5 file or folder of shards, or a set in memory; the run then keeps it in its folder.",
    ),
]
DataFile = Annotated[StrPath | None, Option("HDF5 file or folder of shards.", "--data", key="data.path")]
BackendKey = Annotated[str | None, Option(BACKENDS, key="backend")]
Backend = Annotated[str, Option(BACKENDS)]
DeviceKey = Annotated[int | None, Option(_GPU, metavar="N", shown="0", key="device")]
Device = Annotated[int, Option(_GPU, metavar="N", shown="0")]
ResidentKey = Annotated[
    str | None,
    Option("Keep the data set in the GPU's memory.", metavar="auto|on|off", shown="auto", key="cuda.resident"),
]
EpochsKey = Annotated[int | None, Option("Passes over the training rows.", key="train.epochs")]
BatchSizeKey = Annotated[int | None, Option("Graphs per step.", key="train.batch_size")]
SeedKey = Annotated[int | None, Option("Seed of weights, shuffles, dropout and splits.", key="seed")]
FoldsKey = Annotated[int | None, Option("k of k-fold cross-validation.", key="split.folds")]
RepeatsKey = Annotated[int | None, Option("Splits with different seeds.", key="split.repeats")]
JobsKey = Annotated[
    int | None,
    jobs_option(
        "Models that train at once: together on a GPU, in so many processes on the host; 0: as many as the GPU takes, "
        "on the host one per core where that takes less time. Results do not depend on it.",
        key="jobs",
    ),
]
MemoryLimit = Annotated[int, Option("A set larger than this many MiB is read in slices.", min=16)]
Quiet = Annotated[bool, Python("Show no progress on stderr.")]
Progress = Annotated[bool, Python("Show progress on stderr.")]
Messages = Annotated[Say, Python("Called with each message, a line of text.")]
