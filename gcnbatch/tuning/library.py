"""Optuna, imported when a search begins, without its log of every study in memory."""

from __future__ import annotations

from typing import Any

from gcnbatch.errors import BackendUnavailable


def optuna() -> Any:
    """Return the module.

    Raises
    ------
    BackendUnavailable
        When it is not installed.
    """
    try:
        import optuna as library
    except ImportError as error:
        hint = "Install it: pip install 'gcnbatch[tune]'."
        raise BackendUnavailable("gcnbatch tune", "Optuna is not installed", hint=hint) from error
    library.logging.set_verbosity(library.logging.WARNING)
    return library
