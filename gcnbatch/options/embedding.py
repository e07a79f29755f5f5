"""Parameters of the command ``embed``."""

from dataclasses import KW_ONLY

from gcnbatch.fileio import StrPath
from gcnbatch.options.declaration import declaration, option
from gcnbatch.options.prediction import Data, PredictingOptions, Runs


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
