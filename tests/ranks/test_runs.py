"""Runs and studies over ranks: equal to the bit to those of one process; a killed or stopped rank; resuming."""

from __future__ import annotations

import csv
import platform
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from gcnbatch import __version__
from gcnbatch.tuning import search
from tests.ranks.launcher import SECONDS, mpirun, start
from tests.training.runs import assert_same_run, configure, environment, fit, lighten, options, write_set

FOLDS = ("split.folds=3", "backend=cpu")
FOLLOWER = "if '1' in (os.environ.get('PMI_RANK'), os.environ.get('OMPI_COMM_WORLD_RANK')):\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "set.h5"
    write_set(path, missing=0.0)
    return path


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with folds that one process trained."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        fit(data, folder, *FOLDS)
    return folder


DYING = """
import os, signal, sys
from pathlib import Path
from gcnbatch.cli.app import main
from gcnbatch.training.fit_files import FitFiles

save, calls = FitFiles.save, iter(range(99))
def dying(files, *about):
    if next(calls) == 2:
        Path(sys.argv[-1]).with_suffix(".died").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    save(files, *about)
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    FitFiles.save = dying
main()
"""


def test_a_killed_rank_is_named_ends_all_and_the_run_resumes_to_equal_bits(data, alone, tmp_path) -> None:
    folder = tmp_path / "run"
    often = options(*FOLDS, "train.checkpoint_seconds=0")
    with start(3, "train", "--data", data, *often, "-o", folder, code=DYING, ends_others=False) as process:
        out, err = process.communicate(timeout=SECONDS)
        assert time.time() - folder.with_suffix(".died").stat().st_mtime < SECONDS / 2  # it takes 5
    assert process.returncode != 0
    number = folder.with_suffix(".died").read_text(encoding="utf-8")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert re.fullmatch(
        rf"error: rank 1 on \S+ \(process {number}\) ended unexpectedly; all ranks stop\. "
        rf"Go on with: gcnbatch train --resume {re.escape(str(folder))}",
        errors[0],
    )
    out, err = mpirun(2, "train", "--resume", folder)
    assert out.splitlines()[-1] == str(folder)
    assert out.count(str(folder)) == 1, "rank 0 alone prints"
    done = re.findall(r"(fold \d of 3) is done", err)
    assert len(set(done)) == err.count(" is done")
    # The other ranks may have ended their folds before they learnt of the dead one; then that one's is left.
    assert done or re.match(r"the last model trains on rank 0; the other ranks are idle\nfold \d of 3\n", err), err
    for name in ("fold1", "fold2", "fold3"):
        assert_same_run(folder / name, alone / name)


ENDING = """
import os, signal, sys, threading, time
from pathlib import Path
from gcnbatch.cli.app import main

folder, rank = Path(sys.argv[-1]), os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
def dying():
    while len(list(folder.glob("fold*/history.jsonl"))) < 2:
        time.sleep(0.02)
    folder.with_suffix(".died").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
if rank == sys.argv.pop(1):
    threading.Thread(target=dying, daemon=True).start()
main()
"""


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_even_if_the_launcher_kills_the_others(data, tmp_path, rank) -> None:
    folder = tmp_path / "run"
    endless = options(*FOLDS, "train.epochs=1000000")
    with start(2, rank, "train", "--data", data, *endless, "-q", "-o", folder, code=ENDING) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    number = folder.with_suffix(".died").read_text(encoding="utf-8")
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [
        f"error: rank {rank} on {platform.node()} (process {number}) ended unexpectedly; all ranks stop. "
        f"Go on with: gcnbatch train --resume {folder}"
    ]


