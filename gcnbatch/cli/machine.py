"""The commands on this machine: ``info``, and ``kernels`` on the compiled CUDA kernels in the user's cache."""

from __future__ import annotations

import json
from typing import Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.machine import BuildKernelsOptions
from gcnbatch.text import counted

kernels = typer.Typer(
    no_args_is_help=True, help="Compile CUDA kernels ahead, list and remove them.", rich_markup_mode=None
)


@command(as_json="Print JSON instead of text.")
def info(as_json: bool = False) -> None:
    """List backends, devices and versions.

    A backend is ready, or the list says why it is not and what to do.

    Examples:
      gcnbatch info
      gcnbatch info --json | jq '.backends[] | select(.ready) | .name'
    """
    from gcnbatch.api import machine

    found = machine.info()
    print(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _lines(found: dict[str, Any]) -> list[str]:
    from gcnbatch.cli.text_tables import facts, size

    cpu, backends = found["cpu"], found["backends"]
    blas = (
        f"{entry['name']} {entry['version']} ({entry['architecture']}), threads: {entry['threads']}"
        for entry in found["blas"]
    )
    devices = (
        f"{gpu['name']}, {gpu['memory']}, driver {gpu['driver']}, compute capability {gpu['compute_capability']}"
        for gpu in found["gpus"]
    )
    return [
        *facts([(state["name"], _state(state)) for state in backends]),
        "",
        *facts(
            [
                ("Tox21 step", _measured(backends)),
                ("CPU", f"{cpu['model']}, {cpu['usable_cores']} of {counted(cpu['cores'], 'core')} usable"),
                ("memory", size(found["memory_bytes"])),
                ("BLAS", "; ".join(blas)),
                *_gpus("; ".join(devices), found),
                *_cuda(found["cuda"]),
                *_ranks(found),
                ("gcnbatch", found["gcnbatch"]),
                ("Python", f"{found['python']}, {found['platform']}"),
                *((name, version or _missing(name)) for name, version in found["packages"].items()),
            ]
        ),
    ]


def _measured(backends: list[dict[str, Any]]) -> str:
    figures = (
        f"{one['name']} {one['measured_us']:,} us ({one['measured_on']})" for one in backends if one["measured_us"]
    )
    return f"{', '.join(figures)}: 2 x 64, batch 50"


def _gpus(listed: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return nvidia-smi's devices, or why it lists none, unless CUDA lists devices itself."""
    if not listed and found["cuda"]["devices"]:
        return []
    return [("GPU", listed or f"none: {found['gpu_note']}")]


def _cuda(found: dict[str, Any]) -> list[tuple[str, str]]:
    from gcnbatch.cli.text_tables import size

    missing, cache = found["missing"], found["cache"]
    devices = [
        (
            f"device {device['number']}",
            f"{device['name']}, compute capability {device['capability']}, {device['multiprocessors']} SMs, "
            f"{size(device['memory'])}",
        )
        for device in found["devices"]
    ]
    return [
        ("CUDA driver", found["driver"] or missing["driver"]),
        *(devices or ([("devices", missing["devices"])] if found["driver"] else [])),
        ("kernel compiler", found["compiler"] or missing["compiler"]),
        ("kernel cache", f"{cache['folder']}: {counted(cache['files'], 'file')}, {size(cache['bytes'])}"),
    ]


def _ranks(found: dict[str, Any]) -> list[tuple[str, str]]:
    mpi, cuda = found["ranks"], found["cuda"]
    return [("MPI", mpi["mpi"] or mpi["missing"]["mpi"]), ("NCCL", cuda["nccl"] or cuda["missing"]["nccl"])]


def _missing(package: str) -> str:
    from gcnbatch.environment import EXTRAS

    return f"not installed; pip install 'gcnbatch[{EXTRAS[package]}]'" if package in EXTRAS else "not installed"


def _state(state: dict[str, Any]) -> str:
    return f"ready: {state['summary']}" if state["ready"] else f"not ready: {state['reason']}. {state['hint']}".rstrip()


@command(BuildKernelsOptions, group=kernels)
def build(**options: Any) -> None:
    """Compile every kernel that is not yet in the cache.

    Examples:
      gcnbatch kernels build               for the devices of this machine
      gcnbatch kernels build --arch sm_80 --arch sm_90   needs no GPU
    """
    from gcnbatch.api import machine

    found, failures = machine.build_kernels(**options, progress=True)
    _show(found)
    for failure in failures[1:]:
        typer.echo(f"error: {failure}", err=True)
    if failures:
        raise failures[0]


@command(group=kernels, name="list")
def show() -> None:
    """List the kernels in the cache."""
    from gcnbatch.api import machine
    from gcnbatch.backends.cuda.runtime.cache import cache_folder

    _show(machine.list_kernels())
    typer.echo(str(cache_folder()))


@command(group=kernels)
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
