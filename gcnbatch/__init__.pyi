# ruff: noqa: I001 -- the documentation has this order
"""What `gcnbatch` offers: for type checkers, and for `PUBLIC`."""

from gcnbatch.api.training import train as train, resume as resume
from gcnbatch.api.run import Run as Run, load as load
from gcnbatch.api.prediction import infer as infer
from gcnbatch.inference.ensemble import InferenceSummary as InferenceSummary
from gcnbatch.predictions import Predictions as Predictions
from gcnbatch.api.selection import select as select
from gcnbatch.selection.choice import Selected as Selected
from gcnbatch.api.selection import campaign as campaign
from gcnbatch.selection.campaign import Campaign as Campaign
from gcnbatch.api.prediction import explain as explain
from gcnbatch.explanation.command import ExplanationSummary as ExplanationSummary
from gcnbatch.api.prediction import serve as serve
from gcnbatch.explanation.attributions import Attributions as Attributions
from gcnbatch.api.prediction import embed as embed
from gcnbatch.embedding.command import EmbeddingSummary as EmbeddingSummary
from gcnbatch.api.results import export as export
from gcnbatch.onnx_export.command import ExportSummary as ExportSummary
from gcnbatch.api.results import card as card
from gcnbatch.api.training import tune as tune, Study as Study, baseline as baseline
from gcnbatch.api.results import compare_runs as compare_runs, Comparison as Comparison
from gcnbatch.api.lab import compare_backends as compare_backends, BackendComparison as BackendComparison
from gcnbatch.api.results import report as report
from gcnbatch.api.imports import import_smiles as import_smiles
from gcnbatch.data.importers.plain_csv import import_csv as import_csv
from gcnbatch.data.importers.planetoid import import_planetoid as import_planetoid
from gcnbatch.data.importers.tudataset import import_tudataset as import_tudataset
from gcnbatch.data.importers.ogb import import_ogb as import_ogb
from gcnbatch.data.importers.common import ImportSummary as ImportSummary
from gcnbatch.api.datasets import from_smiles as from_smiles, graph_set as graph_set, read as read, write as write
from gcnbatch.api.files import describe as describe
from gcnbatch.data.describe import Description as Description
from gcnbatch.api.files import check as check, synth as synth, khop as khop, shard as shard, add_splits as add_splits
from gcnbatch.data.graphs import GraphSet as GraphSet
from gcnbatch.data.schema import Header as Header
from gcnbatch.data.graphs import Split as Split
from gcnbatch.config import Config as Config
from gcnbatch.api.lab import bench_spmm as bench_spmm
from gcnbatch.lab.bench.spmm.command import SpmmBench as SpmmBench
from gcnbatch.api.lab import bench_spgemm as bench_spgemm
from gcnbatch.lab.bench.spgemm.runs import SpgemmTiming as SpgemmTiming
from gcnbatch.api.lab import bench_tune as bench_tune
from gcnbatch.lab.bench.spmm.tune import Tuning as Tuning
from gcnbatch.api.lab import moleculenet as moleculenet
from gcnbatch.api.lab import moleculeace as moleculeace
from gcnbatch.api.lab import admet as admet
from gcnbatch.api.lab import SuiteResults as SuiteResults
from gcnbatch.api.machine import info as info
from gcnbatch.api.machine import build_kernels as build_kernels
from gcnbatch.api.machine import list_kernels as list_kernels
from gcnbatch.api.machine import clear_kernels as clear_kernels
from gcnbatch.errors import GcnbatchError as GcnbatchError
from gcnbatch.errors import InputError as InputError
from gcnbatch.errors import MachineError as MachineError
from gcnbatch.errors import BackendUnavailable as BackendUnavailable
from gcnbatch.errors import DeviceLost as DeviceLost
from gcnbatch.errors import CheckFailed as CheckFailed
from gcnbatch.training.stop import Interrupted as Interrupted

PUBLIC: dict[str, str]
__version__: str
