"""Fuzz by hand, for hours: ``python -m tests.fuzz --hours 8``. Each finding is kept as a file and ends the run."""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.data_files import changed_files, verdict

_ROUND = 500  # cases between two lines of progress


def main() -> None:
    """Draw changed files until the time is over; print how often each kind of verdict was given."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", type=Path, default=Path("fuzz_findings"), help="folder for files that fail")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    end, verdicts, number = time.monotonic() + asked.hours * 3600, Counter[str](), 0
    while time.monotonic() < end:
        _round(asked.seed + number, asked.keep, verdicts)
        number += 1
        print(f"{sum(verdicts.values())} cases: {dict(verdicts.most_common(8))}", flush=True)


def _round(number: int, keep: Path, verdicts: Counter[str]) -> None:
    @seed(number)
    @settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(changed_files())
    def cases(raw: bytes) -> None:
        try:
            verdicts[_kind(verdict(raw))] += 1
        except BaseException:
            keep.mkdir(exist_ok=True)
            (keep / f"{hashlib.sha256(raw).hexdigest()[:16]}.h5").write_bytes(raw)
            raise

    cases()


def _kind(line: str) -> str:
    """Return what all lines of the same cause have in common."""
    for part in ("crashes", "processor time", "of memory", "no answer", "damaged file", "chunk "):
        if part in line:
            return part.strip()
    return line if line == "read" else "refused"


if __name__ == "__main__":
    main()
