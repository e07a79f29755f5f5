"""Train graph convolutional networks on many small graphs or one large graph, with interchangeable backends.

`PUBLIC` lists what `gcnbatch` offers, with the modules that define it, from ``__init__.pyi``. A name is imported when
it is first used, so that ``import gcnbatch`` stays light. Everything else is internal, except `gcnbatch.sklearn`.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
PUBLIC = {name.name: str(line.module) for line in _STUB.body if isinstance(line, ast.ImportFrom) for name in line.names}
__all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'gcnbatch' has no attribute '{name}'")
    found = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
