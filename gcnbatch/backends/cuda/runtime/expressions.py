"""Evaluation of C++ constant expressions: numbers, names, operators and parentheses."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

_TOKENS = re.compile(
    r"\s*(?:(?P<number>0[xX][\da-fA-F']+|(?:\d[\d']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[uUlLfF]*"
    r"|(?P<name>[A-Za-z_]\w*(?:::\w+)*)"
    r"|(?P<operator><<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!?:<>()]))"
)


def _divide(a: Any, b: Any) -> Any:
    """Divide as C++ does: integers round towards zero."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# By precedence, weakest first.
_LEVELS: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {"||": lambda a, b: bool(a or b)},
    {"&&": lambda a, b: bool(a and b)},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divide, "%": lambda a, b: a - _divide(a, b) * b},
)
_UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": operator.not_,
}


def evaluate(text: str, value_of: Callable[[str], Any]) -> Any:
    """Return the value of the expression `text`.

    Parameters
    ----------
    value_of : callable
        Returns the value of a name.

    Raises
    ------
    ValueError
        When the text is not such an expression.

    >>> evaluate("ROWS > 100 ? (ROWS + 31) / 32 : 1 << 3", {"ROWS": 144}.__getitem__)
    5
    """
    parser = _Parser(text, value_of)
    value = parser.choice()
    if parser.kind:
        raise ValueError(f"'{text.strip()}' cannot be read at '{parser.token}'")
    return value


class _Parser:
    """A recursive-descent parser; `token` is the next token and `kind` its kind, None at the end."""

    def __init__(self, text: str, value_of: Callable[[str], Any]) -> None:
        self._text, self._value_of, self._at = text.rstrip(), value_of, 0
        self.kind: str | None = None
        self.token = ""
        self._advance()

    def choice(self) -> Any:
        condition = self._binary(0)
        if not self._takes("?"):
            return condition
        first = self.choice()
        self._expect(":")
        second = self.choice()
        return first if condition else second

    def _binary(self, level: int) -> Any:
        if level == len(_LEVELS):
            return self._unary()
        value = self._binary(level + 1)
        while self.kind == "operator" and (combine := _LEVELS[level].get(self.token)):
            self._advance()
            value = combine(value, self._binary(level + 1))
        return value

    def _unary(self) -> Any:
        kind, token = self.kind, self.token
        self._advance()
        if kind == "number":
            return _number(token)
        if kind == "name":
            return {"true": True, "false": False}[token] if token in ("true", "false") else self._value_of(token)
        if token in _UNARY:
            return _UNARY[token](self._unary())
        if token != "(":  # noqa: S105
            raise ValueError(f"'{self._text.strip()}' cannot be read at '{token}'")
        value = self.choice()
        self._expect(")")
        return value

    def _takes(self, token: str) -> bool:
        if self.kind == "operator" and self.token == token:
            self._advance()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise ValueError(f"'{self._text.strip()}' lacks '{token}' before '{self.token}'")

    def _advance(self) -> None:
        if self._at == len(self._text):
            self.kind, self.token = None, ""
            return
        found = _TOKENS.match(self._text, self._at)
        if not found or not found.lastgroup:
            raise ValueError(f"'{self._text.strip()}' cannot be read at '{self._text[self._at :].strip()}'")
        self.kind, self.token, self._at = found.lastgroup, found[found.lastgroup], found.end()


def _number(token: str) -> int | float:
    digits = token.replace("'", "")
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    if digits.isdigit():
        return int(digits, 8 if digits[0] == "0" and len(digits) > 1 else 10)
    return float(digits)
