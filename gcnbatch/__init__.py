"""Train graph convolutional networks on many small graphs or one large graph, with interchangeable backends.

`PUBLIC` lists what `gcnbatch` offers, with the modules that define it. A name is imported when it is first used, so
that ``import gcnbatch`` stays light. Everything else is internal, except `gcnbatch.sklearn`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcnbatch.api.comparison import Comparison as Comparison
    from gcnbatch.api.comparison import baseline as baseline
    from gcnbatch.api.comparison import compare_runs as compare_runs
    from gcnbatch.api.datasets import from_smiles as from_smiles
    from gcnbatch.api.datasets import graph_set as graph_set
    from gcnbatch.api.datasets import import_smiles as import_smiles
    from gcnbatch.api.datasets import read as read
    from gcnbatch.api.datasets import write as write
    from gcnbatch.api.explanation import explain as explain
    from gcnbatch.api.prediction import infer as infer
    from gcnbatch.api.report import report as report
    from gcnbatch.api.run import Run as Run
    from gcnbatch.api.study import Study as Study
    from gcnbatch.api.study import tune as tune
    from gcnbatch.api.training import resume as resume
    from gcnbatch.api.training import train as train
    from gcnbatch.config import Config as Config
    from gcnbatch.data.graphs import GraphSet as GraphSet
    from gcnbatch.data.graphs import Split as Split
    from gcnbatch.data.schema import Header as Header
    from gcnbatch.errors import BackendUnavailable as BackendUnavailable
    from gcnbatch.errors import CheckFailed as CheckFailed
    from gcnbatch.errors import DeviceLost as DeviceLost
    from gcnbatch.errors import GcnbatchError as GcnbatchError
    from gcnbatch.errors import InputError as InputError
    from gcnbatch.errors import MachineError as MachineError
    from gcnbatch.explanation.attributions import Attributions as Attributions
    from gcnbatch.predictions import Predictions as Predictions
    from gcnbatch.training.stop import Interrupted as Interrupted

__version__ = "0.1.0"

PUBLIC: dict[str, str] = {
    "train": "gcnbatch.api.training",
    "resume": "gcnbatch.api.training",
    "Run": "gcnbatch.api.run",
    "infer": "gcnbatch.api.prediction",
    "Predictions": "gcnbatch.predictions",
    "explain": "gcnbatch.api.explanation",
    "Attributions": "gcnbatch.explanation.attributions",
    "tune": "gcnbatch.api.study",
    "Study": "gcnbatch.api.study",
    "baseline": "gcnbatch.api.comparison",
    "compare_runs": "gcnbatch.api.comparison",
    "Comparison": "gcnbatch.api.comparison",
    "report": "gcnbatch.api.report",
    "import_smiles": "gcnbatch.api.datasets",
    "from_smiles": "gcnbatch.api.datasets",
    "graph_set": "gcnbatch.api.datasets",
    "read": "gcnbatch.api.datasets",
    "write": "gcnbatch.api.datasets",
    "GraphSet": "gcnbatch.data.graphs",
    "Header": "gcnbatch.data.schema",
    "Split": "gcnbatch.data.graphs",
    "Config": "gcnbatch.config",
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
