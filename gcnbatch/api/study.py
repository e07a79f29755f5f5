"""Searches from Python, and the command ``gcnbatch tune``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import check, gather, graphs_of, keys_of, path_of
from gcnbatch.api.sources import write_set
from gcnbatch.api.training import name_after
from gcnbatch.config_tree import plain
from gcnbatch.options.declaration import arguments
from gcnbatch.options.training import TuneOptions

if TYPE_CHECKING:
    from gcnbatch.config import Config


@dataclass(frozen=True)
class Study:
    """A search: its folder and its summary.

    Parameters
    ----------
    folder : Path
        Holds ``best.toml``, ``trials.csv`` and ``report.html``.
    summary : dict
        Numbers of trials by state; ``best`` has value, epochs and parameters of the best trial, if there is one.
    """

    folder: Path
    summary: dict[str, Any]

    @property
    def best(self) -> Config:
        """The best configuration, for `gcnbatch.train`.

        Raises
        ------
        InputError
            When no trial is complete.
        """
        from gcnbatch.config import resolve
        from gcnbatch.training import run_files
        from gcnbatch.tuning.page import BEST

        path = self.folder / BEST
        return resolve(run_files.read_toml(path), where=str(path))


@arguments(TuneOptions)
def tune(given: TuneOptions) -> Study:
    """Search for the best configuration; test rows are never used.

    Raises
    ------
    InputError
        When data, configuration and space do not match, or options are given that a study keeps.
    MachineError
        Without Optuna (extra ``tune``).

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 6, [0.2, 1.9, -0.3, 0.1] * 6)
    >>> space = {"train": {"learning_rate": {"choices": [0.001, 0.01]}}}
    >>> study = gcnbatch.tune(
    ...     {"model": {"widths": [4]}}, graphs, space=space, trials=2, epochs=1, jobs=1, out="study"
    ... )
    >>> study.summary["trials"], study.best.train.learning_rate in (0.001, 0.01)
    (2, True)
    """
    from gcnbatch.tuning import search

    options, settings = keys_of(given), given.settings or {}
    options["data", "path"] = path_of(given.data)
    limits = search.Limits(plain(given.trials), plain(given.minutes))
    if given.resume is not None:
        free = {("device",), ("jobs",)}
        extra = [".".join(path) for path, value in options.items() if value is not None and path not in free]
        others = (("CONFIG", given.config), ("--space", given.space), ("--out", given.out))
        extra += [name for name, value in others if value is not None]
        _only_resume([*extra, *(f"{key}={value}" for key, value in settings.items())])
        replaced = {path[0]: options[path] for path in free if options[path] is not None}
        folder = Path(given.resume)
        return Study(folder, search.resume(folder, limits, replaced, given.quiet, given.say))
    tree, graphs = gather(given.config, options, settings), graphs_of(given.data)
    name_after(tree, graphs)
    checked = check(tree, given.config, options, settings, given.say)
    place = None if given.out is None else Path(given.out)
    keys = given.space if given.space is None or isinstance(given.space, Mapping) else Path(given.space)
    return Study(*search.start(checked, place, keys, limits, given.quiet, given.say, write_set(graphs)))


def _only_resume(extra: list[str]) -> None:
    from gcnbatch.errors import InputError

    if extra:
        raise InputError(
            "--resume",
            f"together with {', '.join(extra)}",
            "nothing but --trials, --minutes, --device and --jobs",
            "A study keeps its configuration and its space.",
        )
