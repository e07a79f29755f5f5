"""Constants, enums and structs that a CUDA source declares and the host uses.

They are declared only in the source. The host reads them there, like the signatures of the kernels::

    constexpr int TILE_ROWS = 144, PIECES = TILE_ROWS / 48;      constant("PIECES") -> 3
    enum class Readout { SUM, MEAN, MAX };                       enum("Readout") -> {"SUM": 0, "MEAN": 1, "MAX": 2}
    struct Job { const float *left, *right; int start, unit; };  layout("Job") -> a Layout of 24 bytes

Namespaces are ignored. A name inside a struct is ``Struct::NAME``. The reader sees declarations outside of functions. A
layout has the struct's data members alone, and its declared alignment. Unions, bit fields, references, base classes,
aligned members and members of templates are not supported; asking for such a struct is an error. Constants of a
template are found under an instance: ``using Tile = Fp32<4, 2>`` gives ``Tile::BM``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

from gcnbatch.backends.cuda.runtime.expressions import evaluate
from gcnbatch.backends.cuda.runtime.layouts import NUMBERS, FixedArray, Kind, Layout, Number, Pointer, python_name

_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVES = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
_CONSTANT = re.compile(
    r"^(?:(?:static|inline|__device__)\s+)*constexpr\s+(?:(?:static|inline)\s+)*"
    r"(bool|int|unsigned long long|unsigned int|unsigned|long long|float|double)\s+(?!\w+\s*\()(.*)$",
    re.DOTALL,
)
_STRUCT = re.compile(r"^(template\b.*)?\bstruct\s+(?:(?:__align__|alignas)\s*\(([^()]*)\)\s*)?(\w+)\s*(.*)$", re.DOTALL)
_ENUM = re.compile(r"^enum\b\s*(class\b|struct\b)?\s*(\w*)\s*:?\s*([\w\s]*)$")
_ALIAS = re.compile(r"^using\s+(\w+)\s*=\s*([\w\s:]+?)\s*(?:<([^<>]*)>)?$")
_PARAMETER = re.compile(r"^int\s+(\w+)$")
_NAMESPACE = re.compile(r'^(?:inline\s+)?namespace\b\s*([\w:]*)|^extern\s+"C"\s*$')
_LABELS = re.compile(r"^(?:(?:public|private|protected)\s*:\s*)+")
_INITIALISERS = re.compile(r"=[^,]*")
_NO_FIELDS = re.compile(r"(?:using|static|template|friend|static_assert)\b|[^=]*\boperator\b")
_UNREADABLE = re.compile(r"\b(?:union|struct|enum|alignas|__align__)\b|\(\s*\*|^[^(]*(?:&|(?<!:):(?!:))")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|mutable|__restrict__|__grid_constant__)\b")
_DECLARATOR = re.compile(r"^(?P<stars>[\s*]*)(?P<name>\w+)\s*(?P<dimensions>(?:\[[^\]]*\]\s*)*)$")


class Constant(NamedTuple):
    """A constant as declared: its type, the expression of its value, the struct that contains it."""

    type: str
    expression: str
    scope: str


class Body(NamedTuple):
    """The text of a struct's body, and the expression of its alignment."""

    text: str
    alignment: str


class Template(NamedTuple):
    """A struct template with integer parameters."""

    parameters: tuple[str, ...]
    body: str


class Instance(NamedTuple):
    """A template's name and its arguments."""

    template: str
    arguments: tuple[str, ...]


class Declarator(NamedTuple):
    """A declared variable: its name, type name, levels of pointers, and expressions of array dimensions."""

    name: str
    type: str
    pointers: int
    dimensions: tuple[str, ...] = ()


