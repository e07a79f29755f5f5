"""A fit without a run folder: a configuration and graphs in, the best weights and the history out."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gcnbatch.config import Config
from gcnbatch.data import splits
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset
from gcnbatch.runners.choice import BackendChoice, make_runner
from gcnbatch.text import listed
from gcnbatch.training import checkpoint, loop, warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.member import Member


def fit(config: Config, graphs: GraphSet) -> tuple[bytes, list[dict[str, Any]]]:
    """Train one model on the split of `config`.

    Returns
    -------
    bytes
        What best.safetensors of a run would hold.
    list of dict
        The rows of history.jsonl.

    Raises
    ------
    InputError
        When data and configuration do not match.

    Warns
    -----
    UserWarning
        Of tasks that the training rows cannot teach: their outputs are NaN.
    """
    choice = BackendChoice(config.backend, config.device, config.cuda, lambda line: None)
    with TemporaryDirectory(prefix="gcnbatch-") as folder:
        path = Path(folder, "data.h5")
        write_graphset(path, graphs)
        with Dataset(path, config.data.memory_mb, check=False) as dataset:
            experiment = Experiment(config, dataset, warm_start.weights(config, dataset.header))
            member = Member(experiment, splits.make_split(config.split, config.seed, experiment.split_rows))
            experiment.check_learnable([member.split])
            if (absent := member.validation.left_out).any():
                names = listed(np.array(experiment.header.task_names)[absent])
                text = f"no labels of two classes in the training rows, so that predictions are NaN: {names}"
                warnings.warn(text, stacklevel=2)
            backend = choice.backend_for([member.task])
            loop.fit([member], lambda waiting: make_runner(backend, [waiting[0].task]), None, quiet=True)
    return checkpoint.encode(member.best_weights()), member.rows
