"""Options of a file of molecules that is predicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from gcnbatch.data.tables.layout import TableFormat


@dataclass(frozen=True)
class CsvOptions:
    """Options of a file of molecules; empty columns: as in training, else detected; see `featurize`.

    `keep_columns` are copied to the output; ``("all",)`` means all but the ids.
    """

    smiles_column: str = ""
    id_column: str = ""
    processes: int = 0
    keep_columns: tuple[str, ...] = ()
    format: TableFormat = field(default_factory=TableFormat)
