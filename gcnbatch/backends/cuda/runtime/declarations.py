"""Constants, enums and structs that a CUDA source declares and the host uses.

They are declared only in the source, beside the kernels that they explain: nvcc, clangd and ncu read it without a
header that Python would have to generate. What the host reads is written plainly::

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
from itertools import chain
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


# Declarations by what they declare ("constant", "enum", "struct", "alias") and name; several where they differ.
Scope = dict[tuple[str, str], set[Any]]


@lru_cache(maxsize=512)
def declared_in(code: str) -> tuple[tuple[str, str, Any], ...]:
    """Return what a text without comments declares outside of functions, each with its name and declaration.

    That is (type, expression) of a constant, (alignment, body) of a struct, the enumerators, or the type of an alias.
    """
    declared: list[tuple[str, str, Any]] = []
    for head, body in statements(code):
        if body is None:
            if found := _CONSTANT.match(head):
                parts = (part.partition("=") for part in found[2].split(","))
                declared += [("constant", name.strip(), (found[1], value.strip())) for name, _, value in parts]
            elif found := _ALIAS.match(head):
                declared.append(("alias", found[1], found[2].strip()))
        elif head.startswith(("namespace", 'extern "C"')):
            declared += declared_in(body)
        elif found := _ENUM.match(head):
            names = tuple(part.strip() for part in body.split(",") if part.strip())
            declared.append(("enum", found[1], names))
            declared += [("constant", name, ("int", str(value))) for value, name in enumerate(names)]
        elif found := _STRUCT.match(head):
            declared.append(("struct", found[2], (found[1] or "1", body)))
    return tuple(declared)


@lru_cache(maxsize=512)
def scope_of(*codes: str) -> Scope:
    """Return all that these texts declare."""
    scope: Scope = {}
    for what, name, declaration in chain.from_iterable(map(declared_in, codes)):
        scope.setdefault((what, name), set()).add(declaration)
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
        return scope_of(*map(without_comments, self.texts.values()))

    def constant(self, name: str) -> Any:
        """Return the value of a ``constexpr`` number or of an enumerator.

        Raises
        ------
        ValueError
            When there is no such constant, it has several values, or its expression cannot be read.
        """
        type_, expression = self._only("constant", name)
        value = self._evaluate(expression, name.rpartition("::")[0])
        return float(value) if type_ == "float" else int(value)

    def enum(self, name: str) -> dict[str, int]:
        """Return the enumerators and their values, in order.

        Raises
        ------
        ValueError
            As `constant`.
        """
        return {name: value for value, name in enumerate(self._only("enum", name))}

    def layout(self, name: str) -> Layout:
        """Return the layout of a struct; cached, as its `pack` is generated code.

        Raises
        ------
        ValueError
            When there is no such struct, there are several, or a field cannot be read.
        """
        if name not in self._layouts:
            alignment, body = self._only("struct", name)
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
        if struct and ("struct", name) in self._inside(struct):
            return self.layout(f"{struct}::{name}")
        if ("alias", name) in self.scope:
            return self._named(self._only("alias", name), "")
        if ("enum", name) in self.scope:
            return Number("int")
        return self.layout(name) if ("struct", name) in self.scope else None

    def _evaluate(self, expression: str, struct: str) -> Any:
        """Return the value of an expression inside of a struct, or outside of all."""

        def value_of(name: re.Match[str]) -> str:
            inside = f"{struct}::{name[0]}"
            known = struct and ("constant", name[0]) in self._inside(struct)
            return str(self.constant(inside if known else name[0]))

        numbers = _NAME.sub(value_of, _NUMBER.sub(r"\1", expression))
        if not re.fullmatch(r"[-+*/%<>()\d.e\s]+", numbers):
            raise ValueError(f"{self.name}: '{expression}' cannot be read as a value")
        return eval(numbers if "." in numbers else numbers.replace("/", "//"))  # noqa: S307  # numbers and operators

    def _inside(self, struct: str) -> Scope:
        """Return all that the body of a struct declares."""
        return scope_of(self._only("struct", struct)[1])

    def _only(self, what: str, name: str) -> Any:
        """Return the only declaration of this name; ``Struct::NAME`` is declared in a struct."""
        outer, _, last = name.rpartition("::")
        found = (self._inside(outer) if ("struct", outer) in self.scope else self.scope).get((what, last), ())
        if len(found) != 1:
            problem = "declares several of that name" if found else "does not declare it"
            raise ValueError(f"{what} {name}: {self.name} {problem}")
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
