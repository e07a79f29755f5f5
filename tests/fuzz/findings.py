"""Cases that failed, as files: kept by ``python -m tests.fuzz``, and played again from the folder ``regressions``.

A file ``NAME.ENDING.gz`` is a compressed data set (h5), table (csv, csv.gz, parquet …), SMILES (smiles) or pickle
(KIND.pkl).
``KIND-NAME.tar.gz`` has the changed files of a run folder of this kind; a removed one is there as ``FILE.removed``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import data_files, pickles, run_folders, tables

FOLDER = Path(__file__).parent / "regressions"
RUNS, REMOVED = ".tar.gz", ".removed"


def keep(folder: Path, ending: str, raw: bytes) -> Path:
    """Keep a data set, a table, a SMILES or a pickle that failed."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(raw).hexdigest()[:16]}.{ending}.gz"
    path.write_bytes(gzip.compress(raw, mtime=0))
    return path


def keep_run(folder: Path, bases: Path, kind: str, damage: Sequence[run_folders.Damage]) -> Path:
    """Keep what a damage changes in the run folder of a kind."""
    stream = io.BytesIO()
    with tempfile.TemporaryDirectory() as name:
        run = run_folders.damaged(bases, Path(name), kind, damage)
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for path in sorted(run.rglob("*")):
                own, base = path.relative_to(run), bases / kind / path.relative_to(run)
                plain = path.is_file() and not path.is_symlink()
                if not (plain and base.is_file() and path.read_bytes() == base.read_bytes()):
                    archive.add(path, str(own), recursive=False)
            for base in sorted((bases / kind).rglob("*")):
                own = base.relative_to(bases / kind)
                if not os.path.lexists(run / own):
                    archive.addfile(tarfile.TarInfo(f"{own}{REMOVED}"))
    path = keep(folder, "tar", stream.getvalue())
    return path.rename(path.with_name(f"{kind}-{path.name}"))


def replay(path: Path, bases: Path) -> str:
    """Return the verdict on a kept case; `bases` has the run folders of `run_folders.write_bases`."""
    raw, name = gzip.decompress(path.read_bytes()), path.name.removesuffix(".gz")
    ending = name.partition(".")[2]
    if ending == "h5":
        return data_files.verdict(raw)
    if ending == "parquet":
        return tables.read_parquet(raw)
    if ending.endswith(".pkl"):
        return pickles.verdict(ending.removesuffix(".pkl"), raw)
    if ending == "smiles":
        return tables.read_smiles([raw.decode()])[0] or "read"
    if ending != "tar":
        return tables.read_table(ending, raw)
    with tempfile.TemporaryDirectory() as place:
        return "; ".join(run_folders.verdict(bases, Path(place), name.partition("-")[0], [("", _unpack(raw))]))


def _unpack(raw: bytes) -> run_folders.Change:
    def over(folder: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            for member in archive:
                place = folder / member.name.removesuffix(REMOVED)
                if not place.is_dir():
                    place.unlink(missing_ok=True)
                if not member.name.endswith(REMOVED):
                    archive.extract(member, folder, filter="fully_trusted")

    return over
