"""Worker processes of the featuriser: how they start, and what they run.

This module imports little, so that they start while their caller imports NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gcnbatch.data import guard
from gcnbatch.fileio import StrPath
from gcnbatch.machine import cores
from gcnbatch.workers.pool import Workers

if TYPE_CHECKING:
    from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays

Result = TypeVar("Result")
SMALL_FILE = 1 << 16  # bytes of a file that is read before a process could start


@contextmanager
def early_workers(source: StrPath, processes: int = 0, *modules: str) -> Iterator[Workers | None]:
    """Start processes while the caller imports and reads `source`; None for a small file, or for one process.

    They import `modules`, too.
    """
    count, path = processes or cores(), Path(source)
    if count == 1 or not path.is_file() or path.stat().st_size < SMALL_FILE:
        yield None
        return
    with Workers(count, prepare, modules, quiet=True) as workers:
        yield workers


def prepare(*modules: str) -> None:
    """Prepare a worker process: import these modules, NumPy and RDKit, before there are molecules."""
    from gcnbatch.data.featurizer import load_rdkit

    for name in modules:
        import_module(name)
    load_rdkit()
    guard.limit_worker()


def in_chunks(
    function: Callable[..., Result],
    again: Callable[..., Iterable[Result]],
    chunks: Iterator[tuple[Any, ...]],
    count: int,
    workers: Workers | None = None,
) -> Iterator[Result]:
    """Yield the results of chunks in their order; see `guard.in_workers` for `function` and `again`.

    They are made in `workers`, else in `count` new processes; one chunk after the other in forks, if that is 1.
    """
    if workers is not None:
        yield from guard.in_workers(workers, function, again, chunks, 3 * workers.count)
    elif count > 1:
        with Workers(count, prepare, quiet=True) as new:
            yield from in_chunks(function, again, chunks, count, new)
    else:
        from gcnbatch.data.normal_form import load_rdkit

        load_rdkit()  # once, before the forks; a process loads it by itself
        yield from chain.from_iterable(starmap(again, chunks))


def featurize_timed(
    seconds: float, smiles: list[str], first: int, options: FeaturizerOptions, scaffolds: bool
) -> MoleculeArrays:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    from gcnbatch.data.featurizer import featurize_chunk

    return featurize_chunk(guard.timed(smiles, seconds), first, options, scaffolds)


def canonical_timed(seconds: float, smiles: list[str], options: FeaturizerOptions) -> dict[str, tuple[str, str]]:
    """Return `canonical` in a worker process, which ends if a molecule takes too long."""
    return canonical(guard.timed(smiles, seconds), options)


def canonical(smiles: Iterable[str], options: FeaturizerOptions) -> dict[str, tuple[str, str]]:
    """Return canonical SMILES with and without stereochemistry, of those that RDKit can write."""
    from gcnbatch.data.normal_form import STEREO, normal_form

    names = {}
    for text in smiles:
        with suppress(RuntimeError):
            exact = flat = normal_form(text.strip(), options, stereo=True)
            if STEREO.search(text):
                flat = normal_form(text.strip(), options, stereo=False)
            if exact is not None and flat is not None:
                names[text] = exact.name, flat.name
    return names
