"""The command line under a launcher of ranks: rank 0 runs the command, the others follow it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

from gcnbatch.errors import GcnbatchError
from gcnbatch.ranks.launch import LaunchedProcess
from gcnbatch.startup import RANKED, preload_rank

_GRACE_SECONDS = 1.0


def run(launched: LaunchedProcess, command: Callable[[], object]) -> None:
    """Run a command on rank 0, with the other ranks at its service; leave with its exit code."""
    if not RANKED.keys() & sys.argv[1:2]:
        if launched.rank == 0:
            command()
        sys.exit(0)
    from gcnbatch.ranks import world

    try:
        ranks = world.join(launched, sys.argv[1:])
    except GcnbatchError as error:
        if launched.local_rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(_GRACE_SECONDS)  # launchers end all ranks after the first that fails
        sys.exit(error.exit_code)
    if ranks.rank:
        preload_rank(sys.argv[1])
        ranks.follow()
        sys.exit(0)
    code = 1
    try:
        command()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        raise
    finally:
        with suppress(BrokenPipeError):
            ranks.end(code)
