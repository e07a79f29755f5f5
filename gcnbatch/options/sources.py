"""Parameters that name a configuration, data or a backend."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from gcnbatch.backends import registry
from gcnbatch.options.declaration import Argument, Option

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.data.graphs import GraphSet

ConfigLike: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | Config"
DataLike: TypeAlias = "str | PathLike[str] | GraphSet"

_BACKENDS = f"{', '.join(registry.choices()[:-1])} or {registry.choices()[-1]}."

ConfigFile = Annotated[
    "ConfigLike | None",
    Argument(
        "TOML configuration.",
        metavar="CONFIG.toml",
        typed=Path,
        doc='A TOML file, the name of a shipped configuration, or its tables: ``{"train": {"epochs": 20}}``.',
    ),
]
DataSet = Annotated[
    "DataLike | None",
    Option(
        "HDF5 file or folder of shards.",
        typed=Path,
        key="data.path",
        doc="HDF5 file or folder of shards, or a set in memory; the run then keeps it in its folder.",
    ),
]
BackendKey = Annotated[str | None, Option(_BACKENDS, key="backend")]
Backend = Annotated[str, Option(_BACKENDS)]
