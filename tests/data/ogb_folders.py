"""Raw folders of the Open Graph Benchmark."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path


def write_folder(folder: Path, files: Mapping[str, str | None]) -> Path:
    """Write each text as ``<name>.csv.gz`` below `folder`, but those that are None; return the folder."""
    for name, text in files.items():
        if text is not None:
            path = folder / f"{name}.csv.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()))
    return folder
