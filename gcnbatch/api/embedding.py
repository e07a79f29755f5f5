"""Vectors from Python, and the command ``gcnbatch embed``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcnbatch.api.options import csv_options, cuda
from gcnbatch.api.run import folders_of
from gcnbatch.embedding import command
from gcnbatch.inference.inputs import opened
from gcnbatch.options.declaration import arguments
from gcnbatch.options.prediction import EmbedOptions

if TYPE_CHECKING:
    from gcnbatch.embedding.command import EmbeddingSummary


@arguments(EmbedOptions)
def embed(given: EmbedOptions) -> EmbeddingSummary:
    """Write a vector for each row of a file: the values that enter the output layer of each network, side by side.

    Raises
    ------
    InputError
        When runs, data or outputs cannot be used or do not match.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
    >>> gcnbatch.write("molecules.h5", graphs)
    >>> run = gcnbatch.train(data="molecules.h5", epochs=1, settings={"model.widths": [4]}, out="run")
    >>> gcnbatch.embed(run, "molecules.h5", "vectors.npy").embedding
    4
    """
    with opened(given.data, csv_options(given), given.say) as source:
        return command.embed(
            folders_of(given.runs),
            source.data,
            Path(given.out),
            fingerprint=given.fingerprint,
            descriptors=given.descriptors,
            map_file=None if given.map_file is None else Path(given.map_file),
            backend=given.backend,
            device=given.device,
            cuda=cuda(given.settings, given.resident),
            csv=source.options,
            quiet=given.quiet,
            say=source.say,
        )
