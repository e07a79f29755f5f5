"""One model on several ranks with backend ``fused``: processes that share a GPU or have one each."""

from __future__ import annotations

import json
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gcnbatch.backends.cuda.runtime import loader
from tests.ranks.launcher import SECONDS, mpirun, start
from tests.ranks.on_two_gpus import assert_two_repeat, assert_two_train_together, train_on_two
from tests.ranks.processes import CASES, STEPS
from tests.training.runs import assert_same_run, options

pytestmark = pytest.mark.gpu
OF_NINE = ("clustered readout", "odd widths, head, dropout", "local statistics, clipped")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function of a number of ranks: what was found of each case."""

    @cache
    def on(ranks: int) -> dict[str, dict[str, Any]]:
        cases = OF_NINE if ranks == 9 else ()  # nine share a GPU, and some have no graph of a batch
        out, _ = mpirun(ranks, "fused", tmp_path_factory.mktemp("cases"), *cases, code=STEPS)
        return {row["case"]: row for row in map(json.loads, out.splitlines())}

    return on


@pytest.mark.parametrize(
    ("ranks", "case"),
    [(ranks, case) for ranks, cases in ((1, CASES), (2, CASES), (3, CASES), (9, OF_NINE)) for case in cases],
)
def test_ranks_train_what_one_process_trains(found: Any, ranks: int, case: str) -> None:
    row = found(ranks)[case]
    assert row["ratio"] <= 1.0, row
    assert row["equal"], "ranks have other bits"
    assert row["repeats"], "a repetition has other bits"


# ------------------------------------------------------------------------------------------------ two GPUs

TO_RUN = options("model.widths=[64,64]", "model.dropout=0.2", "train.epochs=4", "train.batch_size=8")
DYING = """
import itertools, os, signal, sys
from pathlib import Path
from gcnbatch.cli.app import main
from gcnbatch.runners.fused_ranks import FusedRanksRunner

step, calls = FusedRanksRunner.step, itertools.count()
def dying(self, index):
    if next(calls) == 14:
        Path(sys.argv[-1]).with_suffix(".died").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, index)
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    FusedRanksRunner.step = dying
main()
"""


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with the runs `two` and `again`, and what the first on two GPUs said."""
    if (count := len(loader.devices())) < 2:
        pytest.skip(f"{count} GPU; this needs two")
    folder = tmp_path_factory.mktemp("on_two")
    return folder, train_on_two(folder, "fused", TO_RUN, chosen=())


def test_auto_trains_with_fused_on_two_gpus(on_two: tuple[Path, str]) -> None:
    assert_two_train_together(*on_two, "fused")


def test_two_runs_on_two_gpus_are_equal_to_the_bit(on_two: tuple[Path, str]) -> None:
    assert_two_repeat(on_two[0])


def test_a_killed_rank_ends_all_and_the_run_resumes_to_equal_bits(on_two: tuple[Path, str]) -> None:
    """Rank 0 waits on its GPU for the dead one when it learns of its end."""
    folder, _ = on_two
    run, often = folder / "killed", ("--set", "train.checkpoint_seconds=0")
    about = ("train", "--data", folder / "set.h5", *TO_RUN, *often, "-o", run)
    with start(2, *about, code=DYING, ends_others=False) as process:
        _, err = process.communicate(timeout=SECONDS)
        assert time.time() - run.with_suffix(".died").stat().st_mtime < SECONDS / 2
    assert process.returncode != 0
    number = run.with_suffix(".died").read_text(encoding="utf-8")
    said = rf"error: rank 1 on \S+ \(process {number}\) ended unexpectedly; all ranks stop\. Go on with: gcnbatch train"
    assert re.search(said, err), err
    mpirun(2, "train", "--resume", run)
    assert_same_run(run, folder / "two")
