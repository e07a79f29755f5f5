"""Predictions in memory: SMILES, graphs or a file in, arrays out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gcnbatch.data.graphs import GraphSet
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.given import find
from gcnbatch.inference.inputs import Data
from gcnbatch.inference.options import CsvOptions
from gcnbatch.predictions import Predictions, Sink, as_it_is


def predict(
    folders: Sequence[Path], data: StrPath | GraphSet | Iterable[str], processes: int = 0, **options: Any
) -> Predictions:
    """Return the predictions of all rows.

    Parameters
    ----------
    folders : sequence of Path
        Runs whose models are averaged.
    data : path, GraphSet or iterable of str
        A text is the name of a file, or one SMILES; several SMILES come in a list.
    processes : int
        Processes that read SMILES; 0: one per processor.
    **options
        As for `gcnbatch.inference.ensemble.infer`.

    Raises
    ------
    InputError
        When runs and data cannot be used or do not match.
    """
    found = _Collected()
    infer(folders, as_input(data), found, csv=CsvOptions(processes=processes), quiet=True, **options)
    return found.table()


class _Collected(Sink):
    """Keeps the parts of a table."""

    def __init__(self) -> None:
        self.encode = as_it_is
        self._parts: list[Predictions] = []

    def write(self, made: Sequence[Predictions]) -> None:
        self._parts.extend(made)

    def table(self) -> Predictions:
        first, *others = self._parts
        return first.join(*others) if others else first


def as_input(data: StrPath | GraphSet | Iterable[str]) -> Data:
    """Return data as `open_input` takes them; a text is what `find` returns.

    Raises
    ------
    InputError
        For no molecule.
    """
    if isinstance(data, str | os.PathLike):
        return find(data)
    if isinstance(data, GraphSet):
        return data
    if not (texts := list(data)):
        raise InputError("data", "no molecule", "at least one")
    return texts
