"""One declaration makes a Python function and a command."""

import inspect
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

import gcnbatch
from gcnbatch.cli.command import command
from gcnbatch.options import training
from gcnbatch.options.common import split_names
from gcnbatch.options.declaration import Option, argument, arguments, declaration, option, parameters, part, python
from tests.api.test_public import FUNCTIONS, commands

if TYPE_CHECKING:
    from gcnbatch.data.graphs import GraphSet


@declaration
class Sizes:
    """Parameters of several commands."""

    _: KW_ONLY
    size: Annotated[int, Option("Size of all.", min=1)] = 3
    kind: Literal["small", "large"] | None = option("Kind.", default=None, shown="small")


@declaration
class Words:
    """More of them."""

    _: KW_ONLY
    names: tuple[str, ...] = option("Names.", "-n", "--names", default=(), typed=str, read=split_names)
    say: bool = python("Whether to say it.", default=False)
    loud: bool = option("Aloud.", default=False)


@declaration
class Both(Words, Sizes):
    """Both, and a path."""

    path: str = argument("Where.", metavar="PATH")
    _: KW_ONLY
    last: "GraphSet | None" = option("Last.", default=None, typed=str, doc="Of a large module.")


@arguments(Both)
def measure(given: Both) -> str:
    """Measure.

    Returns
    -------
    str
        What was given.
    """
    return f"{given.path} {given.size} {list(given.names)} {given.loud} {given.last} {given.say}"


def test_parameters_come_from_the_bases_in_order_and_those_of_python_alone_are_last() -> None:
    assert list(parameters(Both)) == ["path", "names", "loud", "size", "kind", "last", "say"]
    assert part(Both("p", size=4), Sizes) == {"size": 4, "kind": None}


def test_the_function_has_the_fields_as_arguments() -> None:
    assert measure("p", size=4, names=("a",)) == "p 4 ['a'] False None False"
    assert str(inspect.signature(measure)) == (
        "(path: 'str', *, names: 'tuple[str, ...]' = (), loud: 'bool' = False, size: 'int' = 3, "
        "kind: \"Literal['small', 'large'] | None\" = None, last: 'GraphSet | None' = None, say: 'bool' = False) -> str"
    )
    with pytest.raises(TypeError, match=r"^measure\(\) got an unexpected keyword argument 'sise'"):
        measure("p", sise=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^measure\(\) missing 1 required positional argument: 'path'"):
        measure()  # type: ignore[call-arg]


def test_its_docstring_describes_them_before_what_it_returns() -> None:
    assert inspect.getdoc(measure) == (
        "Measure.\n\nParameters\n----------\npath : str\n    Where.\nnames : tuple[str, ...]\n    Names.\n"
        "loud : bool\n    Aloud.\nsize : int\n    Size of all.\nkind : Literal['small', 'large'] | None\n"
        "    Kind. Default: small.\nlast : GraphSet | None\n    Of a large module.\nsay : bool\n    Whether to say it."
        "\n\nReturns\n-------\nstr\n    What was given."
    )


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer(rich_markup_mode=None)

    @made.command()
    @command(Both)
    def shown(quiet: Annotated[bool, typer.Option("--quiet", help="Nothing.")] = False, **options: Any) -> None:
        print("" if quiet else measure(**options))

    return made


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("p", "p 3 [] False None False"),
        ("p --size 4 -n a,b --loud --last x", "p 4 ['a', 'b'] True x False"),
        ("p --quiet", ""),
    ],
)
def test_the_command_passes_what_was_given(app: typer.Typer, words: str, printed: str) -> None:
    assert CliRunner().invoke(app, words.split()).output.strip() == printed


@pytest.mark.parametrize(
    ("words", "message"),
    [("", "Missing argument 'PATH'"), ("p --size 0", "'--size'"), ("p --kind x", "'--kind'"), ("p --say", "--say")],
)
def test_the_command_refuses_what_is_not_declared(app: typer.Typer, words: str, message: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert message in done.output


def test_help_shows_defaults_in_words_or_values(app: typer.Typer) -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "-n, --names <str> Names. --loud Aloud. --size <int range> Size of all. [default: 3; x>=1]" in shown
    assert "Kind. [default: (small)]" in shown
    assert "say" not in shown


def test_every_command_has_the_options_that_its_function_declares() -> None:
    """A function of Python may have further parameters; a command may not leave out a declared option."""
    for name, found in commands().items():
        declared = inspect.signature(found).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in declared.values()):
            continue  # without a declaration
        function = getattr(gcnbatch, FUNCTIONS[name][0])
        missing = {one for one in declared if one not in inspect.signature(function).parameters}
        assert missing <= {"as_json", "quiet", "show_keys", "resume", "paths", "plain", "out", "options", "table"}, name


def test_a_resumed_run_takes_what_may_change_of_a_run() -> None:
    assert parameters(training.ResumeOptions).keys() - {"run"} < parameters(training.TrainOptions).keys()