@dataclass
class Scan:
    """The declarations of one text, by full name; several per name if they differ, as under ``#if``."""

    constants: dict[str, list[Constant]] = field(default_factory=dict)
    enums: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    structs: dict[str, list[Body | None]] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)
    templates: dict[str, list[Template]] = field(default_factory=dict)
    instances: dict[str, list[Instance]] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)

    def add(self, other: Scan) -> None:
        """Add the declarations of `other`."""
        for name in ("constants", "enums", "structs", "aliases", "templates", "instances"):
            for key, found in getattr(other, name).items():
                for declared in found:
                    self._note(getattr(self, name), key, declared)
        self.namespaces |= other.namespaces

    def instantiate(self) -> None:
        """Add the constants of templates under the names of their instances, as in ``using Tile = Fp32<4, 2>``."""
        for name, instances in self.instances.items():
            for template, arguments in instances:
                for parameters, body in self.templates.get(template, []):
                    for parameter, argument in zip(parameters, arguments, strict=True):
                        self._note(self.constants, f"{name}::{parameter}", Constant("int", argument, ""))
                    self.scan(body, f"{name}::")

    def scan(self, code: str, scope: str) -> None:
        """Add the declarations in `code`, the body of the struct `scope`."""
        for head, body in statements(code):
            if body is None:
                self._scan_constant(head, scope)
                if (alias := _ALIAS.match(head)) and alias[3]:
                    self._note(self.instances, scope + alias[1], Instance(alias[2], tuple(split(alias[3]))))
                elif alias:
                    self._note(self.aliases, scope + alias[1], " ".join(alias[2].split()))
            elif found := _NAMESPACE.match(head):
                self.namespaces.update(filter(None, (found[1] or "").split("::")))
                self.scan(body, scope)
            elif found := _ENUM.match(head):
                self._scan_enum(found[2], body, scope, is_class=found[1] is not None)
                self._note(self.aliases, scope + found[2], found[3].strip() or "int")
            elif (found := _STRUCT.match(head)) and "(" not in found[4]:
                plain, name = not (found[1] or found[4]), found[3]
                self._note(self.structs, scope + name, Body(body, found[2] or "1") if plain else None)
                if plain:
                    self.scan(body, f"{scope}{name}::")
                elif found[1]:
                    self._scan_template(found[1], scope + name, body)

    def _scan_constant(self, head: str, scope: str) -> None:
        if found := _CONSTANT.match(head):
            for part in split(found[2]):
                name, equals, expression = part.partition("=")
                if equals and name.strip().isidentifier():
                    constant = Constant(found[1], " ".join(expression.split()), scope.removesuffix("::"))
                    self._note(self.constants, scope + name.strip(), constant)

    def _scan_template(self, head: str, name: str, body: str) -> None:
        parameters = [_PARAMETER.match(part) for part in split(head[head.index("<") + 1 : head.rindex(">")])]
        if all(parameters):
            self._note(self.templates, name, Template(tuple(found[1] for found in parameters if found), body))

    def _scan_enum(self, enum: str, body: str, scope: str, is_class: bool) -> None:
        inside, names = f"{scope}{enum}::" if is_class else scope, list[str]()
        for part in filter(None, split(body)):
            name, _, expression = (word.strip() for word in part.partition("="))
            following = f"{names[-1]} + 1" if names else "0"
            names.append(inside + name)
            self._note(self.constants, names[-1], Constant("int", expression or following, inside.removesuffix("::")))
        self._note(self.enums, scope + enum, tuple(names))

    @staticmethod
    def _note(table: dict[str, list[Any]], name: str, declared: Any) -> None:
        held = table.setdefault(name, [])
        if declared not in held:
            held.append(declared)


