"""Messages and exit codes of errors for the user."""

from __future__ import annotations

import pytest

from gcnbatch.errors import BackendUnavailable, CheckFailed, GcnbatchError, InputError, MachineError, nearest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.h5",), "a.h5"),
        (("a.h5", "broken"), "a.h5: broken"),
        (("a.h5", "broken", "a whole file"), "a.h5: broken; expected a whole file"),
        (("a.h5", "broken", "a whole file", "Copy it again."), "a.h5: broken; expected a whole file. Copy it again."),
        (("a.h5", "two\nlines\tand  blanks"), "a.h5: two lines and blanks"),
        (("a.csv", "'\x1b[31mC\0é'"), r"a.csv: '\x1b[31mC\x00é'"),
    ],
)
def test_the_message_is_one_line_of_the_parts_given(arguments, message):
    assert str(GcnbatchError(*arguments)) == message


def test_exit_codes():
    codes = {kind: kind("x").exit_code for kind in (CheckFailed, InputError, MachineError, BackendUnavailable)}
    assert codes == {CheckFailed: 1, InputError: 2, MachineError: 3, BackendUnavailable: 3}


def test_nearest_names_the_likely_spelling_or_the_choices():
    assert nearest("epoch", ["epochs", "seed"]) == "Did you mean 'epochs'?"
    assert nearest("qqq", ["seed", "epochs"]) == "Known: epochs, seed."
    assert nearest("qqq", []) == ""
    assert nearest("qqq", [f"key{i:02}" for i in range(30)]).endswith("key19, ….")
