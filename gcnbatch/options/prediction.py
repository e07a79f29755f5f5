"""Parameters of the commands that predict with trained runs: ``infer``, ``explain``, ``embed`` and ``serve``."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gcnbatch.fileio import StrPath
from gcnbatch.options import common
from gcnbatch.options.common import Settings, names, output_folder, setting, silent
from gcnbatch.options.declaration import Python, declaration, option
from gcnbatch.options.sources import Backend

if TYPE_CHECKING:
    from gcnbatch.api.run import Run
    from gcnbatch.inference.trust import Level

Runs = Annotated[
    "Run | StrPath | Iterable[Run | StrPath]", Python("A run or several; one with folds counts as all its folds.")
]
Data = Annotated[
    StrPath,
    Python(
        'HDF5 data set, or a file or folder of molecules; ``"-"``: a table or lines of SMILES on standard input. A '
        "text that names no file and is a SMILES is one molecule."
    ),
]


def _level() -> Any:
    return option(
        "Level of intervals and sets: share of right ones.",
        default="training",
        metavar="P",
        shown="as in training",
        typed=float,
        doc='Level of conformal intervals and sets; "training": as in training; None: predictions alone.',
    )


@declaration
class PlaceOptions:
    """Where runs predict."""

    _: KW_ONLY
    backend: Backend = "auto"
    device: common.Device = 0
    resident: common.ResidentKey = None
    settings: "Settings | None" = setting(
        "cuda.KEY=VALUE",
        "Set a key of [cuda]; see train --keys.",
        'Keys of [cuda] by name, such as ``{"cuda.precision": "tf32"}``.',
    )
    say: common.Messages = silent


@declaration
class PredictingOptions(PlaceOptions):
    """Where runs predict, and how a file of molecules is read."""

    _: KW_ONLY
    smiles_column: str = option("CSV: column of SMILES.", default="", shown="as in training")
    id_column: str = option("CSV: column of ids.", default="", shown="as in training, else row numbers")
    delimiter: str = option("CSV: sign between fields: comma, semicolon, tab or bar.", default="", shown="detected")
    encoding: str = option("CSV: encoding, such as cp1252.", default="", metavar="NAME", shown="UTF-8 or UTF-16")
    processes: int = option("CSV: worker processes.", default=0, min=0, shown="one per processor")
    spreadsheet: bool = option("CSV: put ' before texts that a spreadsheet would run (=, +, -, @).", default=False)
    quiet: common.Quiet = True


@declaration
class InferOptions(PredictingOptions):
    """``gcnbatch infer``."""

    runs: Runs
    data: Data
    out: StrPath = option(
        ".csv, .jsonl, .h5 or .parquet file; - for CSV on stdout.", "-o", "--out", default="-", metavar="OUT", typed=str
    )
    _: KW_ONLY
    batch_size: int | None = option("Graphs per batch.", default=None, min=1, shown="chosen by the backend")
    on_bad_row: Literal["keep", "fail"] = option(
        "For a molecule that cannot be read: keep a blank row, or fail.", default="keep"
    )
    keep_columns: Sequence[str] = names(
        "Columns of DATA, such as SMILES, to copy to OUT.", default=(), metavar="A,B,…|all", shown="none"
    )
    decimal: str = option("CSV: decimal sign of measured values: . or ,", default="", shown="detected")
    missing: Sequence[str] = names("CSV: further texts of missing values.", default=(), shown="none")
    top: int = option(
        "Write only the N rows with the highest values, sorted.",
        default=0,
        min=0,
        metavar="N",
        doc="Write only so many rows with the highest values, sorted; 0: all.",
    )
    threshold: float | None = option(
        "Write only rows with a value of at least X.",
        default=None,
        metavar="X",
        doc="Write only rows with at least this.",
    )
    by: str = option(
        "Whose value --top and --threshold take.",
        default="",
        metavar="TASK",
        shown="the only one",
        doc="The task whose value `top` and `threshold` take; empty: the only one.",
    )
    resume: bool = option("Go on where a killed prediction was stopped (.csv, .jsonl).", default=False)
    level: "Level" = _level()
    applicability: bool = option("Add nearness to the run's training molecules, from its data set.", default=False)


@declaration
class ExplainOptions(PredictingOptions):
    """``gcnbatch explain``."""

    runs: Runs
    data: Data
    out: StrPath | None = output_folder("DIR", "A new folder.", "explain")
    _: KW_ONLY
    tasks: Sequence[str] = option(
        "Task or class; may be given several times.",
        "--task",
        default=(),
        metavar="T",
        shown="all",
        typed=list[str],
        doc="Tasks or classes; empty: all.",
    )
    top: int = option(
        "Only the N rows with the highest prediction.",
        default=0,
        min=0,
        metavar="N",
        shown="all",
        doc="Only so many rows with the highest prediction; 0: all.",
    )
    steps: int = option(
        "Positions on the path.",
        default=0,
        min=0,
        max=100_000,
        metavar="S",
        shown="16 to 432, by the completeness error",
        doc="Positions on the path of integrated gradients; 0: as many as the completeness error needs.",
    )
    batch_nodes: int | None = option(
        "Nodes per batch, over all copies.", default=None, min=1, metavar="N", shown="chosen by the backend"
    )
    on_bad_row: Literal["keep", "fail"] = option(
        "For a molecule that cannot be read: note the reason, or fail.", default="keep"
    )
    no_drawings: bool = option("No SVG files.", default=False)
    parquet: bool = option("Tables as Parquet in place of CSV.", default=False)


@declaration
class EmbedOptions(PredictingOptions):
    """``gcnbatch embed``."""

    runs: Runs
    data: Data
    out: StrPath = option("Vectors: a .parquet, .npy or .csv file.", "-o", "--out", metavar="OUT")
    _: KW_ONLY
    fingerprint: bool = option("Also counts of circular fragments, or the fingerprint of the model.", default=False)
    descriptors: bool = option("Also RDKit's descriptors.", default=False)
    map_file: StrPath | None = option(
        "Page with a map of the molecules.", "--map", default=None, metavar="FILE.html", doc="Page with a map (t-SNE)."
    )


@declaration
class ServeOptions(PlaceOptions):
    """``gcnbatch serve``."""

    runs: Runs
    _: KW_ONLY
    host: str = option("Address to listen on.", default="127.0.0.1", metavar="ADDRESS")
    port: int = option("Port; 0: a free one.", default=8000, min=0, max=65535, metavar="N")
    token_file: StrPath | None = option(
        "Keys, one a line; needed on any address but this machine's.", default=None, metavar="FILE"
    )
    level: "Level" = _level()
    private: bool = option("Show no training molecules.", default=False)
    max_body: int = option("Maximum size of a request's body, in MiB.", default=16, min=1, metavar="MIB")
    max_molecules: int = option(
        "Maximum number of molecules in JSON; a CSV is limited by its size alone.", default=10_000, min=1, metavar="N"
    )
    max_waiting: int = option("Maximum number of molecules that wait.", default=100_000, min=1, metavar="N")
    timeout: float = option(
        "Maximum seconds for a body to arrive, and for each part of an answer.", default=60.0, min=0.001, metavar="S"
    )
    processes: int = option("Processes that read molecules.", default=0, min=0, shown="one per processor")
    ready: Annotated[common.Say, Python("Called with the URL when requests are answered.")] = silent