@lru_cache(maxsize=256)
def scanned(text: str) -> Scan:
    """Return the declarations of a file's text, without its headers."""
    found = Scan()
    found.scan(without_comments(text), "")
    return found


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
        self.name, self._texts = name, texts
        self._layouts: dict[str, Layout] = {}

    @cached_property
    def found(self) -> Scan:
        """All declarations, scanned at first use."""
        found = Scan()
        for text in self._texts.values():
            found.add(scanned(text))
        found.instantiate()
        return found

    def constant(self, name: str) -> Any:
        """Return the value of a ``constexpr`` number or of an enumerator.

        Raises
        ------
        ValueError
            When there is no such constant, it has several values, or its expression cannot be read.
        """
        found = self._only(self.found.constants, name, "constant")
        value = self._evaluate(found.expression, found.scope)
        if found.type in ("bool", "float", "double"):
            return bool(value) if found.type == "bool" else float(value)
        return int(value)

    def enum(self, name: str) -> dict[str, int]:
        """Return the enumerators and their values, in order.

        Raises
        ------
        ValueError
            As `constant`.
        """
        return {full.rpartition("::")[2]: self.constant(full) for full in self._only(self.found.enums, name, "enum")}

    def layout(self, name: str) -> Layout:
        """Return the layout of a struct; cached, as its `pack` is generated code.

        Raises
        ------
        ValueError
            When there is no such struct, there are several, or a field cannot be read.
        """
        if name not in self._layouts:
            self._layouts[name] = self._read_layout(name)
        return self._layouts[name]

    def _read_layout(self, name: str) -> Layout:
        body = self._only(self.found.structs, name, "struct")
        if body is None:
            raise ValueError(f"{self.name}: struct {name} is a template, or has a base")
        fields: dict[str, Kind] = {}
        for head, inner in statements(body.text):
            for declarator in self._fields(name, head, inner):
                fields[python_name(declarator.name)] = self.kind(declarator, name)
        return Layout(name, fields, least_alignment=int(self._evaluate(body.alignment, name)))

    def kind(self, of: Declarator, scope: str = "") -> Kind:
        """Return the type of a field or argument.

        Raises
        ------
        ValueError
            When its values cannot be passed.
        """
        if of.pointers:
            target: Kind | None = Pointer(of.type + " *" * (of.pointers - 1), self._target(of, scope))
        else:
            target = self._named(of.type, scope)
        if target is None:
            raise ValueError(f"{self.name}: '{of.type} {of.name}' has a type that cannot be passed")
        if not of.dimensions:
            return target
        return FixedArray(target, prod(int(self._evaluate(text, scope)) for text in of.dimensions))

    def _evaluate(self, expression: str, scope: str) -> Any:
        """Return the value of an expression inside the struct `scope`."""
        return evaluate(expression, lambda name: self.constant(self._resolved(self.found.constants, name, scope)))

    def _target(self, of: Declarator, scope: str) -> Kind | None:
        """Return the type that a pointer points to; None if it cannot be read, or is the struct `scope` itself."""
        if of.pointers > 1 or of.type == scope:
            return None
        try:
            return self._named(of.type, scope)
        except ValueError:
            return None

    def _named(self, type_: str, scope: str) -> Kind | None:
        """Return the number or struct of this name, or None."""
        if type_ in NUMBERS:
            return Number(type_)
        if (name := self._resolved(self.found.aliases, type_, scope)) in self.found.aliases:
            return self._named(self._only(self.found.aliases, name, "type"), scope)
        name = self._resolved(self.found.structs, type_, scope)
        return self.layout(name) if name in self.found.structs else None

    def _fields(self, struct: str, statement: str, body: str | None) -> list[Declarator]:
        """Return the data members that a statement of a struct declares; none for functions, types and constants."""
        statement = _LABELS.sub("", statement)
        head = _INITIALISERS.sub("", statement)
        is_type = _STRUCT.match(head) or _ENUM.match(head)
        if not head or _NO_FIELDS.match(statement) or (is_type and body is not None):
            return []
        if _UNREADABLE.search(head):
            raise ValueError(f"{self.name}: struct {struct}: '{statement}' cannot be read as fields")
        return [] if "(" in head else declarators(head)

    def _only(self, table: Mapping[str, list[Any]], name: str, what: str) -> Any:
        found = table.get(name, [])
        if len(found) != 1:
            said = "declares several of that name" if found else "does not declare it"
            raise ValueError(f"{what} {name}: {self.name} {said}")
        return found[0]

    def _resolved(self, table: Mapping[str, Any], name: str, scope: str) -> str:
        """Return the full name, in `table`, of `name` as used inside the struct `scope`."""
        while name.partition("::")[0] in self.found.namespaces:
            name = name.partition("::")[2]
        outer = scope.split("::") if scope else []
        names = ("::".join([*outer[:n], name]) for n in range(len(outer), -1, -1))
        return next((full for full in names if full in table), name)


@lru_cache(maxsize=256)
def without_comments(text: str) -> str:
    """Return `text` without comments and preprocessor directives."""
    kept = _COMMENTS.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return _DIRECTIVES.sub("", kept)


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


def split(text: str) -> list[str]:
    """Split a list at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def declarators(text: str) -> list[Declarator]:
    """Return the variables that a declaration such as ``const float *left, *right`` declares.

    Raises
    ------
    ValueError
        When it cannot be read.
    """
    first, *others = split(_QUALIFIERS.sub(" ", text))
    found = re.match(r"^(?P<type>[\w:]+(?:\s+[\w:]+)*?)\s*(?P<rest>[\s*]*\b\w+\s*(?:\[[^\]]*\]\s*)*)$", first)
    made = []
    for part in [found["rest"], *others] if found else [""]:
        one = _DECLARATOR.match(part)
        if not found or not one:
            raise ValueError(f"'{text.strip()}' cannot be read as a declaration")
        dimensions = tuple(re.findall(r"\[([^\]]*)\]", one["dimensions"]))
        made.append(Declarator(one["name"], " ".join(found["type"].split()), one["stars"].count("*"), dimensions))
    return made
