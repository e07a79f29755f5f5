"""What a command starts early, so that it overlaps with the rest. This module imports nothing large.

`overlap` begins while the configuration of a training run is not yet checked, and before NumPy is imported. A short
command is 50 epochs of Tox21 on an H200: 2.1 s. What saves under 5 % of it, 105 ms, has no place here.

| what starts early | while | time that it hides |
|---|---|---|
| driver and context of the GPU | Python imports | 200 ms (H100, 7a6916a6) |
| processes for reports import what they need | Python imports, a GPU trains | SciPy 690, matplotlib 760, RDKit 760 ms |
| they draw a first figure | a GPU trains | 120 ms |
| the page's process looks for copies of molecules | a GPU trains | 130 ms (H200 host, 6efcda3c) |
| they write the report, a process for each plot | the next members train | 1,220 ms, less the longest part |
| processes for molecules import NumPy and RDKit | Python imports | 360 ms (H200 host, b5e34d8f) |
| the process of kernel and trees imports what it needs | Python imports, a table is imported | scikit-learn 1,500 ms |
| without that process, a thread imports scikit-learn (`mixture/members.py`) | the kernel is fitted | as above |
| processes for the charts of a study import what they need | trials train | scikit-learn, matplotlib as above |
| ranks other than 0 import the command's modules | rank 0 checks its input | 800 ms |
| ranks other than 0 start their GPU and import its backend | rank 0 checks its input | as above, 500 ms |
| the process that computes for rank 0 does the same | rank 0 checks its input | as above |

Rows without a card are processor time, the least of 5 runs on a busy machine of 2 cores. `benchmarks/startup.py`
measures what a command on a GPU loses without the GPU's early start and the processes for reports.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any, NamedTuple

from gcnbatch.backends import registry
from gcnbatch.data.endings import is_table
from gcnbatch.data.featurizer_worker import early_workers
from gcnbatch.figures import rehearse
from gcnbatch.machine import cores
from gcnbatch.ranks.launch import launched
from gcnbatch.timeline import span
from gcnbatch.workers.pool import INLINE, Workers

FITS = ("scipy.special", "scipy.optimize", "gcnbatch.training.reports")
PLOTS = ("scipy.special", "matplotlib.backends.backend_agg", "gcnbatch.training.summary", "gcnbatch.uncertainty.plot")
PAGE = ("gcnbatch.run_report.files", "rdkit.Chem.Draw.rdMolDraw2D")
MIXTURE = ("gcnbatch.training.cross_fit", "sklearn.ensemble")
CHARTS = ("gcnbatch.tuning.charts", "optuna.importance", "matplotlib.backends.backend_agg")
FIT_WORKERS = 16  # at most: a report takes 0.1 s, and a cohort has up to 64 networks
PLOT_WORKERS = 3  # learning curves, the plot of the test rows, uncertainty
RANKED = {  # commands that use ranks, and what the other ranks import while rank 0 checks its input
    "train": "gcnbatch.training.processes",
    "tune": "gcnbatch.tuning.processes",
    "infer": "gcnbatch.inference.predictor",
}
_ON_GPU = "gcnbatch.backends.cuda.fused.backend"


class Pools(NamedTuple):
    """Worker processes for uncertainty and reports without figures, for plots, for the page, and for a mixture."""

    fits: Workers
    plots: Workers
    page: Workers
    mixture: Workers | None = None


@contextmanager
def overlap(tree: Mapping[str, Any]) -> Iterator[Pools | None]:
    """Start what a training run needs later: the GPU, and the processes that write its reports.

    Parameters
    ----------
    tree : mapping
        The configuration, which is not checked yet.

    Yields
    ------
    Pools or None
        None where training leaves no core idle (without a GPU, or with one core), or no process can be started: the
        training process then writes the reports. They end with the context.
    """
    with ExitStack() as stack:
        with span("start GPU and report processes"):
            has_gpu = stack.enter_context(computing(tree, "train" if _models(tree) > 1 else ""))
            pools = stack.enter_context(report_pools(_models(tree))) if has_gpu and cores() > 1 else None
            if pools and _table(tree, "train").get("mixture") is True:
                with suppress(OSError, RuntimeError):
                    workers = Workers(1, preload, MIXTURE, one_blas_thread=False)
                    pools = pools._replace(mixture=stack.enter_context(workers))
        yield pools


@contextmanager
def computing(tree: Mapping[str, Any], command: str = "") -> Iterator[bool]:
    """Initialise the GPU of a tree that is not checked yet, on ranks those of all; yield whether there is one.

    Under a launcher, `command` also starts the process that computes for rank 0, for this command of `RANKED`.
    """
    with ExitStack() as stack:
        device = _device(tree)
        if launched() is not None:
            _on_ranks(device, command, stack)
        yield device is not None and _wake(device)


def _on_ranks(device: int | None, command: str, stack: ExitStack) -> None:
    from gcnbatch.ranks import process, world  # which import NumPy

    if (ranks := world.current()) is None:
        return
    if device is not None:
        ranks.start_all(_wake_rank, device)
    if command:
        with suppress(OSError, RuntimeError):
            own = None if device is None else ranks.device(device)
            ranks.own_process = stack.enter_context(process.LeaderProcess(_prepare_rank, command, own))
            stack.callback(setattr, ranks, "own_process", None)  # before it ends


def molecule_workers(data: Any, processes: int = 0, *modules: str) -> AbstractContextManager[Workers | None]:
    """Start the processes that convert the molecules of a table, and import `modules` in them; None for other data.

    See `early_workers`. `data` are not checked yet.
    """
    return early_workers(data, processes, *modules) if is_table(data) else nullcontext()


def data_of(tree: Mapping[str, Any]) -> Any:
    """Return the data that a configuration names, which is not checked yet."""
    return _table(tree, "data").get("path")


@contextmanager
def report_pools(models: int, sharing: int = 1) -> Iterator[Pools | None]:
    """Start the processes that write the reports of so many models; None if one cannot be started.

    `sharing` processes of this host share its cores.
    """
    own = max(cores() // sharing, 1)
    kinds: list[tuple[int, Callable[..., object], tuple[str, ...]]] = [
        (min(models, max(own - 2, 1), FIT_WORKERS), preload, FITS),
        (PLOT_WORKERS, prepare_plots, ()),
        (1, preload, PAGE),
    ]
    started: list[Workers] = []
    with ExitStack() as stack:
        with suppress(OSError, RuntimeError):
            for count, prepare, modules in kinds if sys.executable else ():
                started.append(stack.enter_context(Workers(count, prepare, modules, quiet=True)))
        for pool in started:
            stack.callback(pool.shutdown, wait=False)  # before any waiting shutdown, so that all end at the same time
        yield Pools(*started) if len(started) == len(kinds) else None


@contextmanager
def chart_processes(has_gpu: bool) -> Iterator[Executor]:
    """Start the processes that draw the charts of a study; yield them, or what draws in this process.

    They are two: one draws the importance of the keys, which needs scikit-learn, and one all others.
    """
    with ExitStack() as stack:
        found: Executor = INLINE
        with suppress(OSError, RuntimeError):
            if has_gpu and cores() > 1:
                found = stack.enter_context(Workers(2, prepare_plots, CHARTS, quiet=True))
        yield found


def prepare_plots(*modules: str) -> None:
    """Import what plots need, by default those of a run, and draw a first figure."""
    preload(*(modules or PLOTS))
    rehearse()


def preload(*modules: str) -> None:
    """Import the modules that later calls need."""
    for name in modules:
        import_module(name)


def preload_rank(command: str) -> None:
    """Import in a thread what a rank other than 0 needs for a command."""
    threading.Thread(target=_try_import, args=(RANKED[command],), daemon=True).start()


def _try_import(module: str) -> None:
    with suppress(Exception):  # the first call of rank 0 raises it again
        import_module(module)


def _models(tree: Mapping[str, Any]) -> int:
    """Return the number of models of a tree that is not checked yet; 1 where a number is none."""
    count = 1
    for section, key in (("split", "folds"), ("split", "repeats"), ("split", "cross_fit"), ("train", "ensemble")):
        value = _table(tree, section).get(key)
        count *= value if isinstance(value, int) and 1 < value <= 1000 else 1
    return count


def _table(tree: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    table = tree.get(section)
    return table if isinstance(table, dict) else {}


def _device(tree: Mapping[str, Any]) -> int | None:
    """Return the GPU of a tree that is not checked yet; None if it uses none."""
    backend, device = tree.get("backend", registry.AUTO), tree.get("device", 0)
    on_gpu = backend in registry.choices() and registry.may_use_gpu(backend) and type(device) is int
    return device if on_gpu else None


def _wake(device: int) -> bool:
    """Initialise a GPU; return whether there is one."""
    from gcnbatch.backends.cuda.runtime import loader  # here: an import of molecules needs no GPU

    return loader.wake(device) is not None


def _wake_rank(first: int) -> None:
    """Initialise this rank's GPU, counted from that of rank 0, while rank 0 checks its input."""
    from gcnbatch.ranks import world

    ranks = world.current()
    assert ranks is not None
    _wake(ranks.device(first))
    _try_import(_ON_GPU)


def _prepare_rank(command: str, device: int | None) -> None:
    """Import what a rank needs for a command, and initialise this GPU, if any."""
    if device is not None:
        _wake(device)
        _try_import(_ON_GPU)
    _try_import(RANKED[command])
