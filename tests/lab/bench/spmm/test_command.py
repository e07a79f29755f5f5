"""``gcnbatch bench`` through the program's own entry point, without a GPU."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from gcnbatch.backends.cuda import entry
from gcnbatch.data.writer import write_graphset
from gcnbatch.errors import BackendUnavailable
from gcnbatch.lab.bench.spmm import command, records
from gcnbatch.lab.bench.spmm.methods import COMPARED
from gcnbatch.lab.bench.spmm.runs import Outcome
from tests.builders import build_graphset

SMALL = ("--batch", 3, "--dim", "5-9", "--nnz-per-row", 2, "--columns", "2,16", "--repeats", 3)
REASON = "no NVIDIA driver (it is not here)"


@pytest.fixture
def call(command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def no_gpu(*about: object) -> None:
        raise BackendUnavailable("backend batched", REASON, hint="Install one.")

    monkeypatch.setattr(entry, "open_backend", no_gpu)
    monkeypatch.chdir(tmp_path)

    return partial(command, "bench")


def test_without_a_gpu_only_scipy_is_measured_with_a_message(call, tmp_path: Path) -> None:
    code, out, err = call("spmm", *SMALL, "--device", 1)
    assert code == 0
    assert err.splitlines() == [
        f"no GPU: SciPy on the CPU alone is measured ({REASON})",
        "not used: --device; scipy computes on the host",
    ]
    lines = out.splitlines()
    assert lines[0].endswith(": median microseconds")
    assert lines[2].split() == ["figure", "columns", "scipy"]
    assert f"{REASON}; left out: {', '.join(COMPARED[1:])}" in lines
    folder = tmp_path / lines[-1]
    assert folder.parent.name == "runs"
    assert folder.name.startswith("bench-spmm-")
    assert (folder / "spmm.png").is_file()
    found = records.read(folder / "rows.jsonl")
    assert [(row["columns"], row["method"], row["launch"]) for row in found] == [
        (2, "scipy", "none"),
        (16, "scipy", "none"),
    ]
    row = found[0]
    assert (row["figure"], row["batch"], row["dim"], row["nnz_per_row"], row["seed"]) == ("free", 3, [5, 9], [2, 2], 0)
    assert row["us_p20"] <= row["us"] <= row["us_p80"]
    assert row["gflops"] == pytest.approx(2e-3 * row["nnz"] * 2 / row["us"], rel=0.1, abs=0.01)


def test_json_prints_the_records_of_the_folder(call, tmp_path: Path) -> None:
    code, out, _ = call("spmm", "--figure", "8a", "--columns", 4, "--repeats", 2, "--json", "-o", tmp_path / "a" / "b")
    assert code == 0
    assert [json.loads(line)["figure"] for line in out.splitlines()] == ["8a"]
    assert records.read(tmp_path / "a" / "b" / "rows.jsonl") == [json.loads(out)]


def test_spmm_measures_a_batch_of_a_data_set(call, tmp_path: Path) -> None:
    write_graphset(tmp_path / "set.h5", build_graphset(9, n_channels=2))
    code, out, _ = call("spmm", "set.h5", "--batch", 4, "--columns", 8, "--json", "--repeats", 1)
    assert code == 0
    row = json.loads(out)
    assert (row["figure"], row["data"], row["batch"], row["channels"]) == ("built", "built", 4, 2)
    code, _, err = call("spmm", "set.h5", "--figure", "8a")
    assert code == 2
    assert err == (
        "error: set.h5: --figure, --dim or --nnz-per-row beside a data set; expected one or the other. Leave one out.\n"
    )


def test_slower_results_give_exit_code_1(call, tmp_path: Path) -> None:
    assert call("spmm", *SMALL, "-o", tmp_path / "old")[0] == 0
    old = records.read(tmp_path / "old" / "rows.jsonl")
    fast = [{**row, **{key: row[key] / 50 for key in ("us", "us_p20", "us_p80")}} for row in old]
    records.write(tmp_path / "fast.jsonl", fast)
    code, out, err = call("spmm", *SMALL, "--compare", tmp_path / "fast.jsonl", "-o", tmp_path / "new")
    assert code == 1
    assert "compared: 2 figures, 2 slower; new over old " in out
    assert err.splitlines()[-1] == (f"error: bench spmm: 2 of 2 figures became slower. See {tmp_path / 'new'}.")
    slow = [{**row, **{key: row[key] * 50 for key in ("us", "us_p20", "us_p80")}} for row in old]
    records.write(tmp_path / "slow.jsonl", slow)
    code, out, _ = call("spmm", *SMALL, "--compare", tmp_path / "slow.jsonl")
    assert code == 0
    assert "compared: 2 figures, 0 slower; new over old 0.0" in out


def test_records_stay_if_the_comparison_fails(call, tmp_path: Path) -> None:
    assert call("spmm", *SMALL, "-o", tmp_path / "old")[0] == 0
    other = (*SMALL, "--seed", 1, "--compare", tmp_path / "old" / "rows.jsonl", "-o", tmp_path / "new")
    code, _, err = call("spmm", *other)
    assert code == 2
    assert "--compare: no figure of the old record was measured now" in err
    assert len(records.read(tmp_path / "new" / "rows.jsonl")) == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["spmm", "--figure", "7"], 2, "--figure: '7'; expected all, 8a"),
        (["spmm", "--methods", "swa"], 2, "--methods: 'swa'; expected scipy, tf-loop"),
        (
            ["spmm", "--methods", "fastest,cublas"],
            3,
            f"bench spmm: {REASON}. Without a GPU: --methods scipy; see 'gcnbatch info'.",
        ),
        (["spmm", "none.h5"], 2, "none.h5: no such file"),
        (["spmm", "--compare", "none.jsonl"], 2, "none.jsonl: no such file"),
        (["spmm", "-o", "taken"], 2, "taken: already exists; expected a new or empty folder. Choose another -o."),
        (["spmm", "-o", "taken/file/more"], 2, "taken/file/more: cannot be made (Not a directory)"),
        (["spmm", "--repeats", "0"], 2, "Invalid value for '--repeats': "),
        (["tune"], 3, f"bench tune: {REASON}. It measures a GPU; see 'gcnbatch info'."),
    ],
)
def test_refused_commands_leave_no_folder(call, tmp_path: Path, options: list[str], code: int, message: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    left, out, err = call(*options)
    assert (left, out) == (code, "")
    assert err.startswith(f"error: {message}")
    assert list(tmp_path.glob("runs/*")) == []


def test_a_run_without_any_timing_fails_and_leaves_no_folder(
    call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Outcome(
        absent={"cublas": "figure 10: one size only", "cusparse": "not installed", "swa-coo": "not installed"}
    )
    monkeypatch.setattr(command, "run", lambda *about: found)
    code, out, err = call("spmm", "--figure", "10")
    assert (code, out) == (1, "")
    assert err == (
        "error: bench spmm: nothing could be timed. figure 10: one size only; left out: cublas. "
        "not installed; left out: cusparse, swa-coo\n"
    )
    assert list(tmp_path.glob("runs/*")) == []
