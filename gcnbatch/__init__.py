"""Train graph convolutional networks on many small graphs or one large graph, with interchangeable backends.

`PUBLIC` lists what `gcnbatch` offers, with the modules that define it, from ``__init__.pyi``. A name is imported when
it is first used, so that ``import gcnbatch`` stays light. Everything else is internal, except `gcnbatch.sklearn`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

with open(f"{__file__.rpartition('.')[0]}.pyi", encoding="utf-8") as _stub:  # without ast: each worker process reads it
    _IMPORTS = [line.removeprefix("from ").split(" import ") for line in _stub if line.startswith("from ")]
PUBLIC = {name.split()[0]: module for module, names in _IMPORTS for name in names.split(",")}
__all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'gcnbatch' has no attribute '{name}'")
    found = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
