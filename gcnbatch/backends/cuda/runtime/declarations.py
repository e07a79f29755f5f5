"""Constants, enums and structs that a CUDA source declares and the host uses.

They are declared only in the source, beside the kernels that they explain. What the host reads is written plainly::

    constexpr int TILE_ROWS = 144, PIECES = TILE_ROWS / 48;      constant("PIECES") -> 3
    enum Readout { SUM, MEAN, MAX };                             enum("Readout") -> {"SUM": 0, "MEAN": 1, "MAX": 2}
    struct Job { const float *left, *right; int start, unit; };  layout("Job") -> a Layout of 24 bytes

A constant is an ``int`` or ``float``; its value is built from numbers, constants, ``+ - * / % << >>`` and parentheses.
An enum has no values of its own choice. A struct has no base and is no template; its functions, types and constants are
passed over. A name inside a struct is ``Struct::NAME``; namespaces are ignored. Static assertions in the tests of the
compiler hold what is read here to what C++ makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

from gcnbatch.backends.cuda.runtime.layouts import NUMBERS, CType, FixedArray, Layout, Number, Pointer, python_name

_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.DOTALL | re.MULTILINE)
_CONSTANT = re.compile(r"^(?:static\s+)?constexpr\s+(int|float)\s+(.*=.*)$", re.DOTALL)
_ENUM = re.compile(r"^enum\s+(\w+)$")
_ALIAS = re.compile(r"^using\s+(\w+)\s*=\s*([\w\s]+)$")
_STRUCT = re.compile(r"^struct\s+(?:__align__\s*\((\d+)\)\s*)?(\w+)$")
_NUMBER = re.compile(r"\b(\d[\d.]*(?:[eE][+-]?\d+)?)f?\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*(?:::\w+)*")
_NO_FIELD = re.compile(r"(?:using|static|template)\b|[^=]*(?:\(|\boperator\b)")
_UNREADABLE = re.compile(r"\b(?:union|alignas|__align__)\b|\(\s*\*")
_NO_TYPE = re.compile(r"\b(?:struct|enum)\b|&|(?<!:):(?!:)")
_QUALIFIERS = re.compile(r"\b(?:const|__restrict__|__grid_constant__)\b|=[^,]*")
_DECLARATION = re.compile(r"^(?P<type>[\w:]+(?:\s+[\w:]+)*?)\s*(?P<rest>[\s*]*\b\w+\s*(?:\[[^\]]*\]\s*)*)$")


class Declarator(NamedTuple):
    """A declared variable: its name, type name, levels of pointers, and expressions of array dimensions."""

    name: str
    type: str
    pointers: int
    dimensions: tuple[str, ...] = ()


class Scope(NamedTuple):
    """What a file or the body of a struct declares, by name; a set has several elements where declarations differ."""

    constants: dict[str, set[tuple[str, str]]]  # (type, expression)
    enums: dict[str, set[tuple[str, ...]]]
    structs: dict[str, set[tuple[str, str]]]  # (alignment, body)
    aliases: dict[str, set[str]]


@lru_cache(maxsize=512)
def scanned(code: str) -> Scope:
    """Return the declarations of a text without comments, outside of functions."""
    scope = Scope({}, {}, {}, {})
    for head, body in statements(code):
        if body is None:
            if found := _CONSTANT.match(head):
                for part in found[2].split(","):
                    name, _, expression = part.partition("=")
                    scope.constants.setdefault(name.strip(), set()).add((found[1], expression.strip()))
            elif found := _ALIAS.match(head):
                scope.aliases.setdefault(found[1], set()).add(found[2].strip())
        elif head.startswith(("namespace", 'extern "C"')):
            inner = scanned(body)
            for table in Scope._fields:
                ours: dict[str, set[Any]] = getattr(scope, table)
                for name, declared in getattr(inner, table).items():
                    ours.setdefault(name, set()).update(declared)
        elif found := _ENUM.match(head):
            names = tuple(part.strip() for part in body.split(",") if part.strip())
            scope.enums.setdefault(found[1], set()).add(names)
            for value, name in enumerate(names):
                scope.constants.setdefault(name, set()).add(("int", str(value)))
        elif found := _STRUCT.match(head):
            scope.structs.setdefault(found[2], set()).add((found[1] or "1", body))
    return scope


class Declarations:
    """The declarations of a source and its headers.

    Parameters
    ----------
    name : str
        The file's name, for messages.
    texts : dict of str
        The text of the file and of each header, by name.
    """

    def __init__(self, name: str, texts: Mapping[str, str]) -> None:
        self.name, self.texts = name, texts
        self._layouts: dict[str, Layout] = {}

    @cached_property
    def scope(self) -> Scope:
        """All declarations, scanned at first use."""
        return scanned("\n".join(f"namespace {{{without_comments(text)}}}" for text in self.texts.values()))

    def constant(self, name: str) -> Any:
        """Return the value of a ``constexpr`` number or of an enumerator.

        Raises
        ------
        ValueError
            When there is no such constant, it has several values, or its expression cannot be read.
        """
        type_, expression = self._only("constants", name)
        value = self._evaluate(expression, name.rpartition("::")[0])
        return float(value) if type_ == "float" else int(value)

    def enum(self, name: str) -> dict[str, int]:
        """Return the enumerators and their values, in order.

        Raises
        ------
        ValueError
            As `constant`.
        """
        return {name: value for value, name in enumerate(self._only("enums", name))}

    def layout(self, name: str) -> Layout:
        """Return the layout of a struct; cached, as its `pack` is generated code.

        Raises
        ------
        ValueError
            When there is no such struct, there are several, or a field cannot be read.
        """
        if name not in self._layouts:
            alignment, body = self._only("structs", name)
            fields: dict[str, CType] = {}
            for head, inner in statements(body):
                for declarator in self._fields(name, head, inner):
                    fields[python_name(declarator.name)] = self.ctype(declarator, name)
            self._layouts[name] = Layout(name, fields, least_alignment=int(alignment))
        return self._layouts[name]

    def ctype(self, of: Declarator, scope: str = "") -> CType:
        """Return the type of a field or argument.

        Raises
        ------
        ValueError
            When its values cannot be passed.
        """
        if of.pointers:
            target: CType | None = Pointer(of.type + " *" * (of.pointers - 1), self._target(of, scope))
        else:
            target = self._named(of.type, scope)
        if target is None:
            raise ValueError(f"{self.name}: '{of.type} {of.name}' has a type that cannot be passed")
        if not of.dimensions:
            return target
        return FixedArray(target, prod(int(self._evaluate(text, scope)) for text in of.dimensions))

    def _fields(self, struct: str, head: str, body: str | None) -> list[Declarator]:
        """Return the data members that a statement of a struct declares; none for functions, types and constants."""
        if not head or (body is not None and (_ENUM.match(head) or _STRUCT.match(head))):
            return []
        if not _UNREADABLE.search(head):
            if _NO_FIELD.match(head):
                return []
            if body is None and not _NO_TYPE.search(head):
                return declarators(head)
        raise ValueError(f"{self.name}: struct {struct}: '{head}' cannot be read as fields")

    def _target(self, of: Declarator, scope: str) -> CType | None:
        """Return the type that a pointer points to; None if it cannot be read, or is the struct `scope` itself."""
        if of.pointers > 1 or of.type == scope:
            return None
        try:
            return self._named(of.type, scope)
        except ValueError:
            return None

    def _named(self, type_: str, struct: str) -> CType | None:
        """Return the number or struct that a type's name means inside of a struct, or None."""
        if type_ in NUMBERS:
            return Number(type_)
        name = type_.rpartition("::")[2]
        if struct and name in scanned(self._only("structs", struct)[1]).structs:
            return self.layout(f"{struct}::{name}")
        if name in self.scope.aliases:
            return self._named(self._only("aliases", name), "")
        if name in self.scope.enums:
            return Number("int")
        return self.layout(name) if name in self.scope.structs else None

    def _evaluate(self, expression: str, struct: str) -> Any:
        """Return the value of an expression inside of a struct, or outside of all."""

        def value_of(name: re.Match[str]) -> str:
            inside = f"{struct}::{name[0]}"
            known = struct and name[0] in scanned(self._only("structs", struct)[1]).constants
            return str(self.constant(inside if known else name[0]))

        numbers = _NAME.sub(value_of, _NUMBER.sub(r"\1", expression))
        if not re.fullmatch(r"[-+*/%<>()\d.e\s]+", numbers):
            raise ValueError(f"{self.name}: '{expression}' cannot be read as a value")
        return eval(numbers if "." in numbers else numbers.replace("/", "//"))  # noqa: S307  # numbers and operators

    def _only(self, what: str, name: str) -> Any:
        """Return the only declaration of this name in a field of `Scope`; ``Struct::NAME`` is declared in a struct."""
        outer, _, last = name.rpartition("::")
        scope = scanned(self._only("structs", outer)[1]) if outer in self.scope.structs else self.scope
        found = getattr(scope, what).get(last, ())
        if len(found) != 1:
            problem = "declares several of that name" if found else "does not declare it"
            raise ValueError(f"{what.removesuffix('s')} {name}: {self.name} {problem}")
        return next(iter(found))


