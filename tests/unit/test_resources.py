"""Files that ship with the package, in a checkout and in a wheel."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gcnbatch import resources


def test_folders_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.install_guide().read_text().startswith("# Installing for an NVIDIA GPU")
    assert "format" in resources.format_specification().read_text().partition("\n")[0]
    (tmp_path / "gcnbatch" / "_docs").mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "gcnbatch")
    assert resources.install_guide() == tmp_path / "gcnbatch" / "_docs" / "INSTALL_CUDA.md"
    assert resources.format_specification() == tmp_path / "gcnbatch" / "_docs" / "FORMAT.md"
    assert resources.configs() == tmp_path / "configs"


def test_a_wheel_has_every_folder_and_every_file_that_hints_name() -> None:
    root = Path(__file__).parents[2]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {name: f"gcnbatch/_{name}" for name in ("cuda_src", "configs")}
    pages = {page: f"gcnbatch/_docs/{Path(page).name}" for page in ("datasets/FORMAT.md", "docs/INSTALL_CUDA.md")}
    assert build["force-include"] == folders | pages
    assert all((root / name).exists() for name in build["force-include"])


def test_the_container_installs_extras_that_there_are() -> None:
    root = Path(__file__).parents[2]
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (root / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r'"\$\{wheel\}\[([\w,]+),\$NVRTC\]"', text)
    assert {*extras.split(","), *re.findall(r"NVRTC=(\w+)", text)} <= set(known)
    for script in re.findall(r"(\.ci/\w+)", text):
        assert (root / script).is_file()
