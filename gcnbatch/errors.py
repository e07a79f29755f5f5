"""Errors for the user. Each says in one line what is wrong, where, what was expected and how to fix it.

The command line turns an error into its message on stderr and its ``exit_code``; nothing else decides exit codes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gcnbatch.text import QUOTED, listed, printable, quoted, shown

if TYPE_CHECKING:
    from pydantic import ValidationError

_COMPARED = 2000  # names among which the closest one is searched
# What a schema expects, by pydantic's kinds of errors; the braces name values of the error.
_EXPECTED = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "an object of keys"),
    "finite_number": "a finite number",
    "string_type": "a text",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "a text like {pattern}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "union_tag_invalid": "an object whose {discriminator} is one of {expected_tags}",
    "union_tag_not_found": "an object with {discriminator}",
}


class GcnbatchError(Exception):
    """Base of every error that the user reads.

    Parameters
    ----------
    subject : str
        What is wrong and where: a file, a key, a row (``"data.h5:/edges/src"``, ``"train.epochs"``).
    got : str
        What was found there.
    expected : str
        What is allowed there.
    hint : str
        The fix, as an instruction.
    """

    exit_code = 1

    def __init__(self, subject: str, got: str = "", expected: str = "", hint: str = "") -> None:
        self.subject, self.got, self.expected, self.hint = subject, got, expected, hint
        super().__init__(self._message())

    def advise(self, more: str) -> None:
        """Add to the hint what only the caller knows."""
        self.hint = f"{self.hint} {more}".strip()
        self.args = (self._message(),)

    def rename(self, old: str, new: str) -> None:
        """Write `new` where the message says `old`, which only the caller knows by another name."""
        parts = (self.subject, self.got, self.expected, self.hint)
        self.subject, self.got, self.expected, self.hint = (part.replace(old, new) for part in parts)
        self.args = (self._message(),)

    def _message(self) -> str:
        text = self.subject
        if self.got:
            text += f": {self.got}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.hint:
            text += f". {self.hint}"
        return printable(" ".join(text.split()))


class CheckFailed(GcnbatchError):
    """A requested comparison or check failed (exit code 1)."""

    exit_code = 1


class InputError(GcnbatchError):
    """The user's data, configuration or options cannot be used (exit code 2)."""

    exit_code = 2


class MachineError(GcnbatchError):
    """The machine failed: GPU, memory, disk (exit code 3)."""

    exit_code = 3


class DeviceLost(MachineError):
    """A device returns only errors from now on; not even its memory can be freed (exit code 3)."""


class BackendUnavailable(MachineError):
    """A requested backend cannot start here; the hint says what to install or change (exit code 3)."""


class Misfit(NamedTuple):
    """The first value that does not fit a schema.

    Parameters
    ----------
    kind : str
        Pydantic's name of the error.
    keys : tuple of str
        Where it is; empty for the whole value.
    got, expected : str
        `expected` is empty where `got` says all.
    """

    kind: str
    keys: tuple[str, ...]
    got: str
    expected: str

    @classmethod
    def of(cls, error: ValidationError) -> Misfit:
        """Return pydantic's first error in our words."""
        first = error.errors(include_url=False)[0]
        kind, about = first["type"], first.get("ctx", {})
        got, expected = "missing", ""
        match kind:
            case "missing":
                pass  # the input is the whole object
            case "extra_forbidden":
                got = "unknown key"
            case "json_invalid":
                got = f"not JSON ({about['error']})"
            case "value_error" | "assertion_error":
                got = first["msg"].partition(", ")[2]
            case _:
                whole = {name: int(of) for name, of in about.items() if isinstance(of, float) and of.is_integer()}
                ours = _EXPECTED.get(kind)
                got = shown(first["input"])
                expected = ours.format(**about | whole) if ours else first["msg"].removeprefix("Input should be ")
        return cls(kind, tuple(str(part) for part in first["loc"]), got, expected)


def misfit(error: ValidationError, whole: str = "value") -> str:
    """Return the first key that does not fit a schema, and why; `whole` names a value that has no keys."""
    first = Misfit.of(error)
    reason = f"{first.got}, not {first.expected}" if first.expected else first.got
    return f"{quoted('.'.join(first.keys) or whole)}: {printable(reason, 3 * QUOTED)}"


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest known spelling of `name`; empty where none is close."""
    # The comparison takes the square of a name's length.
    names = sorted(other for other in islice(known, _COMPARED) if len(other) <= QUOTED)
    close = difflib.get_close_matches(name[:QUOTED], names, n=1, cutoff=0.5)
    return f"Did you mean {quoted(close[0])}?" if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name closest to `name`, or with all known names; empty where none is known."""
    names = sorted(known)
    return closest(name, names) or (f"Known: {listed(names)}." if names else "")
