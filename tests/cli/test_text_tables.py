"""Tables of metrics as text."""

from __future__ import annotations

from gcnbatch.cli.text_tables import by_task

ERRORS = {"rmse": 0.5, "mae": 0.25, "r2": None, "labelled": 1234}


def test_errors_in_different_units_have_a_line_per_task() -> None:
    assert by_task({"tasks": {"MW": ERRORS, "pIC50": ERRORS}}, "by task") == [
        "",
        "by task  labelled  RMSE   MAE  R²",
        "MW          1,234   0.5  0.25   –",
        "pIC50       1,234   0.5  0.25   –",
    ]


def test_one_task_and_probabilities_have_none() -> None:
    assert by_task({"tasks": {"MW": ERRORS}}, "by task") == []
    assert by_task({"tasks": {"a": {"roc_auc": 0.5}, "b": {"roc_auc": 0.5}}}, "by task") == []
    assert by_task({}, "by task") == []
