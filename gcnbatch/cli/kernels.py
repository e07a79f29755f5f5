"""``gcnbatch kernels``: the compiled CUDA kernels in the user's cache."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gcnbatch.text import counted

app = typer.Typer(no_args_is_help=True, help="Compile CUDA kernels ahead, list and remove them.", rich_markup_mode=None)

BUILD_EPILOG = """\b
Examples:
  gcnbatch kernels build               for the devices of this machine
  gcnbatch kernels build --arch sm_80 --arch sm_90   needs no GPU
"""


@app.command("build", epilog=BUILD_EPILOG)
def build(
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="sm_XY", help="Architecture; may be repeated.", show_default="the devices here"),
    ] = None,
) -> None:
    """Compile every kernel that is not yet in the cache."""
    from gcnbatch.api import machine

    found, failures = machine.build_kernels(arch, progress=True)
    _show(found)
    for failure in failures[1:]:
        typer.echo(f"error: {failure}", err=True)
    if failures:
        raise failures[0]


@app.command("list")
def show() -> None:
    """List the kernels in the cache."""
    from gcnbatch.api import machine
    from gcnbatch.backends.cuda.runtime.cache import cache_folder

    _show(machine.list_kernels())
    typer.echo(str(cache_folder()))


@app.command("clear")
def clear() -> None:
    """Remove every kernel from the cache; the next start compiles again."""
    from gcnbatch.api import machine
    from gcnbatch.backends.cuda.runtime.cache import cache_folder

    typer.echo(f"{counted(machine.clear_kernels(), 'file')} removed from {cache_folder()}")


def _show(kernels: list[dict[str, Any]]) -> None:
    from gcnbatch.cli.text_tables import size, table

    names = ["file", "arch", "kernels", "registers", "spilled"]
    rows = [[*map(found.get, names), size(found["bytes"])] for found in kernels]
    for line in table([*names, "size"], rows):
        typer.echo(line)
