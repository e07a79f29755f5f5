"""Rows that worker processes read and make: the bytes of one process, also when a process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data.featurizer_worker import prepare
from gcnbatch.errors import InputError
from gcnbatch.inference import WORKER_MODULES, inputs, molecules, tabulation
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.inference.parts import RowBlock
from gcnbatch.inference.tabulation import Selection
from gcnbatch.workers.pool import Workers
from tests.inference.runs import train_on

KEEP = ("mol_id", "structure")
WRITTEN = [(1, ".csv"), (1, ".jsonl"), (2, ".h5"), (2, ".parquet")]
WRITTEN += [
    pytest.param(*more, marks=pytest.mark.slow) for more in ((1, ".h5"), (1, ".parquet"), (2, ".csv"), (2, ".jsonl"))
]


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(2, prepare, WORKER_MODULES, quiet=True) as workers:
        yield workers


@pytest.fixture
def one_pool(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the calls of several tests use the same two processes. To start them takes most of the time of a call."""

    def opened(*given: Any, **named: Any) -> nullcontext[Workers]:
        assert (given, named) == ((2, prepare, WORKER_MODULES), {"quiet": True})
        return nullcontext(pool)

    monkeypatch.setattr(molecules, "Workers", opened)


@pytest.fixture(scope="module")
def ensemble(chemistry: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [chemistry[0], train_on(chemistry[2], tmp_path_factory.mktemp("other") / "run", seed=1)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two chunks of 4 rows."""
    monkeypatch.setattr(inputs, "PART_ROWS", 8)
    monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", 4)


@pytest.fixture
def library(tmp_path: Path, chemistry: tuple[Path, Path, Path]) -> Path:
    """A table of 43 molecules: a chunk and single rows cannot be read, ids and kept texts have several lengths."""
    lines = chemistry[1].read_text().splitlines()
    rows = [line.split(",")[:2] for line in lines[1:]] + [["a long id, with a comma", "CCO"], ["é", "C"], ["=1", "CN"]]
    for bad in (2, 9, 17, 18, 19, 16):
        rows[bad][1] = f"not SMILES {bad}"
    path = tmp_path / "library.csv"
    path.write_text("mol_id,structure\n" + "".join(f'"{name}",{smiles}\n' for name, smiles in rows))
    return path


@pytest.mark.parametrize(("models", "ending"), WRITTEN)
@pytest.mark.usefixtures("small_parts", "one_pool")
def test_processes_write_the_bytes_of_one_process(
    tmp_path: Path, ensemble: list[Path], library: Path, models: int, ending: str
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra 'tables')")
    found = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}{ending}"
        options = CsvOptions(processes=processes, keep_columns=KEEP)
        done = infer(ensemble[:models], library, str(out), csv=options, quiet=True, spreadsheet=True)
        assert (done.rows, done.unreadable, done.members) == (43, 6, models)
        found.append(out.read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "selection", [Selection(5, None, "even"), Selection(0, 0.4, "even"), Selection(3, 0.4, "even")]
)
@pytest.mark.usefixtures("small_parts", "one_pool")
def test_processes_select_the_rows_of_one_process(
    tmp_path: Path, chemistry: tuple[Path, Path, Path], library: Path, selection: Selection
) -> None:
    found = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.csv"
        infer([chemistry[0]], library, str(out), csv=CsvOptions(processes=processes), quiet=True, selection=selection)
        found.append(out.read_text())
    assert found[0] == found[1]
    assert len(found[0].splitlines()) > 1


@pytest.mark.usefixtures("small_parts", "one_pool")
def test_labels_that_processes_read_give_the_metrics_of_one_process(
    tmp_path: Path, chemistry: tuple[Path, Path, Path]
) -> None:
    run, table, _ = chemistry
    found = [
        infer([run], table, str(tmp_path / "out.csv"), csv=CsvOptions(processes=processes), quiet=True).metrics
        for processes in (1, 2)
    ]
    assert found[0] == found[1] is not None


@pytest.mark.usefixtures("small_parts", "one_pool")
def test_a_bad_row_is_refused_by_its_number(tmp_path: Path, chemistry: tuple[Path, Path, Path], library: Path) -> None:
    out, options = tmp_path / "out.csv", CsvOptions(processes=2)
    with pytest.raises(InputError, match=r"row 3, id M2: a blank inside the SMILES\..*--on-bad-row keep"):
        infer([chemistry[0]], library, str(out), csv=options, quiet=True, on_bad_row="fail")
    assert os.listdir(tmp_path) == ["library.csv"]


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_rows_of_a_process_that_died_are_made_here(
    tmp_path: Path, chemistry: tuple[Path, Path, Path], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer([chemistry[0]], library, str(tmp_path / "whole.csv"), csv=CsvOptions(processes=1), quiet=True)
    submit, died = Workers.submit, []

    def dying(self: Workers, fn: Any, /, *arguments: Any, **more: Any) -> Any:
        if fn is tabulation._make and len(died) < 2:
            died.append(os._exit)
            return submit(self, os._exit, 1)
        return submit(self, fn, *arguments, **more)

    monkeypatch.setattr(Workers, "submit", dying)
    infer([chemistry[0]], library, str(tmp_path / "out.csv"), csv=CsvOptions(processes=2), quiet=True)
    assert len(died) == 2
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.numerical
def test_tables_of_a_data_set_are_made_by_processes_with_the_same_bytes(
    tmp_path: Path, trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = trained
    infer([run], data, str(tmp_path / "one.csv"), quiet=True)
    monkeypatch.setattr(inputs, "PART_ROWS", 5)
    monkeypatch.setattr(inputs, "PROCESS_ROWS", 5)
    begun: list[int] = []
    start = Workers.__init__

    def counted(self: Workers, count: int, *arguments: Any, **more: Any) -> None:
        begun.append(count)
        start(self, count, *arguments, **more)

    monkeypatch.setattr(Workers, "__init__", counted)
    infer([run], data, str(tmp_path / "two.csv"), csv=CsvOptions(processes=2), quiet=True)
    assert begun == [2]
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_joined_blocks_keep_places_and_reasons() -> None:
    places = np.array([0, 2]), np.zeros(0, np.int64)
    first = RowBlock(["a", "b", "c"], places[0], {1: "bad"}, np.ones((3, 2)), {"x": ["1", "2", "3"]}, ["C", "CC"])
    last = RowBlock(["d"], places[1], {0: "worse"}, np.zeros((1, 2)), {"x": ["4"]}, [])
    joined = RowBlock.joined([first, last])
    assert joined.places.tolist() == [0, 2]
    assert joined.ids == ["a", "b", "c", "d"]
    assert joined.errors == {1: "bad", 3: "worse"}
    reasons = joined.reasons()
    assert reasons is not None
    assert reasons.tolist() == ["", "bad", "", "worse"]
    assert joined.kept == {"x": ["1", "2", "3", "4"]}
    assert joined.smiles == ["C", "CC"]
    assert joined.y is not None
    assert joined.y.sum() == 6
    with pytest.raises(InputError, match="row 12, id b: bad"):
        joined.refuse_bad_row(10)