@lru_cache(maxsize=256)
def without_comments(text: str) -> str:
    """Return `text` without comments and preprocessor directives."""
    return _NO_CODE.sub(" ", text)


def statements(code: str) -> Iterator[tuple[str, str | None]]:
    """Yield each statement or block: the text before ``;`` or ``{``, and the body of the block or None."""
    start = inside = depth = 0
    for found in re.finditer(r"[{};]", code):
        if found[0] == "{":
            depth += 1
            if depth == 1:
                inside = found.end()
        elif found[0] == "}":
            depth -= 1
            if depth == 0:
                yield code[start : inside - 1].strip(), code[inside : found.start()]
                start = found.end()
        elif depth == 0:
            yield code[start : found.start()].strip(), None
            start = found.end()


def declarators(text: str) -> list[Declarator]:
    """Return the variables that a declaration such as ``const float *left, *right`` declares.

    Raises
    ------
    ValueError
        When it cannot be read.
    """
    first, *others = (part.strip() for part in _QUALIFIERS.sub(" ", text).split(","))
    found = _DECLARATION.match(first)
    made = []
    for part in [found["rest"], *others] if found else [""]:
        one = re.match(r"^([\s*]*)(\w+)\s*((?:\[[^\]]*\]\s*)*)$", part)
        if not found or not one:
            raise ValueError(f"'{text.strip()}' cannot be read as a declaration")
        dimensions = tuple(re.findall(r"\[([^\]]*)\]", one[3]))
        made.append(Declarator(one[2], " ".join(found["type"].split()), one[1].count("*"), dimensions))
    return made
