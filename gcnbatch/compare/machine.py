"""Where a comparison ran: versions, processor, GPUs, and the commit when the package is used from a checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import gcnbatch
from gcnbatch import environment as installed


def environment() -> dict[str, Any]:
    """Return what `gcnbatch.environment.collect` finds, with the commit (None outside a checkout)."""
    return {**installed.collect(), "commit": commit(Path(gcnbatch.__file__).resolve().parents[1])}


def commit(folder: Path) -> str | None:
    """Return the commit of the checkout at `folder`, with ``+`` behind it when tracked files were changed since."""
    git = shutil.which("git")
    if git is None or not (folder / ".git").exists():
        return None

    def ask(*arguments: str) -> str | None:
        done = subprocess.run([git, "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    head = ask("rev-parse", "HEAD")
    return f"{head}+" if head and ask("status", "--porcelain", "--untracked-files=no") else head
