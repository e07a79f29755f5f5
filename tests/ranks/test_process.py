"""The process that computes for rank 0."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gcnbatch import folders
from gcnbatch.errors import InputError
from gcnbatch.ranks.process import LeaderProcess


def test_the_process_of_rank_0_holds_the_lock_of_the_folder_to_its_end(tmp_path: Path) -> None:
    """It started before the folder was known; the lock is free once it has ended."""
    with LeaderProcess() as own:
        with folders.locked(tmp_path) as lock:
            own.hold(lock)
        assert own.submit(os.getpid).result() != os.getpid()
        for end in own._ends:  # of this process, which would hold the lock, too
            end.close()
        with pytest.raises(InputError, match="another process writes there"), folders.locked(tmp_path):
            pass
    with folders.locked(tmp_path):
        pass
