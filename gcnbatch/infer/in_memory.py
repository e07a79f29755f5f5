"""Predictions in memory: SMILES, graphs or a file in, arrays out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gcnbatch.data.graphs import GraphSet, concatenate
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.infer.ensemble import infer
from gcnbatch.infer.inputs import CsvOptions, Data, open_input, refuse_bad_row
from gcnbatch.infer.members import load_members
from gcnbatch.predictions import Predictions


def predict(
    folders: Sequence[Path], data: StrPath | GraphSet | Iterable[str], processes: int = 0, **options: Any
) -> Predictions:
    """Return the predictions of all rows.

    Parameters
    ----------
    folders : sequence of Path
        Runs whose models are averaged.
    data : path, GraphSet or iterable of str
        A text is a path; SMILES come in a list.
    processes : int
        Processes that read SMILES; 0: one per processor.
    **options
        As for `gcnbatch.infer.infer`.

    Raises
    ------
    InputError
        When runs and data cannot be used or do not match.
    """
    found = _Collected()
    infer(folders, _input(data), found, csv=CsvOptions(processes=processes), quiet=True, **options)
    return found.table()


def read_graphs(folders: Sequence[Path], data: StrPath | GraphSet | Iterable[str], processes: int = 0) -> GraphSet:
    """Return all rows as the graphs that the models of these runs take.

    Raises
    ------
    InputError
        When runs and data cannot be used or do not match, and for a molecule that cannot be read.
    """
    parts, rows = [], 0
    with open_input(
        _input(data), load_members(folders, lambda line: None), CsvOptions(processes=processes), 0
    ) as source:
        for part in source.parts:
            refuse_bad_row(part, rows)
            parts.append(part.data if isinstance(part.data, GraphSet) else part.data.load())
            rows += len(part.ids)
    return concatenate(parts)


class _Collected:
    """Keeps the parts of a table."""

    def __init__(self) -> None:
        self._parts: list[Predictions] = []

    def append(self, table: Predictions) -> None:
        self._parts.append(table)

    def table(self) -> Predictions:
        first, *others = self._parts
        return first.join(*others) if others else first


def _input(data: StrPath | GraphSet | Iterable[str]) -> Data:
    if isinstance(data, str | os.PathLike):
        return Path(data)
    if isinstance(data, GraphSet):
        return data
    if not (texts := list(data)):
        raise InputError("data", "no molecule", "at least one")
    return texts
