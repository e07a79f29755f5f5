"""One declaration per command: a dataclass with every parameter once.

A field has the parameter's name, type, default, help and form on the command line; `python` describes a parameter that
only the Python function has::

    @declaration
    class ShardOptions:
        path: StrPath = argument("Data set.", metavar="IN.h5")
        _: KW_ONLY
        graphs: int | None = option("Most graphs of a shard.", default=None, metavar="N", min=1)
        device: Device = 0
        progress: bool = python("Show progress on stderr.", default=False)

What several commands have is a type with its `Option`: ``Device = Annotated[int, Option("GPU.", metavar="N")]``.

From it come the signature and the docstring of the Python function (`arguments`), the options of the command
(`gcnbatch.cli.command`) and values of the configuration (`keys_of` in `gcnbatch.api.options`). Declarations compose by
inheritance. Their modules import nothing large, because ``--help`` reads them; types of large modules are strings, and
annotations are values, without ``from __future__ import annotations``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ForwardRef, NamedTuple, ParamSpec, TypeVar, cast, dataclass_transform, get_args

from gcnbatch.fileio import StrPath

P = ParamSpec("P")
Declared = TypeVar("Declared")
Result = TypeVar("Result")
_ALIASES = {str(Callable[[str], object]): "Say", str(StrPath): "StrPath", str(StrPath | None): "StrPath | None"}


class Python:
    """A parameter of the Python function alone.

    Parameters
    ----------
    doc : str
        Its description.
    """

    flags: tuple[str, ...] = ()
    key: str = ""
    read: Callable[[Any], Any] | None = None

    def __init__(self, doc: str) -> None:
        self.doc = doc


class Option(Python):
    """An option of the command, and the parameter of the Python function.

    Parameters
    ----------
    help : str
        Help of the option.
    *flags : str
        Names, such as ``"-o", "--out"``; none: ``--`` and the field's name.
    doc : str
        Description of the Python parameter; empty: `help` and `shown`.
    shown : str
        The default in words, where its value says too little.
    key : str
        Key of the configuration that it sets, such as ``"train.epochs"``.
    default : object
        Default of that key, where the help shows it.
    typed : type
        Type on the command line, where it is another one.
    read : callable
        Converts a value of the command line into that of the field.
    **form
        `metavar`, `min` and `max` of Typer.
    """

    def __init__(
        self,
        help: str,
        *flags: str,
        doc: str = "",
        shown: str = "",
        key: str = "",
        default: Any = None,
        typed: Any = None,
        read: Callable[[Any], Any] | None = None,
        **form: Any,
    ) -> None:
        shown = shown or ("" if default is None else str(default))
        super().__init__(doc or help + (f" Default: {shown}." if shown else ""))
        self.help, self.flags, self.shown, self.form = help, flags, shown, form
        self.key, self.default, self.typed, self.read = key, default, typed, read


class Argument(Option):
    """An argument of the command, and the parameter of the Python function."""


def python(doc: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a parameter of the Python function alone."""
    return _field(Python(doc), default)


def option(help: str, *flags: str, default: Any = dataclasses.MISSING, **form: Any) -> Any:
    """Declare an option; see `Option`."""
    return _field(Option(help, *flags, **form), default)


def argument(help: str, *, default: Any = dataclasses.MISSING, **form: Any) -> Any:
    """Declare an argument; see `Option`."""
    return _field(Argument(help, **form), default)


@dataclass_transform(frozen_default=True, field_specifiers=(python, option, argument))
def declaration(cls: type[Declared]) -> type[Declared]:
    """Make a class a declaration: a dataclass without comparison and text, which would delay ``--help``."""
    return dataclasses.dataclass(repr=False, eq=False, match_args=False)(cls)


class Parameter(NamedTuple):
    """A field of a declaration; a required one has the default `dataclasses.MISSING`."""

    name: str
    type: Any
    form: Python
    default: Any

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the option."""
        return self.form.flags or (f"--{self.name.replace('_', '-')}",)


def parameters(declared: type) -> dict[str, Parameter]:
    """Return the parameters of a declaration by name.

    First come those that may be positional; then options; then what only Python has. Within these, bases come from left
    to right, and its own parameters last.
    """
    fields = {field.name: field for field in dataclasses.fields(declared)}
    named: list[list[Parameter]] = [[], [], []]
    for field in (fields[name] for name in dict.fromkeys(_names(declared)) if name in fields):
        kind, form = (field.type, field.metadata["form"]) if field.metadata else get_args(field.type)
        group = 0 if not field.kw_only else 1 if isinstance(form, Option) else 2
        named[group].append(Parameter(field.name, kind, form, field.default))
    return {one.name: one for group in named for one in group}


def part(given: Any, base: type) -> dict[str, Any]:
    """Return the values of the parameters that a base of the declaration of `given` has."""
    return {name: getattr(given, name) for name in parameters(base)}


def chosen(values: Mapping[str, Any], declared: type, but: Iterable[str] = ()) -> list[str]:
    """Return the options of a declaration, as the command line names them, that have other values than their defaults.

    Options `but` are left out. A value that is None or an empty list was not given.
    """
    found = []
    for name, one in parameters(declared).items():
        if name in but or (value := values.get(name)) in (None, [], one.default) or not isinstance(one.form, Option):
            continue
        if isinstance(one.form, Argument):
            found.append(one.form.form["metavar"].rpartition("|")[2].partition(".")[0])
        else:
            found += [f"{key}={of}" for key, of in value.items()] if name == "settings" else [one.flags[-1]]
    return found


def arguments(declared: Callable[P, Declared]) -> Callable[[Callable[[Declared], Result]], Callable[P, Result]]:
    """Turn a function of a declaration's instance into one with its fields as arguments, for type checkers too.

    The docstring gets the section "Parameters".
    """

    def decorate(function: Callable[[Declared], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            return function(declared(*args, **kwargs))

        signature, found = inspect.signature(declared), parameters(cast(type, declared))
        plain = [signature.parameters[name].replace(annotation=_name(one.type)) for name, one in found.items()]
        result = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(parameters=plain, return_annotation=result)  # type: ignore[attr-defined]
        declared.__init__.__qualname__ = function.__name__  # the name in a TypeError
        call.__doc__ = _documented(inspect.getdoc(function) or "", found.values())
        return call

    return decorate


def _field(form: Python, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"form": form})


def _names(declared: type) -> Iterator[str]:
    for base in declared.__bases__:
        yield from _names(base)
    yield from inspect.get_annotations(declared)


def _documented(text: str, found: Iterable[Parameter]) -> str:
    lines = ["Parameters", "----------"]
    for name, kind, form, _ in found:
        lines += [f"{name} : {_name(kind).replace('StrPath', 'path')}", f"    {form.doc}"]
    section = re.search(r"^(Returns|Raises|Notes|Examples)\n-+$", text, re.MULTILINE)
    start = section.start() if section else len(text)
    return "\n".join([text[:start].rstrip(), "", *lines, "", text[start:]]).rstrip()


def _name(kind: Any) -> str:
    """Return a type as a signature names it."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    text = _ALIASES.get(str(kind)) or inspect.formatannotation(kind).replace("collections.abc.", "")
    return re.sub(r"Optional\[(.*)\]", r"\1 | None", text)
