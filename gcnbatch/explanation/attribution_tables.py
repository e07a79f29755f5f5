"""Tables of explanations: ``atoms``, ``bonds``, ``features`` and ``molecules``, as CSV or Parquet.

- ``atoms``: id, atom (its number from 0), symbol, an attribution per output, which has half of each of the atom's
  bonds, and ``<output>_alone``, which has none of them.
- ``bonds``: id, begin and end (atoms), channel, and an attribution per output.
- ``features``, if the model joins features of whole molecules: id, feature, value, and an attribution per output. A
  feature without a row adds nothing.
- ``molecules``: id, for molecules ``smiles`` (its atoms are numbered as in ``atoms``), task, steps, prediction as
  `infer` gives it, output and baseline (f(molecule) and f(baseline)), sum of all attributions, of which ``features`` is
  that of the features, completeness_error, and error: why a row could not be read. Rows are in the order of the input,
  or of ``--top``.

Atoms (or atoms alone and bonds) and features of a molecule add up to its sum.

Numbers are float32, those of a regression model float64, written as `gcnbatch.predictions` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer_options import is_molecular
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.explanation.attributions import Attributions
from gcnbatch.predictions import Predictions, Sink, open_sink

NAMES = ("atoms", "bonds", "molecules")
FEATURES = "features"
_FIGURES = ("prediction", "output", "baseline", "sum", "completeness_error")


class Unreadable(NamedTuple):
    """A row that could not be read: its number in the input, from 1, its id and the reason."""

    number: int
    id: str
    reason: str


class Tables:
    """The tables, written part by part.

    Parameters
    ----------
    header : Header
        Of the model.
    names : tuple of T str
        The explained outputs.
    sinks : dict of Sink
        By name of the table.
    with_errors : bool
        Whether ``molecules`` has a column ``error``.
    """

    def __init__(self, header: Header, names: Sequence[str], sinks: dict[str, Sink], with_errors: bool) -> None:
        self._names, self._sinks, self._with_errors = tuple(names), sinks, with_errors
        self._kind = np.float64 if header.target == "regression" else np.float32
        self._with_smiles = is_molecular(header.featurizer)
        alone = tuple(f"{name}_alone" for name in self._names)
        self._figures = (*_FIGURES, FEATURES) if FEATURES in sinks else _FIGURES
        self._headers = {
            "atoms": _of_numbers(header, (*self._names, *alone)),
            "bonds": _of_numbers(header, self._names),
            FEATURES: _of_numbers(header, ("value", *self._names)),
            "molecules": _of_numbers(header, self._figures),
        }

    def append(
        self,
        found: Attributions,
        predictions: NDArray[np.floating],
        symbols: Sequence[Sequence[str]],
        smiles: Sequence[str],
        numbers: Int64,
        unreadable: Sequence[Unreadable] = (),
    ) -> None:
        """Append explained rows, and rows that could not be read between them.

        Parameters
        ----------
        predictions : (G, T)
            Probabilities, or values in the target's unit.
        symbols : sequence of G sequences
            Elements of each graph's nodes; empty where they are not known.
        smiles : sequence of G str
            A SMILES of each graph with its atoms in the order of the nodes; "" where it is not known.
        numbers : (G,) int64
            Numbers of the explained rows in the input.
        unreadable : sequence of Unreadable
            They go to ``molecules``, by their numbers.
        """
        graphs = found.graphs
        sizes = np.diff(graphs.node_ptr)
        number = np.arange(graphs.n_nodes) - np.repeat(graphs.node_ptr[:-1], sizes)
        named = [of if len(of) else [""] * size for of, size in zip(symbols, sizes.tolist(), strict=True)]
        self._write(
            "atoms",
            np.repeat(graphs.ids, sizes),
            np.concatenate([found.atoms, found.nodes], axis=1),
            {"atom": number, "symbol": np.array([one for of in named for one in of], dtype=np.str_)},
        )
        bonds = found.bonds()
        channels = np.array(graphs.header.channel_names)[bonds.channel]
        ends = {"begin": bonds.begin, "end": bonds.end, "channel": channels}
        self._write("bonds", graphs.ids[bonds.graph], bonds.values, ends)
        values: list[NDArray[Any]] = [predictions, found.outputs, found.baselines, found.sums, found.errors]
        if FEATURES in self._sinks:
            self._append_features(found)
            values.append(found.joined_sums)
        explained = self._molecules(
            np.repeat(graphs.ids, len(self._names)),
            np.repeat(np.array(smiles, dtype=np.str_), len(self._names)),
            np.tile(self._names, graphs.n_graphs),
            np.repeat(found.steps, len(self._names)).astype(np.str_),
            np.stack([one.ravel() for one in values], axis=1),
        )
        if unreadable:
            every = np.concatenate([np.repeat(numbers, len(self._names)), [row.number for row in unreadable]])
            explained = explained.join(self._unreadable(unreadable)).take(np.argsort(every, kind="stable"))
        self._sinks["molecules"].append(explained)

    def _append_features(self, found: Attributions) -> None:
        graphs, joined = found.graphs, found.joined
        assert graphs.graph_features is not None
        given = graphs.graph_features.first(graphs.header.n_joined).dense()[joined.graph, joined.feature]
        values = np.concatenate([given[:, None], joined.values], axis=1)
        names = np.array(graphs.header.graph_feature_names, dtype=np.str_)
        self._write(FEATURES, graphs.ids[joined.graph], values, {"feature": names[joined.feature]})

    def append_unreadable(self, rows: Sequence[Unreadable]) -> None:
        """Append rows that could not be read to ``molecules``."""
        self._sinks["molecules"].append(self._unreadable(rows))

    def _unreadable(self, rows: Sequence[Unreadable]) -> Predictions:
        none = np.full(len(rows), "")
        ids, reasons = (np.array([getattr(row, name) for row in rows], np.str_) for name in ("id", "reason"))
        return self._molecules(ids, none, none, none, np.full((len(rows), len(self._figures)), np.nan), reasons)

    def _molecules(
        self,
        ids: NDArray[np.str_],
        smiles: NDArray[np.str_],
        tasks: NDArray[np.str_],
        steps: NDArray[np.str_],
        values: NDArray[np.float64],
        reasons: NDArray[np.str_] | None = None,
    ) -> Predictions:
        errors = (np.full(len(ids), "") if reasons is None else reasons) if self._with_errors else None
        kept = {"smiles": smiles} if self._with_smiles else {}
        kept |= {"task": tasks, "steps": steps}
        return Predictions(self._headers["molecules"], ids, values.astype(self._kind), errors=errors, kept=kept)

    def _write(
        self, name: str, ids: NDArray[np.str_], values: NDArray[np.float64], kept: dict[str, NDArray[np.generic]]
    ) -> None:
        texts = {column: cells.astype(np.str_) for column, cells in kept.items()}
        self._sinks[name].append(Predictions(self._headers[name], ids, values.astype(self._kind), kept=texts))


@contextmanager
def open_tables(
    folder: Path,
    header: Header,
    names: Sequence[str],
    with_errors: bool,
    ending: str,
    spreadsheet: bool,
    with_features: bool = False,
) -> Iterator[Tables]:
    """Open the tables in a folder; they appear under their names when the block ends without an error."""
    every = (*NAMES, FEATURES) if with_features else NAMES
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(open_sink(folder / f"{name}{ending}", spreadsheet)) for name in every}
        yield Tables(header, names, sinks, with_errors)


def _of_numbers(header: Header, names: Sequence[str]) -> Header:
    """Return a header whose outputs are plain numbers of these names."""
    return header.model_copy(update={"target": "regression", "task_names": tuple(names), "class_names": ()})
