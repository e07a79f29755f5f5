"""Screening: killed predictions go on, rows are selected, folders and large sets are read in parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import h5py
import numpy as np
import pytest

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output
from gcnbatch.inference import inputs, journal
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.models import load_models
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.inference.tabulation import Selection
from tests.inference.runs import numbers, read_rows
from tests.training.runs import environment

ONE = CsvOptions(processes=1)
# Runs infer in parts of 8 rows and kills the process when `parts` of them are written.
KILLED = """
import os, signal, sys
from pathlib import Path
from gcnbatch.data import molecule_graphs
from gcnbatch.inference import inputs, journal
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.molecules import CsvOptions
run, table, out, parts = sys.argv[1:]
inputs.PART_ROWS = molecule_graphs.CHUNK = 8
append, left = journal._Resumable.append, [int(parts)]
def killing(self, table, rows):
    append(self, table, rows)
    left[0] -= 1
    if left[0] == 0:
        self.stream.write("half a row of the next part")
        self.stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)
journal._Resumable.append = killing
infer([Path(run)], Path(table), out, quiet=True, csv=CsvOptions(processes=1))
"""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 8)
    monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", 8)


@pytest.mark.parametrize("ending", ["csv", pytest.param("jsonl", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("small_parts")
def test_a_killed_prediction_goes_on_without_losing_or_repeating_a_row(tmp_path, chemistry, ending: str) -> None:
    run, table, _ = chemistry
    whole, out = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    infer([run], table, str(whole), csv=ONE, quiet=True)
    arguments = [str(run), str(table), str(out), "3"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    notes: list[str] = []
    summary = infer([run], table, str(out), csv=ONE, quiet=True, resume=True, say=notes.append)
    assert "24 of 40 rows are there: going on after them" in notes
    assert "no metrics: they would leave out the rows that were there before" in notes
    assert summary.rows == 40
    assert out.read_bytes() == whole.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_prediction_is_kept_and_one_with_other_options_refuses_it(
    tmp_path, chemistry, monkeypatch
) -> None:
    run, table, _ = chemistry
    out = tmp_path / "out.csv"
    append = journal._Resumable.append

    def interrupted(self: journal._Resumable, *arguments: object) -> None:
        append(self, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal._Resumable, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            infer([run], table, str(out), csv=ONE, quiet=True)
    record = json.loads((tmp_path / "out.csv.partial.json").read_text())
    assert record["rows"] == 8
    with pytest.raises(InputError, match=r"begun with other options.*the same data, models and options.*Start again"):
        infer([run], table, str(out), csv=CsvOptions(keep_columns=("structure",)), quiet=True, resume=True)
    for text in ("[]", '{"rows": 1, "bytes": 1, "task": []}', '{"rows": 1e999, "bytes": 1, "task": {}}', "[" * 10**5):
        (tmp_path / "out.csv.partial.json").write_text(text)
        with pytest.raises(InputError, match=r"something else is there|not a journal of a prediction"):
            infer([run], table, str(out), csv=ONE, quiet=True, resume=True)
    (tmp_path / "out.csv.partial.json").unlink()
    (tmp_path / "out.csv.partial").write_text("id,ev")  # a header line that was cut
    notes: list[str] = []
    infer([run], table, str(out), csv=ONE, quiet=True, say=notes.append)
    assert notes[0] == (
        f"{out}.partial, left by a prediction that was stopped, is overwritten; --resume would go on with it"
    )
    assert len(read_rows(out)) == 40


@pytest.mark.parametrize(
    ("make", "got"), [(lambda path: path.symlink_to("/dev/null"), "a symbolic link"), (os.mkfifo, "not a regular file")]
)
def test_a_partial_output_that_is_no_file_is_refused(tmp_path, chemistry, make, got: str) -> None:
    make(tmp_path / "o.csv.partial")
    with pytest.raises(InputError, match=rf"o\.csv\.partial: {got}; expected a file. Remove it, or choose"):
        infer([chemistry[0]], chemistry[1], str(tmp_path / "o.csv"), csv=ONE, quiet=True)


def test_resume_without_anything_to_resume_starts(tmp_path, chemistry) -> None:
    run, table, _ = chemistry
    assert infer([run], table, str(tmp_path / "o.csv"), csv=ONE, quiet=True, resume=True).rows == 40


@pytest.mark.parametrize(
    ("out", "selection", "message"),
    [
        ("o.h5", Selection(), r"--resume.*output .*o\.h5.*a \.csv or \.jsonl file"),
        ("o.csv", Selection(top=3, by="even"), r"--resume.*with --top.*--threshold"),
    ],
)
def test_what_cannot_be_resumed_is_refused(tmp_path, chemistry, out: str, selection: Selection, message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer([chemistry[0]], chemistry[1], str(tmp_path / out), resume=True, selection=selection)


def test_two_predictions_into_the_same_file_are_refused(tmp_path, chemistry) -> None:
    run, table, _ = chemistry
    out = str(tmp_path / "o.csv")
    task = journal.task_of(table, [], {})
    with (
        journal.open_resumable(Output(Path(out)), load_models([run], print)[0].header, task, resume=False),
        pytest.raises(InputError, match=r"o\.csv: another process writes it; expected a file that none writes\. Wait"),
    ):
        infer([run], table, out, csv=ONE, quiet=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_prediction_that_waits_for_the_name_while_another_ends_leaves_that_output_whole(
    tmp_path, chemistry, monkeypatch, resume: bool
) -> None:
    """It opens the partial output of the other, which then ends and gives it its name."""
    run, table, _ = chemistry
    out = tmp_path / "o.csv"
    opened, real = [], fileio.open_append

    def late(path: Path) -> IO[bytes]:
        stream = real(path)
        if not opened:
            opened.append(stream)
            monkeypatch.setattr(fileio, "open_append", real)
            infer([run], table, str(out), csv=ONE, quiet=True)
            (tmp_path / "o.csv.partial.json").write_text('{"rows": 8, "bytes": 1709, "task": {}}')
        return stream

    monkeypatch.setattr(fileio, "open_append", late)
    infer([run], table, str(out), csv=ONE, quiet=True, resume=resume)
    assert len(read_rows(out)) == 40
    assert os.listdir(tmp_path) == ["o.csv"]


def test_a_folder_that_is_missing_is_named(tmp_path, chemistry) -> None:
    with pytest.raises(InputError, match=r"o\.csv: no folder '.*no'\. Make the folder first\."):
        infer([chemistry[0]], chemistry[1], str(tmp_path / "no" / "o.csv"), quiet=True)


# ------------------------------------------------------------------------------------------------ selection


@pytest.mark.usefixtures("small_parts")
def test_top_and_threshold_keep_the_rows_with_the_highest_values(tmp_path, chemistry) -> None:
    run, table, _ = chemistry

    def predicted(name: str, selection: Selection | None = None) -> list[tuple[str, float]]:
        infer([run], table, str(tmp_path / name), csv=ONE, quiet=True, selection=selection)
        rows = read_rows(tmp_path / name)
        return list(zip(rows, numbers(rows, ["third"])[:, 0].tolist(), strict=True))

    everything = [row for row in predicted("all.csv") if not np.isnan(row[1])]
    best = sorted(everything, key=lambda row: -row[1])
    assert predicted("top.csv", Selection(top=5, by="third")) == best[:5]
    least = best[6][1]
    over = [row for row in everything if row[1] >= least]
    assert predicted("over.csv", Selection(threshold=least, by="third")) == over
    assert predicted("both.csv", Selection(3, least, "third")) == best[:3]
    infer([run], table, str(tmp_path / "no.csv"), csv=ONE, quiet=True, selection=Selection(0, 2.0, "third"))
    assert (tmp_path / "no.csv").read_text() == "id,even,third,error\n"


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(top=3), "--by: missing, with 2 outputs; expected one of even, third"),
        (Selection(top=3, by="evn"), "--by: no output 'evn'.*even"),
        (Selection(by="even"), "--by: no selection"),
    ],
)
def test_the_value_of_a_selection_must_be_clear(tmp_path, chemistry, selection: Selection, message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer([chemistry[0]], chemistry[1], str(tmp_path / "o.csv"), selection=selection)


# ------------------------------------------------------------------------------------------------ files


def test_parquet_has_the_columns_of_the_csv(tmp_path, chemistry) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra 'tables')")
    run, table, _ = chemistry
    for name in ("o.csv", "o.parquet"):
        infer([run], table, str(tmp_path / name), csv=ONE, quiet=True)
    rows = read_rows(tmp_path / "o.csv")
    found = parquet.read_table(tmp_path / "o.parquet")
    assert found.column_names == list(next(iter(rows.values())))
    assert found.column("id").to_pylist() == list(rows)
    values = np.array(found.column("even").to_pylist(), dtype=np.float32)
    np.testing.assert_array_equal(values, numbers(rows, ["even"])[:, 0].astype(np.float32))
    assert found.column("error").to_pylist() == [row["error"] or None for row in rows.values()]
    assert parquet.read_table(tmp_path / "o.parquet").schema.field("even").type == "float"


def test_a_folder_is_read_as_one_table(tmp_path, chemistry) -> None:
    run, table, _ = chemistry
    header, *lines = table.read_text().splitlines()
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "a.csv").write_text("\n".join([header, *lines[:15]]) + "\n")
    swapped = [",".join(reversed(line.split(","))) for line in (header, *lines[15:])]
    (folder / "b.csv").write_text("\n".join(swapped) + "\n")
    (folder / "notes.md").write_text("no molecules\n")
    for data, name in ((table, "file.csv"), (folder, "folder.csv")):
        infer([run], data, str(tmp_path / name), csv=ONE, quiet=True)
    assert (tmp_path / "folder.csv").read_bytes() == (tmp_path / "file.csv").read_bytes()
    (folder / "c.csv").write_text("structure\nCC\n")
    with pytest.raises(InputError, match=r"c\.csv: no column 'mol_id'; expected the columns of .*a\.csv"):
        infer([run], folder, str(tmp_path / "o.csv"), csv=ONE, quiet=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file of molecules in it"):
        infer([run], tmp_path / "empty", str(tmp_path / "o.csv"), quiet=True)


@pytest.mark.numerical
@pytest.mark.parametrize("stopped", [0, 11])
def test_a_large_set_is_predicted_in_parts(tmp_path, trained, monkeypatch, stopped: int) -> None:
    run, data = trained
    infer([run], data, str(tmp_path / "whole.csv"), quiet=True)
    monkeypatch.setattr(inputs, "WHOLE_BYTES", 0)
    monkeypatch.setattr(inputs, "PART_BYTES", 2000)
    append = journal._Resumable.append

    def interrupted(self: journal._Resumable, *arguments: object) -> None:
        append(self, *arguments)  # type: ignore[arg-type]
        if self.rows >= stopped:
            raise KeyboardInterrupt

    out = str(tmp_path / "parts.csv")
    if stopped:
        with monkeypatch.context() as patch:
            patch.setattr(journal._Resumable, "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                infer([run], data, out, quiet=True)
        monkeypatch.setattr(inputs, "WHOLE_BYTES", 1 << 30)
    infer([run], data, out, quiet=True, resume=bool(stopped))
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_damaged_graph_in_a_later_part_of_a_large_set_is_refused_by_name(
    tmp_path: Path, trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = trained
    monkeypatch.setattr(inputs, "WHOLE_BYTES", 0)
    monkeypatch.setattr(inputs, "PART_BYTES", 400)
    (tmp_path / "bad.h5").write_bytes(data.read_bytes())
    with h5py.File(tmp_path / "bad.h5", "r+") as file:
        last = len(file["edges/src"]) - 1
        file["edges/src"][last] = 99
    with pytest.raises(InputError, match=rf"bad\.h5:/edges/src\[{last}\]: node 99 in graph \d+"):
        infer([run], tmp_path / "bad.h5", str(tmp_path / "out.csv"), quiet=True)
    assert os.listdir(tmp_path) == ["bad.h5"]
