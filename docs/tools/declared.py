"""Extension of Griffe: parameters of functions that `gcnbatch.options` declares, which their source does not list."""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class Declared(griffe.Extension):
    """Give a function with the decorator ``@arguments(…)`` its signature and docstring at run time."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace what was read from the source."""
        if not any(str(one.value).startswith("arguments(") for one in func.decorators):
            return
        found = griffe.dynamic_import(func.path)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    one.name,
                    annotation=one.annotation,
                    kind=griffe.ParameterKind[one.kind.name.lower()],
                    default=None if one.default is one.empty else getattr(one.default, "__name__", repr(one.default)),
                )
                for one in inspect.signature(found).parameters.values()
            )
        )
        if func.docstring is not None:
            func.docstring.value = inspect.getdoc(found) or ""
