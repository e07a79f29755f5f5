"""Static assertions: a compiler says whether the host has read the constants and structs of a source rightly."""

from __future__ import annotations

from typing import Any

from gcnbatch.backends.cuda.runtime.declarations import Declarations
from gcnbatch.backends.cuda.runtime.layouts import Layout


def readable(found: Declarations) -> tuple[dict[str, Any], dict[str, Layout]]:
    """Return the constants and the structs of a file and its headers that can be read."""
    constants, structs = {}, {}
    parameters = {name for template in found.found.templates.values() for name in template[0].parameters}
    for name in found.found.constants:
        if name.rpartition("::")[2] in parameters:
            continue  # which C++ does not name outside of the template
        try:
            constants[name] = found.constant(name)
        except ValueError:
            continue
    for name in found.found.structs:
        try:
            structs[name] = found.layout(name)
        except ValueError:
            continue
    return constants, structs


def literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | float) else f"{value}{'ull' if value >= 1 << 31 else ''}"


def assertions(found: Declarations) -> str:
    """Return static assertions on the constants and layouts that the host has read, for the compiler to check."""
    constants, structs = readable(found)
    lines = [f"using namespace {name};" for name in sorted(found.found.namespaces)]
    lines += [
        f'static_assert({name} == decltype({name})({literal(value)}), "{name}");' for name, value in constants.items()
    ]
    for name, layout in structs.items():
        lines.append(f'static_assert(sizeof({name}) == {layout.size}, "{name}");')
        for field, at in zip(layout.fields, layout.offsets, strict=True):
            member = field.rstrip("_") if field == "in_" else field
            place = f"__INTADDR__(&(static_cast<{name}*>(nullptr)->{member}))"  # offsetof, without a header
            lines.append(f'static_assert({place} == {at}, "{name}::{field}");')
    return "\n".join(lines)
