"""Models whose outputs are not finite for some rows: these have a reason in place of numbers, or are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gcnbatch.api.run import Run
from gcnbatch.errors import InputError
from gcnbatch.explanation.command import explain
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.tabulation import NOT_FINITE
from gcnbatch.training import checkpoint
from tests.inference.runs import read_rows


@pytest.fixture
def run(tmp_path: Path, chemistry: tuple[Path, Path, Path]) -> Path:
    """Return a run whose logit of the first task overflows for molecules with a value in column 0, which most have."""
    shutil.copytree(chemistry[0], tmp_path / "run")
    path = tmp_path / "run" / "best.safetensors"
    whole = checkpoint.load(path)
    whole.arrays["norm1.gamma"][:] = 0
    whole.arrays["norm1.beta"][:] = 0
    whole.arrays["norm1.running_var"][:] = 1
    whole.arrays["norm1.gamma"][0] = 2.0**62
    whole.arrays["conv1.weight"][:, 0] = 2.0**40
    whole.arrays["output.weight"][0] = (2.0**62, 0)
    checkpoint.save(path, whole)
    return tmp_path / "run"


def test_a_molecule_without_a_finite_output_has_a_reason(tmp_path, chemistry, run) -> None:
    said: list[str] = []
    done = infer([run], chemistry[1], str(tmp_path / "p.csv"), quiet=True, say=said.append)
    rows = read_rows(tmp_path / "p.csv")
    lost = [row["error"] == NOT_FINITE for row in rows.values()]
    assert 0 < sum(lost) == done.unreadable < done.rows == len(rows)
    assert lost == [row["even"] == "" for row in rows.values()] == [row["third"] == "" for row in rows.values()]
    assert said[-1] == f"{sum(lost)} of 40 rows have no prediction; see column error"


def test_with_on_bad_row_fail_such_a_molecule_is_refused(tmp_path, chemistry, run) -> None:
    with pytest.raises(InputError, match=f"^row 1, id M0: {NOT_FINITE}. Fix the row, or keep such rows blank"):
        infer([run], chemistry[1], str(tmp_path / "p.csv"), quiet=True, on_bad_row="fail")


def test_a_row_of_a_data_set_is_refused(tmp_path, chemistry, run) -> None:
    with pytest.raises(InputError, match=f"^row 1, id M0: {NOT_FINITE}. Leave the row out"):
        infer([run], chemistry[2], str(tmp_path / "p.csv"), quiet=True)
    assert not (tmp_path / "p.csv").exists()
    with pytest.raises(InputError, match=f"^row 1, id M0: {NOT_FINITE}"):
        Run.load(run).predict(chemistry[2])
    for call in (lambda: explain([run], chemistry[1], tmp_path / "e", quiet=True), lambda: Run(run).explain(["CCO"])):
        with pytest.raises(InputError, match=f"row '(M0|1)': {NOT_FINITE}"):
            call()
    assert not (tmp_path / "e").exists()


def test_the_applicability_domain_of_such_a_model_is_refused(tmp_path, chemistry, run) -> None:
    whole = checkpoint.load(run / "best.safetensors")
    whole.arrays["conv1.weight"][:, 0] = 2.0**62
    checkpoint.save(run / "best.safetensors", whole)
    with pytest.raises(InputError, match="run: an embedding of its training graphs is not finite"):
        infer([run], chemistry[1], str(tmp_path / "p.csv"), quiet=True, applicability=True)
