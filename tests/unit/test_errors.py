"""Messages and exit codes of errors for the user."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from gcnbatch.errors import BackendUnavailable, CheckFailed, GcnbatchError, InputError, MachineError, misfit, nearest


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


class Row(TypedDict):
    x: int


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (bool, 2, "'file': 2, not true or false"),
        (int, 0.5, "'file': 0.5, not a whole number"),
        (float, "a", "'file': 'a', not a number"),
        (str, 5, "'file': 5, not a text"),
        (list[int], {}, "'file': {}, not a list"),
        (list[int], [1, "a"], "'1': 'a', not a whole number"),
        (Row, [], "'file': [], not an object of keys"),
        (Row, {}, "'x': missing"),
        (Literal["a", "b"], "c", "'file': 'c', not 'a' or 'b'"),
        (Annotated[float, Field(gt=0.0)], -1.5, "'file': -1.5, not above 0"),
        (Annotated[float, Field(lt=0.5)], 1, "'file': 1, not below 0.5"),
        (Annotated[int, Field(ge=1, le=3)], 4, "'file': 4, not at most 3"),
        (Annotated[float, Field(allow_inf_nan=False)], float("inf"), "'file': inf, not a finite number"),
        (Annotated[str, Field(min_length=1)], "", "'file': '', not at least 1 characters"),
        (Annotated[str, Field(pattern="^a")], "{b}", "'file': '{b}', not a text like ^a"),
        (Annotated[list[int], Field(min_length=1)], [], "'file': [], not a list of at least 1"),
        (bytes, 1, "'file': 1, not a valid bytes"),  # in pydantic's words: no schema of ours has it
    ],
)
def test_a_value_that_does_not_fit_a_schema_is_explained_in_our_words(schema: Any, value: Any, reason: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(schema).validate_python(value)
    assert misfit(caught.value, "file") == reason
