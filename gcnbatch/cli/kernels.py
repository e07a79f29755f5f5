"""``gcnbatch kernels``: the compiled CUDA kernels in the user's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.cache import Cubin

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
    from gcnbatch.backends.cuda.runtime import loader
    from gcnbatch.backends.cuda.runtime.cache import KernelCache
    from gcnbatch.backends.cuda.runtime.sources import Sources
    from gcnbatch.progress import counter
    from gcnbatch.resources import cuda_sources

    names, sources = loader.architectures(arch), list(Sources(cuda_sources()).values())
    wanted = [(KernelCache(replaceable=False), sources)]
    wanted.append((KernelCache(cohort=True, replaceable=False), [one for one in sources if one.knows_cohorts]))
    with counter(sum(len(of) for _, of in wanted) * len(names), " files", leave=False) as bar:
        built = [cache.build(of, name, lambda file: bar.update()) for name in names for cache, of in wanted]
    failures = list({str(error): error for errors in built for error in errors.values()}.values())
    found = [cache.find(one, name) for name in names for cache, of in wanted for one in of]
    _show([cubin for cubin in found if cubin])
    for failure in failures[1:]:
        typer.echo(f"error: {failure}", err=True)
    if failures:
        raise failures[0]


@app.command("list")
def show() -> None:
    """List the kernels in the cache."""
    from gcnbatch.backends.cuda.runtime.cache import KernelCache

    cache = KernelCache()
    _show(cache.cubins())
    typer.echo(str(cache.folder))


@app.command("clear")
def clear() -> None:
    """Remove every kernel from the cache; the next start compiles again."""
    from gcnbatch.backends.cuda.runtime.cache import KernelCache

    cache = KernelCache()
    typer.echo(f"{cache.clear()} files removed from {cache.folder}")


def _show(cubins: list[Cubin]) -> None:
    """Print a line per file: number of kernels, most registers of one, bytes spilled by all."""
    from gcnbatch.cli.text_tables import size, table

    rows = []
    for cubin in cubins:
        usages = cubin.usages.values()
        registers = max((usage.registers for usage in usages), default=None)
        spilled = sum(usage.spilled for usage in usages) if usages else None
        rows.append([cubin.file, cubin.arch, len(usages) or None, registers, spilled, size(cubin.path.stat().st_size)])
    for line in table(["file", "arch", "kernels", "registers", "spilled", "size"], rows):
        typer.echo(line)
