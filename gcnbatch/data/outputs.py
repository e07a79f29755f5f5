"""Paths of new data sets, checked before any work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gcnbatch import outputs
from gcnbatch.data import audit
from gcnbatch.data.endings import DATASETS
from gcnbatch.data.schema import FORMAT_NAME
from gcnbatch.fileio import Output, StrPath
from gcnbatch.outputs import Kind

DATASET = Kind("a data set", lambda path: audit.root_of(path).format == FORMAT_NAME, DATASETS)


def output_path(path: StrPath, inputs: Iterable[StrPath] = (), any_name: bool = False) -> Output:
    """Check that `path` can become a data set; see `outputs.check`. With `any_name` it may have any ending.

    Raises
    ------
    InputError
    MachineError
    """
    return outputs.check(path, replace(DATASET, endings=()) if any_name else DATASET, inputs)
