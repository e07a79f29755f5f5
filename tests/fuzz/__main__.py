"""Fuzz by hand, for hours: ``python -m tests.fuzz --hours 8``.

Rounds of data set files, pickles, folders of numbers, run folders, tables, SMILES and faults of the machine take
turns. The first failure ends the run with the smallest case that hypothesis finds; cases that failed are kept as files
(`tests.fuzz.findings`), except faults of the machine, which are printed.
"""

from __future__ import annotations

import argparse
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

from tests.fuzz import data_files, faults, findings, headers, number_folders, pickles, run_folders, tables
from tests.training.runs import lighten

_ROUND = 300  # cases between two lines of progress
_KINDS = ("crashes", "processor time", "of memory", "no answer", "damaged file", "chunk ", "read", "done")
Target = tuple[str, st.SearchStrategy[Any], Callable[[Any], str]]


def main() -> None:
    """Draw cases until the time is over; print how often each kind of verdict was given."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", type=Path, default=Path("fuzz_findings"), help="folder for cases that fail")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    end = time.monotonic() + asked.hours * 3600
    with ExitStack() as stack:
        lighten(stack.enter_context(pytest.MonkeyPatch.context()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        verdicts: dict[str, Counter[str]] = {}
        for number, target in enumerate(cycle(_targets(folder, asked.keep, stack))):
            if time.monotonic() > end:
                break
            counted = verdicts.setdefault(target[0], Counter())
            _round(asked.seed + number, target, counted)
            print(f"{target[0]}: {sum(counted.values())} cases: {dict(counted.most_common())}", flush=True)


def _targets(folder: Path, kept: Path, stack: ExitStack) -> list[Target]:
    bases, inputs, cases = folder / "bases", folder / "inputs", folder / "cases"
    for place in (bases, inputs, cases):
        place.mkdir()
    run_folders.write_bases(bases)
    faults.write_inputs(inputs)
    runner = stack.enter_context(faults.open_runner(inputs, cases))

    def of_raw(ending: str, verdict: Callable[[bytes], str]) -> Callable[[bytes], str]:
        def of(raw: bytes) -> str:
            try:
                return verdict(raw)
            except BaseException:
                findings.keep(kept, ending, raw)
                raise

        return of

    def of_run(case: tuple[str, list[run_folders.Damage]]) -> str:
        with tempfile.TemporaryDirectory() as place:
            try:
                return run_folders.verdict(bases, Path(place), *case)[0]
            except BaseException:
                findings.keep_run(kept, bases, *case)
                raise

    def of_table(case: tables.Table) -> str:
        return of_raw(case.ending, lambda raw: tables.read_table(case.ending, raw))(case.content())

    def of_pickle(case: tuple[str, bytes]) -> str:
        return of_raw(f"{case[0]}.pkl", lambda raw: pickles.verdict(case[0], raw))(case[1])

    def of_smiles(text: str) -> str:
        return of_raw("smiles", lambda raw: tables.read_smiles([text])[0] or "read")(text.encode())

    def of_fault(case: tuple[str, dict[str, Any]]) -> str:
        with tempfile.TemporaryDirectory() as place:
            return faults.check_fault(runner, inputs, Path(place), *case)

    damaged = st.tuples(st.sampled_from(run_folders.KINDS), st.lists(run_folders.damages(), min_size=1, max_size=3))
    return [
        ("data set files", data_files.changed_files(), of_raw("h5", data_files.verdict)),
        ("headers", headers.hostile_headers(), of_raw("h5", data_files.verdict)),
        ("pickles", pickles.changed_pickles(), of_pickle),
        ("folders of numbers", number_folders.changed_folders(), lambda case: number_folders.verdict(*case)),
        ("run folders", damaged, of_run),
        ("tables", tables.hostile_tables(), of_table),
        ("Parquet files", tables.changed_parquet(), of_raw("parquet", tables.read_parquet)),
        ("SMILES", tables.hostile_smiles(), of_smiles),
        ("faults of the machine", faults.faults(), of_fault),
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
