"""Converts chunks of records into parts, in worker processes. It imports little, so that these start early."""

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
from gcnbatch.data.tables.smi import without_extension
from gcnbatch.data.tables.table import with_numbers
from gcnbatch.inference.graph_features import FeatureColumns
from gcnbatch.inference.labels import LabelColumns
from gcnbatch.inference.parts import Block, Part, Reading, Texts
from gcnbatch.worker import Shared

Record = list[str]


@dataclass(frozen=True)
class Columns:
    """Positions of the columns that are read; -1: row numbers as ids."""

    smiles: int
    id: int
    kept: dict[str, int]
    labels: LabelColumns | None
    features: FeatureColumns


@dataclass(frozen=True)
class Converter:
    """Converts chunks of records into parts: with batches for these readings, or with graphs if there is none."""

    header: Header
    columns: Columns
    readings: tuple[Reading, ...]

    def smiles(self, records: Sequence[Record]) -> list[str]:
        """Return the SMILES without blanks around them and extensions of CXSMILES."""
        return [without_extension(record[self.columns.smiles].strip()) for record in records]

    def part(self, chunks: Sequence[MoleculeArrays], records: Sequence[Record], first: int) -> Part:
        """Join the graphs of consecutive records; `first` is the position of the first one in the input."""
        columns, errors = self.columns, dict[int, str]()
        ids = with_numbers([record[columns.id] if columns.id >= 0 else "" for record in records], first)
        names = np.array(ids, dtype=np.str_)
        values, wrong = columns.features.read(records)
        graphs = []
        for chunk in chunks:
            places = chunk.rows - first
            own = None if values is None else values[places]
            targets = missing_targets(self.header, len(places))
            graphs.append(graph_part(chunk, self.header, targets, names[places], columns=own))
            errors |= {bad.index - first: bad.reason for bad in chunk.bad}
        data, rows = concatenate(graphs), np.concatenate([chunk.rows - first for chunk in chunks])
        if wrong:
            left = np.flatnonzero(~np.isin(rows, list(wrong)))
            data, rows = data.take(left), rows[left]
            errors = wrong | errors
        smiles = self.smiles(records)
        y, unknown = (None, None) if columns.labels is None else columns.labels.read(records)
        texts = Texts(
            ids,
            errors,
            y,
            {name: [record[at] for record in records] for name, at in columns.kept.items()},
            [smiles[row] for row in rows.tolist()],
            unknown,
        )
        sources = {reading: BatchSource(data, *reading) for reading in self.readings}
        alike = sum((chunk.alike for chunk in chunks), Counter[str]())
        return Part((Block.of(texts, rows, alike),), None if sources else data, sources)


def prepare() -> None:
    """Prepare a worker process, which has imported this module."""
    featurizer_worker.prepare()


def convert_timed(seconds: float, records: list[Record], first: int, converter: Shared) -> Part:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    own: Converter = converter.load()
    arrays = featurize_chunk(guard.timed(own.smiles(records), seconds), first, own.columns.features.options, False)
    return own.part([arrays], records, first)


def convert_guarded(records: list[Record], first: int, converter: Shared) -> list[Part]:
    """Convert a chunk, its graphs in forks; a molecule that crashes RDKit is a bad row."""
    own: Converter = converter.load()
    return [own.part(guarded(own.smiles(records), first, own.columns.features.options, False), records, first)]
