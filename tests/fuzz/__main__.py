"""Fuzz by hand, for hours: ``python -m tests.fuzz --hours 8``.

Rounds of data set files, folders of numbers, run folders, tables and SMILES take turns. The first failure ends the run
with the smallest case that hypothesis finds; data set files that failed are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import data_files, headers, number_folders, run_folders, tables
from tests.train.runs import lighten

_ROUND = 300  # cases between two lines of progress
_KINDS = ("crashes", "processor time", "of memory", "no answer", "damaged file", "chunk ", "read", "done")
Target = tuple[str, st.SearchStrategy[Any], Callable[[Any], str]]


def main() -> None:
    """Draw cases until the time is over; print how often each kind of verdict was given."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", type=Path, default=Path("fuzz_findings"), help="folder for data sets that fail")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    end = time.monotonic() + asked.hours * 3600
    with ExitStack() as stack:
        lighten(stack.enter_context(pytest.MonkeyPatch.context()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        verdicts: dict[str, Counter[str]] = {}
        for number, target in enumerate(cycle(_targets(folder, asked.keep))):
            if time.monotonic() > end:
                break
            counted = verdicts.setdefault(target[0], Counter())
            _round(asked.seed + number, target, counted)
            print(f"{target[0]}: {sum(counted.values())} cases: {dict(counted.most_common())}", flush=True)


def _targets(folder: Path, keep: Path) -> list[Target]:
    run_folders.write_bases(folder)

    def of_file(raw: bytes) -> str:
        try:
            return data_files.verdict(raw)
        except BaseException:
            keep.mkdir(exist_ok=True)
            (keep / f"{hashlib.sha256(raw).hexdigest()[:16]}.h5").write_bytes(raw)
            raise

    def of_run(case: tuple[str, list[run_folders.Damage]]) -> str:
        with tempfile.TemporaryDirectory() as place:
            return run_folders.verdict(folder, Path(place), *case)[0]

    damaged = st.tuples(st.sampled_from(run_folders.KINDS), st.lists(run_folders.damages(), min_size=1, max_size=3))
    return [
        ("data set files", data_files.changed_files(), of_file),
        ("headers", headers.hostile_headers(), of_file),
        ("folders of numbers", number_folders.changed_folders(), lambda case: number_folders.verdict(*case)),
        ("run folders", damaged, of_run),
        ("tables", tables.hostile_tables(), tables.read_table),
        ("Parquet files", tables.changed_parquet(), tables.read_parquet),
        ("SMILES", tables.hostile_smiles(), lambda text: tables.read_smiles([text])[0] or "read"),
    ]


def _round(number: int, target: Target, verdicts: Counter[str]) -> None:
    @seed(number)
    @settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(target[1])
    def cases(case: Any) -> None:
        line = target[2](case)
        verdicts[next((kind.strip() for kind in _KINDS if kind in line), "refused")] += 1

    cases()


if __name__ == "__main__":
    main()
