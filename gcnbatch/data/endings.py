"""Endings of files: data sets, and tables and structure files of molecules. This module imports nothing large."""

from __future__ import annotations

import os
from typing import Any

DATASETS = (".h5", ".hdf5")
COMPRESSIONS = (".gz", ".bz2", ".zst")
TEXT, SMI, SDF = (".csv", ".tsv", ".txt"), (".smi", ".smiles", ".cxsmiles"), (".sdf", ".sd")
EXCEL, PARQUET = (".xlsx", ".xlsm", ".xls", ".ods"), (".parquet",)
TABLES = tuple(e + more for e in (*TEXT, *SMI, *SDF) for more in ("", *COMPRESSIONS)) + EXCEL + PARQUET
KNOWN = f"{', '.join((*TEXT, *SMI, *SDF))} (each also {', '.join(COMPRESSIONS)}), {', '.join((*EXCEL, *PARQUET))}"


def is_dataset(data: Any) -> bool:
    """Return whether this is the path of a data set, by its ending."""
    return isinstance(data, str | os.PathLike) and os.fspath(data).lower().endswith(DATASETS)


def is_table(data: Any) -> bool:
    """Return whether this is the path of a table or structure file of molecules, by its ending."""
    return isinstance(data, str | os.PathLike) and os.fspath(data).lower().endswith(TABLES)
