"""Paths of the files that ship with the package (configurations, CUDA sources, docs), in a checkout or a wheel."""

from __future__ import annotations

from pathlib import Path

from gcnbatch.errors import InputError, nearest

_PACKAGE = Path(__file__).resolve().parent


def _folder(installed: str, checkout: str) -> Path:
    """Return a folder of the package: a wheel has it inside the package, a checkout next to the package."""
    inside = _PACKAGE / installed
    return inside if inside.is_dir() else _PACKAGE.parent / checkout


def cuda_sources() -> Path:
    """Return the folder of the CUDA sources."""
    return _folder("_cuda_src", "cuda_src")


def configs() -> Path:
    """Return the folder of the shipped configurations."""
    return _folder("_configs", "configs")


def install_guide() -> Path:
    """Return the path of the page on installing the CUDA backends."""
    return _folder("_docs", "docs") / "INSTALL_CUDA.md"


def format_specification() -> Path:
    """Return the path of the specification of the HDF5 format."""
    return _folder("_docs", "datasets") / "FORMAT.md"


def shipped_config(name: str) -> Path:
    """Return the path of a shipped configuration such as ``"quickstart"``."""
    path = configs() / f"{name}.toml"
    if not path.is_file():
        known = [found.stem for found in configs().glob("*.toml")]
        raise InputError(f"configuration '{name}'", "not shipped", hint=nearest(name, known))
    return path
