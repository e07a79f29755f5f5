"""Static assertions: a compiler says whether the host has read the constants and structs of a source rightly."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from gcnbatch.backends.cuda.ops.matmul import TILES
from gcnbatch.backends.cuda.runtime.declarations import Declarations
from gcnbatch.backends.cuda.runtime.layouts import Layout


def readable(found: Declarations) -> tuple[dict[str, Any], dict[str, Layout]]:
    """Return the constants and the structs of a file and its headers that can be read."""
    constants, structs = {}, {}
    for what, name in found.scope:
        with suppress(ValueError):
            if what == "constant":
                constants[name] = found.constant(name)
            elif what == "struct":
                structs[name] = found.layout(name)
    return constants, structs


def literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | float) else f"{value}{'ull' if value >= 1 << 31 else ''}"


def assertions(found: Declarations) -> str:
    """Return static assertions on the constants and layouts that the host has read, for the compiler to check."""
    constants, structs = readable(found)
    namespaces = {name for text in found.texts.values() for name in re.findall(r"^namespace (\w+)", text, re.MULTILINE)}
    lines = [f"using namespace {name};" for name in sorted(namespaces)]
    lines += [
        f'static_assert({name} == decltype({name})({literal(value)}), "{name}");' for name, value in constants.items()
    ]
    for name, layout in structs.items():
        lines.append(f'static_assert(sizeof({name}) == {layout.size}, "{name}");')
        for field, at in zip(layout.fields, layout.offsets, strict=True):
            member = field.rstrip("_") if field == "in_" else field
            place = f"__INTADDR__(&(static_cast<{name}*>(nullptr)->{member}))"  # offsetof, without a header
            lines.append(f'static_assert({place} == {at}, "{name}::{field}");')
    for tile in (tile for tiles in TILES.values() for tile in tiles) if found.name == "dense/matmul.cu" else ():
        type_ = f"Tile{tile.name.replace('tf32_', 'Tf32')}"
        sizes = {"BM": tile.rows, "BN": tile.columns, "DEPTH": tile.depth, "THREADS": tile.threads}
        lines += [f'static_assert({type_}::{size} == {value}, "{type_}");' for size, value in sizes.items()]
    return "\n".join(lines)
