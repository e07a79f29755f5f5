"""Comparisons of backends from Python, and the command ``compare-backends``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gcnbatch.api.options import keys_of, load
from gcnbatch.options.declaration import arguments
from gcnbatch.options.lab import CompareBackendsOptions


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


@arguments(CompareBackendsOptions)
def compare_backends(given: CompareBackendsOptions) -> BackendComparison:
    """Check that backends agree in losses, gradients and parameters; then measure them, unless one does not.

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

    times = {name: value for name, value in (("steps", given.steps), ("repeats", given.repeats)) if value is not None}
    folder, content = comparison.compare(
        load(given.config, keys_of(given), given.settings or {}),
        list(given.backends),
        None if given.out is None else Path(given.out),
        None if given.timeline is None else Path(given.timeline),
        replace(QUICK if given.quick else Effort(), **times),
        given.say,
    )
    return BackendComparison(folder, content)
