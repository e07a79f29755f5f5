"""The search for a configuration (``gcnbatch tune``), with Optuna.

Importing a module of this package raises `gcnbatch.errors.BackendUnavailable` where Optuna is not installed.
"""

from gcnbatch.errors import BackendUnavailable

try:
    import optuna
except ImportError as error:
    hint = "Install it: pip install 'gcnbatch[tune]'."
    raise BackendUnavailable("gcnbatch tune", "Optuna is not installed", hint=hint) from error

optuna.logging.set_verbosity(optuna.logging.WARNING)  # else a line for each study
