"""The data set of a run that is finished or stopped, for those who read it again: report, comparison, applicability.

``config.toml`` names it, for a baseline ``baseline.json``; a set of the run's own lies in its folder. ``data.sha256``
only says which contents it must have: the path in it is for people, and is never opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from gcnbatch.config import resolve
from gcnbatch.data.shards import fingerprint
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.training import digest, run_files
from gcnbatch.training.plan import GENERATED, data_file
from gcnbatch.training.run_files import CONFIG

BASELINE = "baseline.json"


class _Baseline(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    data: str


_SETTINGS = TypeAdapter(_Baseline)


@dataclass(frozen=True)
class RunData:
    """Where the data set of a run is, and the SHA-256 that it had.

    Parameters
    ----------
    run : Path
        The run's folder.
    path : Path
    digest : str
    """

    run: Path
    path: Path
    digest: str

    @classmethod
    def of(cls, run: Path) -> RunData:
        """Return the data set of the run in a folder.

        Raises
        ------
        InputError
            When a file of the run is missing or damaged.
        """
        return cls(run, _path(run), digest.read(run))

    @property
    def is_changed(self) -> bool:
        """Whether the contents are others than those of the run.

        Raises
        ------
        InputError
            When the data set is gone.
        """
        return fingerprint(self.path) != self.digest

    def open(self) -> Dataset:
        """Open the data set; its contents are not checked again.

        Raises
        ------
        InputError
            When it is gone or has changed.
        """
        if self.is_changed:
            raise InputError(str(self.path), "changed since the run", f"the data of {self.run}", "Restore it.")
        return Dataset(self.path, check=False)


def _path(run: Path) -> Path:
    if (run / GENERATED).is_file():
        return run / GENERATED
    if (run / CONFIG).is_file():
        return data_file(resolve(run_files.read_toml(run / CONFIG), where=str(run / CONFIG)), run)
    place, expected = run / BASELINE, "the settings of a baseline"
    settings: _Baseline = run_files.checked(str(place), run_files.read_json(place, expected), _SETTINGS, expected)
    return Path(settings.data)
