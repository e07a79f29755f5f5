"""Steps of a fit, which a program may show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Advance = Callable[[str, int, int], object]  # takes a member, its steps that are done, and all of them

Step = Callable[..., object]  # takes a number of steps; without it, 1


@dataclass
class Steps:
    """Counts the steps of a member and passes them on."""

    advance: Advance
    member: str
    count: int
    done: int = 0

    def take(self, steps: int = 1) -> None:
        """Count steps that are done."""
        self.done += steps
        self.advance(self.member, self.done, self.count)


def no_step(steps: int = 1) -> None:
    """Count nothing."""


def no_progress(member: str, done: int, count: int) -> None:
    """Report nothing."""