def test_ctrl_c_at_the_launcher_saves_the_members_of_all_ranks(data, tmp_path) -> None:
    folder = tmp_path / "run"
    with start(2, "train", "--data", data, *options(*FOLDS, "train.epochs=1000000"), "-o", folder) as process:
        deadline = time.monotonic() + SECONDS
        while len(list(folder.glob("fold*/history.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert len(list(folder.glob("fold[12]/last.safetensors"))) == 2
    assert not (folder / "fold3").exists(), "no member begins after a stop"


@pytest.mark.slow
def test_a_study_over_ranks_equals_that_of_one_process(data, tmp_path) -> None:
    pytest.importorskip("optuna")
    space = tmp_path / "space.toml"
    space.write_text("[train]\nlearning_rate = { low = 1e-3, high = 1e-1, log = true }\n", encoding="utf-8")
    config = configure(f"data.path={data}", "backend=cpu", "jobs=1", "name=set")
    search.start(config, tmp_path / "one", space, search.Limits(trials=5), quiet=True)
    about = ("--data", data, "--trials", 5, "--jobs", 1, "--space", space, *options("backend=cpu"))
    out, _ = mpirun(2, "tune", *about, "-o", tmp_path / "two", "-q")
    assert out.splitlines() == [str(tmp_path / "two")]
    assert trials(tmp_path / "two") == trials(tmp_path / "one")
    assert (tmp_path / "two" / "best.toml").read_bytes() == (tmp_path / "one" / "best.toml").read_bytes()


def trials(folder: Path) -> list[dict[str, str]]:
    """Return the rows of trials.csv without their times."""
    with (folder / "trials.csv").open(encoding="utf-8", newline="") as stream:
        return [{key: row[key] for key in row if key != "seconds"} for row in csv.DictReader(stream)]


def test_followers_with_other_data_are_refused(data, tmp_path) -> None:
    other = (
        "import os, shutil, sys; from gcnbatch.training import experiment\n"
        + FOLLOWER
        + ("    experiment.Experiment.fingerprint = property(lambda experiment: 'f' * 64)\n")
    )
    code = other + "from gcnbatch.cli.app import main; main()"
    _, err = mpirun(2, "train", "--data", data, *options(*FOLDS), "-o", tmp_path / "run", "-q", code=code, check=2)
    assert f"error: rank 1 on {platform.node()}: {data}: other data than on rank 0; expected the data of" in err


def test_ranks_with_other_command_lines_or_versions_are_refused(data, tmp_path) -> None:
    code = "import os, sys\n" + FOLLOWER + "    sys.argv[-1] = 'b'\nfrom gcnbatch.cli.app import main; main()"
    _, err = mpirun(2, "train", "--data", data, "-o", "a", cwd=tmp_path, code=code, check=2)
    assert err.startswith(
        f"error: rank 1 on {platform.node()}: command line: train --data {data} -o b; expected that of rank 0. "
        "Start one command on all ranks.\n"
    )
    code = "import os; from gcnbatch import environment\nenvironment.PACKAGES = ('numpy',)\n" + FOLLOWER
    code += "    environment._version = lambda name: '1.0'\nfrom gcnbatch.cli.app import main; main()"
    _, err = mpirun(2, "train", "--data", data, "-o", "a", cwd=tmp_path, code=code, check=2)
    assert err.startswith(
        f"error: rank 1 on {platform.node()}: numpy: 1.0; expected {metadata.version('numpy')}, as on rank 0. "
        "Install the same versions on all hosts.\n"
    )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("hidden", "said"), [("mpi4py", "mpi4py: not installed on "), ("mpi4py.MPI", "MPI library on ")]
)
def test_missing_mpi_is_told_with_what_to_install(hidden: str, said: str, tmp_path) -> None:
    if hidden == "mpi4py.MPI":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed (the extra 'mpi')")
    environ = {**environment(), "PMI_RANK": "0", "PMI_SIZE": "2"}
    loading = f"def find_spec(name, path, target=None):\n  if name == {hidden!r}: raise "
    loading += "ModuleNotFoundError(name)" if hidden == "mpi4py" else "RuntimeError('cannot load MPI library')"
    code = f"import sys\n{loading}\nsys.meta_path.insert(0, type(sys)('none'))\n"
    code += "sys.meta_path[0].find_spec = find_spec\n"
    code += "from gcnbatch.cli.app import main; main()"
    words = [sys.executable, "-c", code, "train", "-o", str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, timeout=SECONDS, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: {said}{platform.node()}"), done.stderr
    assert "mpirun of MPICH or Intel MPI started 2 processes. Install " in done.stderr


def test_commands_without_ranks_run_on_rank_0_alone() -> None:
    out, _ = mpirun(2, "--version")
    assert out == f"gcnbatch {__version__}\n"


@pytest.mark.slow
def test_ranks_mix_a_table_to_the_bits_of_one_process(tmp_path, command, light) -> None:
    pytest.importorskip("rdkit")
    cores = ("c1ccccc1{}", "C1CCCCC1{}", "CCCC{}")
    rows = [core.format(tail) for core in cores for tail in ("", "C", "CC", "O", "CO", "N", "CN", "F", "Cl", "C#N")]
    lines = [f"{text},{len(text) + text.count('O') / 2}\n" for text in rows]
    assay = tmp_path / "assay.csv"
    assay.write_text("smiles,y\n" + "".join(lines), encoding="utf-8")
    small = ("model.widths=[4]", "model.head=[4]", "split.cross_fit=2", "train.epochs=1", "backend=cpu")
    about = ("train", assay, *options(*small), "-q", "-o")
    assert command(*about, tmp_path / "one")[0] == 0
    mpirun(2, *about, tmp_path / "two")
    for file in ("mixture.safetensors", "out_of_fold.csv", "predictions.csv", "splits.json"):
        assert (tmp_path / "two" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file
