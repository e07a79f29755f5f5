"""Comparisons of backends from Python, and the command ``compare-backends``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import Settings, load, path_of

if TYPE_CHECKING:
    from gcnbatch.api.options import ConfigLike
    from gcnbatch.fileio import StrPath


@dataclass(frozen=True)
class BackendComparison:
    """A comparison of backends.

    Parameters
    ----------
    folder : Path
        Holds ``report.json``, ``report.md``, ``report.html`` and the plots.
    content : dict
        ``report.json``: parity of each backend; speeds, where all agree.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def agree(self) -> bool:
        """Whether every backend agrees with the reference."""
        return bool(self.content["parity"]["passed"])

    @property
    def verdict(self) -> str:
        """The result in one or two sentences."""
        from gcnbatch.lab.backend_comparison.report import verdict

        return verdict(self.content)

    def judge(self) -> None:
        """Raise CheckFailed unless all backends agree."""
        from gcnbatch.errors import CheckFailed

        if not self.agree:
            raise CheckFailed("parity", self.verdict.rstrip("."), hint=f"See {self.folder}.")


def compare_backends(
    config: ConfigLike | None = None,
    data: StrPath | None = None,
    *,
    backends: Sequence[str] = (),
    out: StrPath | None = None,
    timeline: StrPath | None = None,
    device: int | None = None,
    resident: str | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    steps: int | None = None,
    repeats: int | None = None,
    quick: bool = False,
    settings: Settings | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> BackendComparison:
    """Check that backends agree in losses, gradients and parameters; then measure them, unless one does not.

    Parameters
    ----------
    config, device, resident, batch_size, seed, settings, say
        As for `gcnbatch.train`.
    data : path
        HDF5 data set.
    backends : sequence of str
        In the order of the report; empty: all.
    out : path
        Folder of the report; None: ``runs/compare-<name>-<time>``.
    timeline : path
        Also write the trace of a step into this file, for Perfetto or Chrome.
    steps, repeats : int
        Timed steps of a repetition (0: a whole epoch), and repetitions; None: 50 and 5, or 5 and 2 with `quick`.
    quick : bool
        Run a few steps only.

    Returns
    -------
    BackendComparison
        Also where backends do not agree; its `judge` raises an error then.

    Raises
    ------
    InputError
        When configuration, data or backends cannot be used.
    BackendUnavailable
        When no backend can be compared here.

    Examples
    --------
    >>> import gcnbatch
    >>> found = gcnbatch.compare_backends(backends=["cpu"], quick=True, out="compared")
    >>> found.agree, sorted(found.content["speedup"])
    (True, ['inference', 'training'])
    """
    from gcnbatch.lab.backend_comparison import comparison
    from gcnbatch.lab.backend_comparison.workload import QUICK, Effort

    options = {
        ("data", "path"): path_of(data),
        ("train", "batch_size"): batch_size,
        ("device",): device,
        ("cuda", "resident"): resident,
        ("seed",): seed,
    }
    given = {name: value for name, value in (("steps", steps), ("repeats", repeats)) if value is not None}
    folder, content = comparison.compare(
        load(config, options, settings or {}),
        list(backends),
        None if out is None else Path(out),
        None if timeline is None else Path(timeline),
        replace(QUICK if quick else Effort(), **given),
        say,
    )
    return BackendComparison(folder, content)
