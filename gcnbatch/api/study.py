"""Searches from Python, and the command ``gcnbatch tune``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import Settings, check, gather, graphs_of, path_of
from gcnbatch.api.training import name_after
from gcnbatch.config_tree import plain

if TYPE_CHECKING:
    from gcnbatch.api.options import ConfigLike, DataLike
    from gcnbatch.config import Config
    from gcnbatch.fileio import StrPath


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


def tune(
    config: ConfigLike | None = None,
    data: DataLike | None = None,
    *,
    space: StrPath | Mapping[str, Any] | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    out: StrPath | None = None,
    resume: StrPath | None = None,
    folds: int | None = None,
    repeats: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    backend: str | None = None,
    device: int | None = None,
    jobs: int | None = None,
    settings: Settings | None = None,
    quiet: bool = True,
    say: Callable[[str], object] = lambda line: None,
) -> Study:
    """Search for the best configuration; test rows are never used.

    Parameters
    ----------
    config, data, seed, epochs, folds, repeats, backend, device, jobs, settings, quiet, say
        As for `gcnbatch.train`.
    space : path or mapping
        Keys to search, as a TOML file or its tables; None: a built-in space.
    trials, minutes : int, float
        The end of the search; None: 50 trials, or no limit where the other one is given.
    out : path
        Folder of the study; None: ``runs/<name>-tune-<time>``.
    resume : path
        Go on with the study in this folder; only `trials`, `minutes`, `device` and `jobs` may be given beside it.

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

    options = {
        ("data", "path"): path_of(data),
        ("split", "folds"): folds,
        ("split", "repeats"): repeats,
        ("train", "epochs"): epochs,
        ("seed",): seed,
        ("backend",): backend,
        ("device",): device,
        ("jobs",): jobs,
    }
    limits, settings = search.Limits(plain(trials), plain(minutes)), settings or {}
    if resume is not None:
        free = {("device",), ("jobs",)}
        given = [".".join(path) for path, value in options.items() if value is not None and path not in free]
        given += [name for name, value in (("CONFIG", config), ("--space", space), ("--out", out)) if value is not None]
        _only_resume([*given, *(f"{key}={value}" for key, value in settings.items())])
        replaced = {path[0]: options[path] for path in free if options[path] is not None}
        return Study(Path(resume), search.resume(Path(resume), limits, replaced, quiet, say))
    tree, graphs = gather(config, options, settings), graphs_of(data)
    if graphs is not None:
        name_after(tree, graphs)
    checked = check(tree, config, options, settings, say)
    place = None if out is None else Path(out)
    keys = space if space is None or isinstance(space, Mapping) else Path(space)
    return Study(*search.start(checked, place, keys, limits, quiet, say, graphs))


def _only_resume(extra: list[str]) -> None:
    from gcnbatch.errors import InputError

    if extra:
        raise InputError(
            "--resume",
            f"together with {', '.join(extra)}",
            "nothing but --trials, --minutes, --device and --jobs",
            "A study keeps its configuration and its space.",
        )
