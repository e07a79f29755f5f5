"""Converts chunks of rows into parts, in worker processes. It imports little, so that these start early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gcnbatch.data import featurizer_worker, guard
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer import MoleculeArrays, featurize_chunk
from gcnbatch.data.graphs import concatenate
from gcnbatch.data.molecule_graphs import graph_part, guarded, missing_targets
from gcnbatch.data.schema import Header
from gcnbatch.data.tables import table
from gcnbatch.data.tables.smi import without_extension
from gcnbatch.inference.columns import FeatureColumns, LabelColumns
from gcnbatch.inference.parts import Block, Part, Reading, Texts
from gcnbatch.worker import Shared


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are read; an empty `id`: row numbers."""

    smiles: str
    id: str
    kept: tuple[str, ...]
    labels: LabelColumns | None
    features: FeatureColumns

    def names(self) -> list[str]:
        """Return each name once."""
        labels = () if self.labels is None else self.labels.names.values()
        return list(dict.fromkeys((self.smiles, *filter(None, [self.id]), *self.kept, *labels, *self.features.names)))


@dataclass(frozen=True)
class Converter:
    """Converts chunks of rows into parts: with batches for these readings, or with graphs if there is none."""

    header: Header
    columns: Columns
    readings: tuple[Reading, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of the features, for the user."""
        return self.columns.features.notes

    def smiles(self, rows: table.Block) -> list[str]:
        """Return the SMILES without blanks around them and extensions of CXSMILES."""
        return list(map(without_extension, rows[self.columns.smiles]))

    def part(self, chunks: Sequence[MoleculeArrays], rows: table.Block) -> Part:
        """Join the graphs of consecutive rows."""
        columns, errors, first = self.columns, dict[int, str](), rows.before
        ids = table.with_numbers(rows.texts(columns.id) if columns.id else [""] * len(rows), first)
        names = np.array(ids, dtype=np.str_)
        values, wrong = columns.features.read(rows)
        graphs = []
        for chunk in chunks:
            places = chunk.rows - first
            own = None if values is None else values[places]
            targets = missing_targets(self.header, len(places))
            graphs.append(graph_part(chunk, self.header, targets, names[places], columns=own))
            errors |= {bad.index - first: bad.reason for bad in chunk.bad}
        data, readable = concatenate(graphs), np.concatenate([chunk.rows - first for chunk in chunks])
        if wrong:
            left = np.flatnonzero(~np.isin(readable, list(wrong)))
            data, readable = data.take(left), readable[left]
            errors = wrong | errors
        smiles = self.smiles(rows)
        y, remarks = (None, {}) if columns.labels is None else columns.labels.read(rows)
        texts = Texts(
            ids,
            errors,
            y,
            {name: rows.texts(name) for name in columns.kept},
            [smiles[row] for row in readable.tolist()],
            remarks,
        )
        sources = {reading: BatchSource(data, *reading) for reading in self.readings}
        alike = sum((chunk.alike for chunk in chunks), Counter[str]())
        return Part((Block.of(texts, readable, alike),), None if sources else data, sources)


def prepare() -> None:
    """Prepare a worker process, which has imported this module."""
    featurizer_worker.prepare()


def convert_timed(seconds: float, rows: table.Block, converter: Shared) -> Part:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    own: Converter = converter.load()
    arrays = featurize_chunk(guard.timed(own.smiles(rows), seconds), rows.before, own.columns.features.options, False)
    return own.part([arrays], rows)


def convert_guarded(rows: table.Block, converter: Shared) -> list[Part]:
    """Convert a chunk, its graphs in forks; a molecule that crashes RDKit is a bad row."""
    own: Converter = converter.load()
    return [own.part(guarded(own.smiles(rows), rows.before, own.columns.features.options, False), rows)]
