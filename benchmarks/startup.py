"""Time a training command without the GPU's early start and without the processes for reports: a JSON row each.

See `gcnbatch/startup.py`.

    python benchmarks/startup.py [--repeats 5] [CONFIG OPTION…]

CONFIG and options are those of ``gcnbatch train`` (default: the quickstart). The commands take turns, so that a slow
moment of the machine meets all of them. ``seconds`` is the median from the start of the process to its end, ``lost``
what it is above that of the whole command.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from shared import REPEATS, emit, options

# Code before the command. A GPU that is not initialised early still counts as one: its reports have processes.
WITHOUT = {
    "nothing": "",
    "the GPU": "loader.wake = lambda number: object()",
    "the first figure": "startup.prepare_plots = functools.partial(startup.preload, *startup.PLOTS)",
    "imports of processes": "startup.FITS = startup.PAGE = (); startup.prepare_plots = startup.preload",
    "processes before imports": """
begin = startup.report_pools
def late(*about):
    import gcnbatch.run_report.writer, gcnbatch.training.run
    return begin(*about)
startup.report_pools = late""",
    "processes for reports": "startup.report_pools = lambda *about: contextlib.nullcontext(None)",
}
CODE = """
import contextlib, functools, sys
from gcnbatch import startup
from gcnbatch.backends.cuda.runtime import loader
{without}
sys.argv = ["gcnbatch", "train", *sys.argv[1:]]
from gcnbatch.cli.app import main
main()
"""


def seconds(without: str, arguments: list[str]) -> float:
    """Return the wall time of a training command in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CODE.format(without=WITHOUT[without]), *arguments, "-q"]
        began = time.perf_counter()
        subprocess.run([*command, "-o", str(Path(folder, "run"))], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    """Print the rows."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given, arguments = parser.parse_known_args()
    seconds("nothing", arguments)  # kernels and byte code are cached from here on
    times: dict[str, list[float]] = {without: [] for without in WITHOUT}
    for _ in range(given.repeats):
        for without, found in times.items():
            found.append(seconds(without, arguments))
    for without, found in times.items():
        lost = median(found) - median(times["nothing"])
        emit({"without": without, "seconds": median(found), "lost": lost})


if __name__ == "__main__":
    main()
