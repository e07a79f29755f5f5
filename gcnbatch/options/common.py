"""Parameters that several commands have."""

import csv
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from gcnbatch.config_tree import parse_assignment
from gcnbatch.fileio import StrPath
from gcnbatch.options.declaration import Option, Python, option

Say = Callable[[str], object]
Settings: TypeAlias = Mapping[str, Any]  # "section.key" -> value

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


DataFile = Annotated[StrPath | None, Option("HDF5 file or folder of shards.", "--data", key="data.path")]
DeviceKey = Annotated[int | None, Option(_GPU, metavar="N", default=0, key="device")]
Device = Annotated[int, Option(_GPU, metavar="N", min=0)]
ResidentKey = Annotated[
    str | None,
    Option(
        "Keep the data set in the GPU's memory; auto: if it fits; off: stream every batch.",
        metavar="auto|on|off",
        default="auto",
        key="cuda.resident",
    ),
]
EpochsKey = Annotated[int | None, Option("Passes over the training rows.", key="train.epochs")]
BatchSizeKey = Annotated[int | None, Option("Graphs per step.", key="train.batch_size")]
SeedKey = Annotated[int | None, Option("Seed of weights, shuffles, dropout and splits.", key="seed")]
FoldsKey = Annotated[int | None, Option("k of k-fold cross-validation; 0: one run.", key="split.folds")]
EnsembleKey = Annotated[int | None, Option("Models per split, with different seeds.", key="train.ensemble")]
RepeatsKey = Annotated[
    int | None, Option("Splits, or divisions into folds, with different seeds.", key="split.repeats")
]
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
