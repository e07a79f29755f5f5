"""``gcnbatch info``: the state of this installation on this machine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gcnbatch.text import counted

EPILOG = """\b
Examples:
  gcnbatch info
  gcnbatch info --json | jq '.backends[] | select(.ready) | .name'
"""


def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """List backends, devices and versions.

    A backend is ready, or the list says why it is not and what to do.
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
