"""Train graph convolutional networks on many small graphs or one large graph, with interchangeable backends.

`PUBLIC` lists what `gcnbatch` offers, with the modules that define it. A name is imported when it is first used, so
that ``import gcnbatch`` stays light. Everything else is internal, except `gcnbatch.sklearn`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcnbatch.api.backends import BackendComparison as BackendComparison
    from gcnbatch.api.backends import compare_backends as compare_backends
    from gcnbatch.api.benches import SuiteResults as SuiteResults
    from gcnbatch.api.benches import admet as admet
    from gcnbatch.api.benches import bench_spgemm as bench_spgemm
    from gcnbatch.api.benches import bench_spmm as bench_spmm
    from gcnbatch.api.benches import bench_tune as bench_tune
    from gcnbatch.api.benches import moleculeace as moleculeace
    from gcnbatch.api.benches import moleculenet as moleculenet
    from gcnbatch.api.comparison import Comparison as Comparison
    from gcnbatch.api.comparison import baseline as baseline
    from gcnbatch.api.comparison import compare_runs as compare_runs
    from gcnbatch.api.datasets import from_smiles as from_smiles
    from gcnbatch.api.datasets import graph_set as graph_set
    from gcnbatch.api.datasets import read as read
    from gcnbatch.api.datasets import write as write
    from gcnbatch.api.export import card as card
    from gcnbatch.api.export import export as export
    from gcnbatch.api.files import add_splits as add_splits
    from gcnbatch.api.files import check as check
    from gcnbatch.api.files import describe as describe
    from gcnbatch.api.files import khop as khop
    from gcnbatch.api.files import shard as shard
    from gcnbatch.api.files import synth as synth
    from gcnbatch.api.imports import import_smiles as import_smiles
    from gcnbatch.api.machine import build_kernels as build_kernels
    from gcnbatch.api.machine import clear_kernels as clear_kernels
    from gcnbatch.api.machine import info as info
    from gcnbatch.api.machine import list_kernels as list_kernels
    from gcnbatch.api.prediction import embed as embed
    from gcnbatch.api.prediction import explain as explain
    from gcnbatch.api.prediction import infer as infer
    from gcnbatch.api.prediction import serve as serve
    from gcnbatch.api.report import report as report
    from gcnbatch.api.run import Run as Run
    from gcnbatch.api.run import load as load
    from gcnbatch.api.selection import campaign as campaign
    from gcnbatch.api.selection import select as select
    from gcnbatch.api.study import Study as Study
    from gcnbatch.api.study import tune as tune
    from gcnbatch.api.training import resume as resume
    from gcnbatch.api.training import train as train
    from gcnbatch.config import Config as Config
    from gcnbatch.data.describe import Description as Description
    from gcnbatch.data.graphs import GraphSet as GraphSet
    from gcnbatch.data.graphs import Split as Split
    from gcnbatch.data.importers.common import ImportSummary as ImportSummary
    from gcnbatch.data.importers.ogb import import_ogb as import_ogb
    from gcnbatch.data.importers.plain_csv import import_csv as import_csv
    from gcnbatch.data.importers.planetoid import import_planetoid as import_planetoid
    from gcnbatch.data.importers.tudataset import import_tudataset as import_tudataset
    from gcnbatch.data.schema import Header as Header
    from gcnbatch.embedding.command import EmbeddingSummary as EmbeddingSummary
    from gcnbatch.errors import BackendUnavailable as BackendUnavailable
    from gcnbatch.errors import CheckFailed as CheckFailed
    from gcnbatch.errors import DeviceLost as DeviceLost
    from gcnbatch.errors import GcnbatchError as GcnbatchError
    from gcnbatch.errors import InputError as InputError
    from gcnbatch.errors import MachineError as MachineError
    from gcnbatch.explanation.attributions import Attributions as Attributions
    from gcnbatch.explanation.command import ExplanationSummary as ExplanationSummary
    from gcnbatch.inference.ensemble import InferenceSummary as InferenceSummary
    from gcnbatch.lab.bench.spgemm.runs import SpgemmTiming as SpgemmTiming
    from gcnbatch.lab.bench.spmm.command import SpmmBench as SpmmBench
    from gcnbatch.lab.bench.spmm.tune import Tuning as Tuning
    from gcnbatch.onnx_export.command import ExportSummary as ExportSummary
    from gcnbatch.predictions import Predictions as Predictions
    from gcnbatch.selection.campaign import Campaign as Campaign
    from gcnbatch.selection.choice import Selected as Selected
    from gcnbatch.training.stop import Interrupted as Interrupted

__version__ = "0.1.0"

PUBLIC: dict[str, str] = {
    "train": "gcnbatch.api.training",
    "resume": "gcnbatch.api.training",
    "Run": "gcnbatch.api.run",
    "load": "gcnbatch.api.run",
    "infer": "gcnbatch.api.prediction",
    "InferenceSummary": "gcnbatch.inference.ensemble",
    "Predictions": "gcnbatch.predictions",
    "select": "gcnbatch.api.selection",
    "Selected": "gcnbatch.selection.choice",
    "campaign": "gcnbatch.api.selection",
    "Campaign": "gcnbatch.selection.campaign",
    "explain": "gcnbatch.api.prediction",
    "ExplanationSummary": "gcnbatch.explanation.command",
    "serve": "gcnbatch.api.prediction",
    "Attributions": "gcnbatch.explanation.attributions",
    "embed": "gcnbatch.api.prediction",
    "EmbeddingSummary": "gcnbatch.embedding.command",
    "export": "gcnbatch.api.export",
    "ExportSummary": "gcnbatch.onnx_export.command",
    "card": "gcnbatch.api.export",
    "tune": "gcnbatch.api.study",
    "Study": "gcnbatch.api.study",
    "baseline": "gcnbatch.api.comparison",
    "compare_runs": "gcnbatch.api.comparison",
    "Comparison": "gcnbatch.api.comparison",
    "compare_backends": "gcnbatch.api.backends",
    "BackendComparison": "gcnbatch.api.backends",
    "report": "gcnbatch.api.report",
    "import_smiles": "gcnbatch.api.imports",
    "import_csv": "gcnbatch.data.importers.plain_csv",
    "import_planetoid": "gcnbatch.data.importers.planetoid",
    "import_tudataset": "gcnbatch.data.importers.tudataset",
    "import_ogb": "gcnbatch.data.importers.ogb",
    "ImportSummary": "gcnbatch.data.importers.common",
    "from_smiles": "gcnbatch.api.datasets",
    "graph_set": "gcnbatch.api.datasets",
    "read": "gcnbatch.api.datasets",
    "write": "gcnbatch.api.datasets",
    "describe": "gcnbatch.api.files",
    "Description": "gcnbatch.data.describe",
    "check": "gcnbatch.api.files",
    "synth": "gcnbatch.api.files",
    "khop": "gcnbatch.api.files",
    "shard": "gcnbatch.api.files",
    "add_splits": "gcnbatch.api.files",
    "GraphSet": "gcnbatch.data.graphs",
    "Header": "gcnbatch.data.schema",
    "Split": "gcnbatch.data.graphs",
    "Config": "gcnbatch.config",
    "bench_spmm": "gcnbatch.api.benches",
    "SpmmBench": "gcnbatch.lab.bench.spmm.command",
    "bench_spgemm": "gcnbatch.api.benches",
    "SpgemmTiming": "gcnbatch.lab.bench.spgemm.runs",
    "bench_tune": "gcnbatch.api.benches",
    "Tuning": "gcnbatch.lab.bench.spmm.tune",
    "moleculenet": "gcnbatch.api.benches",
    "moleculeace": "gcnbatch.api.benches",
    "admet": "gcnbatch.api.benches",
    "SuiteResults": "gcnbatch.api.benches",
    "info": "gcnbatch.api.machine",
    "build_kernels": "gcnbatch.api.machine",
    "list_kernels": "gcnbatch.api.machine",
    "clear_kernels": "gcnbatch.api.machine",
    "GcnbatchError": "gcnbatch.errors",
    "InputError": "gcnbatch.errors",
    "MachineError": "gcnbatch.errors",
    "BackendUnavailable": "gcnbatch.errors",
    "DeviceLost": "gcnbatch.errors",
    "CheckFailed": "gcnbatch.errors",
    "Interrupted": "gcnbatch.training.stop",
}
__all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'gcnbatch' has no attribute '{name}'")
    found = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
