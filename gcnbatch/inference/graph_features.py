"""Features of whole graphs in a prediction: computed from SMILES as for the training set, or read from columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.featurizer_options import AS_WRITTEN
from gcnbatch.data.importers.cells import FLOAT32_MAX, parse_number
from gcnbatch.data.importers.number_format import NumberFormat
from gcnbatch.data.molecule_features import graph_feature_names, rdkit_version
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Block
from gcnbatch.errors import InputError, nearest
from gcnbatch.text import QUOTED, printable, quoted

NOTATION = (
    "the predictions of this model depend on how a SMILES is written (brackets, explicit hydrogens), as those of older "
    "versions do; to end that, import its table again with 'gcnbatch data import smiles' and train on the new file"
)


def featurizer_notes(trained: Header, featurizer: dict[str, Any] | None) -> tuple[str, ...]:
    """Return notes on a model whose graphs depend on notations, and on graph features of another version of RDKit."""
    notes = (NOTATION,) if (trained.featurizer or {}).get("kind") == AS_WRITTEN else ()
    made, now = ((one or {}).get("rdkit") for one in (trained.featurizer, featurizer))
    if not trained.graph_feature_names or made is None or now is None or made == now:
        return notes
    shown = (printable(str(version), QUOTED) for version in (made, now))
    return (
        *notes,
        "descriptors may differ: those of the training set are of RDKit {}, these of RDKit {}".format(*shown),
    )


@dataclass(frozen=True)
class FeatureColumns:
    """Graph features of a file of molecules.

    Parameters
    ----------
    options : FeaturizerOptions
        What is computed from SMILES.
    names : tuple of str
        The user's own columns.
    table, written : TableFormat, NumberFormat
        How the numbers are written.
    notes : tuple of str
    """

    options: FeaturizerOptions
    names: tuple[str, ...]
    table: TableFormat = field(default_factory=TableFormat)
    written: NumberFormat = field(default_factory=NumberFormat)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path | str, names: Sequence[str], header: Header) -> FeatureColumns:
        """Return how the features that `header` names come from a table with these columns.

        Raises
        ------
        InputError
            When a column is missing, or RDKit computes other descriptors than for the training set.
        """
        options = FeaturizerOptions.from_header(header.featurizer)
        if not header.graph_feature_names:
            return cls(replace(options, descriptors="", fingerprint=""), (), notes=featurizer_notes(header, None))
        computed: tuple[str, ...] = ()
        if options.of_molecules:
            load_rdkit()
            computed = graph_feature_names(options)
        own = len(header.graph_feature_names) - len(computed)
        if own < 0 or header.graph_feature_names[own:] != computed:
            raise InputError(
                f"graph features of {path}",
                f"RDKit {rdkit_version()} computes {len(computed)}",
                f"those of the run, of RDKit {printable(str((header.featurizer or {}).get('rdkit')), QUOTED)}",
                "Install that version, or train again.",
            )
        for name in header.graph_feature_names[:own]:
            if name not in names:
                hint = f"{nearest(name, names)} The model reads it."
                raise InputError(str(path), f"no feature column {quoted(name)}", hint=hint)
        now = {"rdkit": rdkit_version()} if computed else None
        return cls(options, header.graph_feature_names[:own], notes=featurizer_notes(header, now))

    def with_format(self, path: Path, table: TableFormat, sample: Mapping[str, Sequence[str]]) -> FeatureColumns:
        """Return the columns of a table of this format, of which `sample` has the first values of each column."""
        written = NumberFormat.of(path, ((name, sample[name]) for name in self.names), table.decimal)
        return replace(self, table=table, written=written)

    def read(self, rows: Block) -> tuple[NDArray[np.float32] | None, dict[int, str]]:
        """Return the user's features (R, D'), None without columns, and why rows have none, by row."""
        if not self.names:
            return None, {}
        values = np.full((len(rows), len(self.names)), np.nan, np.float32)
        wrong: dict[int, str] = {}
        for column, name in enumerate(self.names):
            for row, text in enumerate(self.written.plain(name, self.table.without_missing(rows[name]))):
                try:
                    value = parse_number(text)
                except ValueError:
                    value = np.inf
                if abs(value) > FLOAT32_MAX:
                    wrong.setdefault(row, f"column {quoted(name)}: {quoted(text)} is not a number of 32 bits")
                else:
                    values[row, column] = value
        return values, wrong
