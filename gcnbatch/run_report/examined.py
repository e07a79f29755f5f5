"""Test rows with what takes long to find out about them: intervals and drawn examples.

They need no other file of a run. So a run on a GPU examines its test rows in a worker while others draw the plots.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import resampling
from gcnbatch.data.graphs import Int64
from gcnbatch.data.store import Dataset
from gcnbatch.resampling import Intervals
from gcnbatch.run_report import examples, held_out
from gcnbatch.run_report.examples import Examples
from gcnbatch.run_report.held_out import HeldOut


class Examined(NamedTuple):
    """Test rows, the intervals of their figures (None: not resampled), and the rows to look at."""

    rows: HeldOut
    intervals: Intervals | None
    examples: Examples


def examine(data: Dataset, rows: Int64, outputs: NDArray[np.floating], resampled: bool = True) -> Examined:
    """Read test rows and examine them.

    Parameters
    ----------
    data : Dataset
    rows : (R,) int64
        Ascending.
    outputs : (R, K)
    resampled : bool
        Compute intervals, if there are not too many rows.

    Raises
    ------
    InputError
        As `held_out.read`.
    """
    tested = held_out.read(data, rows, outputs)
    header, intervals = tested.header, None
    if resampled:
        intervals = resampling.intervals(header.target, tested.y, tested.outputs, header.task_names)
    return Examined(tested, intervals, examples.choose(tested))


def examine_file(path: Path, rows: Int64, outputs: NDArray[np.floating], resampled: bool) -> Examined:
    """Read test rows from a data set and examine them; see `examine`."""
    with Dataset(path, check=False) as data:
        return examine(data, rows, outputs, resampled)
