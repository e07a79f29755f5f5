"""What training stored of the models' errors, read for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gcnbatch.errors import InputError
from gcnbatch.inference.members import Member
from gcnbatch.inference.trust import Trust
from gcnbatch.training import checkpoint
from gcnbatch.training.fit_report import METRICS, UNCERTAINTY
from gcnbatch.uncertainty.model import LEVEL, Uncertainty

Level = float | Literal["training"] | None  # "training": the level that the runs were trained for; None: none


def load_trust(members: Sequence[Member], level: Level) -> Trust:
    """Load what training stored beside the weights; nothing if `level` is None.

    Raises
    ------
    InputError
        When a file is damaged or does not fit the model, the level is out of range, or that of the runs differs.
    """
    header = members[0].header
    if level is None:
        return Trust(header, LEVEL, ())
    if not isinstance(level, str) and not 0.5 <= level < 1:
        raise InputError("--level", f"{level:g}", "at least 0.5 and below 1")
    paths = [member.place / UNCERTAINTY for member in members]
    if missing := [path.parent for path in paths if not path.is_file()]:
        note = f"no calibrated probabilities, intervals or sets: {missing[0]} has no {UNCERTAINTY}"
        return Trust(header, LEVEL, (), (note,) if (missing[0] / METRICS).is_file() else ())
    found = []
    for path in paths:
        stored = checkpoint.load(path)
        found.append(Uncertainty.read(str(path), header, stored.arrays, stored.about))
    level = _level_of(found) if isinstance(level, str) else level
    lacking = [name for name in header.task_names if any(name in one.lacking_tasks(level) for one in found)]
    notes = []
    if lacking:
        shown = ", ".join(lacking[:5]) + (", …" if len(lacking) > 5 else "")
        what = "intervals" if header.target == "regression" else "sets"
        notes.append(f"no {what} at level {level:g} for {shown}: too few validation rows")
    return Trust(header, level, tuple(found), tuple(notes))


def _level_of(found: Sequence[Uncertainty]) -> float:
    """Return the level that all members were trained for."""
    levels = sorted({one.level for one in found})
    if len(levels) > 1:
        raise InputError("--level", f"trained for {', '.join(f'{one:g}' for one in levels)}", "one level of all runs")
    return levels[0]
