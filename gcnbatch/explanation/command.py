"""``gcnbatch explain``: run folders and data in; tables, drawings and a page out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, folders
from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.featurizer_options import is_molecular
from gcnbatch.data.graphs import GraphSet, Int64, concatenate
from gcnbatch.data.molecule_drawings import NO_LIBRARIES, NO_RDKIT, can_draw, has_rdkit, too_large
from gcnbatch.explanation import drawing
from gcnbatch.explanation.attribution_tables import Tables, Unreadable, open_tables
from gcnbatch.explanation.cards import Card, cards_of
from gcnbatch.explanation.integrated import TOLERANCE, Explainer
from gcnbatch.explanation.page import INDEX, MOST_CARDS, render
from gcnbatch.inference.inputs import Data, open_input
from gcnbatch.inference.models import Model, load_wholes, mean_and_deviation, network_shares, outputs_of
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.inference.parts import Part, RowBlock
from gcnbatch.progress import counter
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.text import counted, listed, quoted

PART_BYTES = 1 << 25  # of a set that is too large for memory


@dataclass(frozen=True)
class Rows:
    """R rows.

    Parameters
    ----------
    graphs : GraphSet
    predictions : (R, T)
        The mean of the networks.
    smiles : list of R str
        "" where the input has none.
    numbers : int64, (R,)
        Their numbers in the input, from 1.
    """

    graphs: GraphSet
    predictions: NDArray[np.floating]
    smiles: list[str]
    numbers: Int64

    def join(self, other: Rows) -> Rows:
        """Return the rows of both."""
        return Rows(
            concatenate([self.graphs, other.graphs]),
            np.concatenate([self.predictions, other.predictions]),
            self.smiles + other.smiles,
            np.concatenate([self.numbers, other.numbers]),
        )

    def highest(self, count: int) -> Rows:
        """Return the rows with the highest prediction of any output, highest first."""
        rows = np.argsort(-self.predictions.max(axis=1, initial=-np.inf), kind="stable")[:count]
        smiles = [self.smiles[row] for row in rows.tolist()]
        return Rows(self.graphs.take(rows), self.predictions[rows], smiles, self.numbers[rows])


def rows_of(
    part: Part, numbers: Int64, members: list[Model], choice: BackendChoice, places: list[int]
) -> Iterator[Rows]:
    """Yield the readable rows of a part, of these numbers, in blocks; `places` are the explained outputs."""
    texts = part.smiles()
    left_out = np.stack([member.left_out for member in members])
    assert part.data is not None
    blocks = [(0, part.data)] if isinstance(part.data, GraphSet) else part.data.blocks(PART_BYTES)
    for first, graphs in blocks:
        own = slice(first, first + graphs.n_graphs)
        found = outputs_of(members, choice, cache(partial(BatchSource, graphs)))
        smiles = [""] * graphs.n_graphs if texts is None else texts[own]
        predictions, _ = mean_and_deviation(found, left_out, members[0].scaling)
        yield Rows(graphs, predictions[:, places], smiles, numbers[own])


DRAWINGS = "molecules"  # folder of the SVG files
UNITS = {
    "binary": "log-odds",
    "multiclass": "log-probability, less the mean over the classes",
    "regression": "the unit of the target",
}
SCALES = {"none": "{}", "log": "the natural logarithm of {}", "quantile": "the normal score of {}"}
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class ExplanationSummary:
    """Summary of explanations.

    Parameters
    ----------
    folder : str
    molecules, unreadable, drawn : int
        Rows that were explained, that could not be read, and SVG files.
    tasks : tuple of str
    members : int
    backend : str
    steps : dict
        Number of rows by the steps they took (largest of the members).
    largest_error, inexact : float, int
        Largest completeness error, and rows whose error is beyond the tolerance.
    """

    folder: str
    molecules: int
    unreadable: int
    drawn: int
    tasks: tuple[str, ...]
    members: int
    backend: str
    steps: dict[int, int]
    largest_error: float
    inexact: int

    def text(self) -> str:
        """Return the summary as a sentence."""
        steps = ", ".join(f"{count:,} with {counted(steps, 'step')}" for steps, count in self.steps.items())
        beyond = f"; {self.inexact:,} beyond the tolerance, see molecules" if self.inexact else ""
        return (
            f"{counted(self.molecules, 'row')} explained for {counted(len(self.tasks), 'output')} by "
            f"{counted(self.members, 'model')} on backend "
            f"{self.backend}: {steps or 'none'}; largest completeness error {self.largest_error:.3g}{beyond}."
        )


@dataclass(frozen=True)
class Output:
    """How results are written: SVG files or not, Parquet in place of CSV, and CSV for spreadsheets."""

    drawings: bool = True
    parquet: bool = False
    spreadsheet: bool = False


def explain(
    runs: Sequence[Path],
    data: Data,
    out: Path | None = None,
    *,
    tasks: Sequence[str] = (),
    top: int = 0,
    steps: int = 0,
    backend: str = "auto",
    device: int = 0,
    cuda: CudaConfig | None = None,
    batch_nodes: int = 0,
    csv: CsvOptions | None = None,
    on_bad_row: Literal["keep", "fail"] = "keep",
    output: Output | None = None,
    quiet: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> ExplanationSummary:
    """Explain rows of `data` with the mean of all networks of `runs`; write tables, drawings and a page to `out`.

    Parameters
    ----------
    runs, data, backend, device, cuda, csv, on_bad_row, quiet, say
        As for `gcnbatch.inference.ensemble.infer`.
    out : Path or None
        A new or empty folder; None: ``runs/explain-<time>``.
    tasks, steps, batch_nodes
        As for `gcnbatch.explanation.integrated.Explainer`.
    top : int
        Only the rows with the highest prediction of any of the tasks; 0: all, in the order of the input.

    Raises
    ------
    InputError
        When runs, data or output cannot be used or do not match.
    """
    choice = BackendChoice(backend, device, cuda, say)
    wholes = load_wholes(runs, say)
    members = [model for one in wholes for model in one.models]
    shares = network_shares(wholes)
    for line in shares:
        say(line)
    explainer = Explainer(members, choice, tasks, steps, batch_nodes)
    with (
        folders.results(out, "explain", whole=True) as (folder, _),
        open_input(data, members, csv or CsvOptions(), say) as source,
    ):
        if explainer.kinds - {"none"}:
            say(f"attributions are in {_unit(explainer)}, on which the networks learn")
        count = min(top or source.n_graphs, source.n_graphs) * len(members)
        output = output or Output()
        about = (".parquet" if output.parquet else ".csv", output.spreadsheet, explainer.joins)
        with (
            open_tables(folder, explainer.header, explainer.names, source.featurised, *about) as tables,
            counter(count, " molecules", quiet=quiet) as bar,
        ):
            writer = _Writer(explainer, folder, tables, output.drawings, say)
            best: Rows | None = None
            before = 0
            for part in source.parts:
                block = part.block()
                if on_bad_row == "fail":
                    block.refuse_bad_row(before)
                writer.note_unreadable(block, before)
                for rows in rows_of(part, before + 1 + block.places, members, choice, explainer.places):
                    if top:
                        best = (rows if best is None else best.join(rows)).highest(top)
                    else:
                        writer.write(rows, bar.update, in_order=True)
                before += part.rows
            if best is not None:
                writer.write(best, bar.update)
            writer.finish(_title(runs, data), len(members), shares)
        return writer.summary(len(members))


def _unit(explainer: Explainer) -> str:
    """Return the unit of attributions; of several outputs or networks, each that there is."""
    header = explainer.header
    units = {header.units.get(name, "") for name in explainer.names}
    unit = next(iter(units), "") if len(units) == 1 else ""
    return " or ".join(SCALES[kind].format(unit or UNITS[header.target]) for kind in sorted(explainer.kinds))


class _Writer:
    """Writes explained rows to the files of a folder, which are complete or not there."""

    def __init__(
        self, explainer: Explainer, folder: Path, tables: Tables, drawings: bool, say: Callable[[str], object]
    ) -> None:
        self._explainer, self._folder, self._tables, self._say = explainer, folder, tables, say
        self._drawings = drawings
        self._cards: list[Card] = []
        self._rows = self._unreadable = self._drawn = self._inexact = self._too_large = 0
        self._waiting: list[Unreadable] = []  # that are not written yet
        self._largest = ""
        self._steps: Counter[int] = Counter()
        self._largest_error = 0.0
        self._options = self._drawing_options()

    def note_unreadable(self, rows: RowBlock, before: int) -> None:
        """Note the rows that could not be read; `before` rows come before these."""
        bad = sorted((rows.errors or {}).items())
        self._waiting += [Unreadable(before + row + 1, str(rows.ids[row]), reason) for row, reason in bad]
        self._unreadable += len(bad)

    def write(self, rows: Rows, progress: Callable[[int], object], in_order: bool = False) -> None:
        """Explain rows and write their drawings and tables; `in_order`: also unreadable rows among them."""
        found = self._explainer.explain(rows.graphs, progress)
        cards = cards_of(found, rows.predictions, rows.smiles, self._options, self._explainer.joins)
        symbols = [() if card.layout is None else card.layout.symbols for card in cards]
        smiles = ["" if card.layout is None else card.layout.smiles for card in cards]
        last = rows.numbers[-1] if in_order and len(rows.numbers) else 0
        between = [row for row in self._waiting if row.number < last]
        self._waiting = self._waiting[len(between) :]
        self._tables.append(found, rows.predictions, symbols, smiles, rows.numbers, between)
        self._cards += cards[: MOST_CARDS - len(self._cards)]
        for number, card in zip(rows.numbers.tolist(), cards, strict=True):
            self._draw(number, card)
        self._rows += rows.graphs.n_graphs
        self._steps.update(found.steps.tolist())
        error, wanted = np.abs(found.errors), np.abs(found.outputs - found.baselines)
        self._largest_error = max(self._largest_error, float(error.max(initial=0)))
        self._inexact += int((error > TOLERANCE * (self._explainer.unit + wanted)).any(axis=1).sum())

    def finish(self, title: str, members: int, notes: Sequence[str]) -> None:
        """Write the rows that wait and the page of the first rows, with notes; say what is not drawn."""
        if self._waiting:
            self._tables.append_unreadable(self._waiting)
        summary = self.summary(members)
        about = [summary.text(), *notes]
        if self._too_large:
            rows = counted(self._too_large, "molecule is", "molecules are")
            about.append(f"{rows} too large to draw: {self._largest}.")
            self._say(about[-1])
        if self._unreadable:
            about.append(f"{counted(self._unreadable, 'row')} could not be read: see column error of molecules.")
        if summary.molecules > len(self._cards):
            about.append(f"This page shows the first {len(self._cards):,}; the tables have all {summary.molecules:,}.")
        unit = _unit(self._explainer)
        fileio.write_text(self._folder / INDEX, render(title, about, self._explainer.names, unit, self._cards))

    def summary(self, members: int) -> ExplanationSummary:
        """Return what was written so far."""
        return ExplanationSummary(
            str(self._folder),
            self._rows,
            self._unreadable,
            self._drawn,
            self._explainer.names,
            members,
            self._explainer.backend,
            dict(sorted(self._steps.items())),
            self._largest_error,
            self._inexact,
        )

    def _drawing_options(self) -> FeaturizerOptions | None:
        """Return how molecules were standardised, or None if they cannot be drawn."""
        featurizer = self._explainer.header.featurizer or {}
        if not is_molecular(featurizer):
            return None
        if not has_rdkit():
            self._say(f"no drawings and no symbols: {NO_RDKIT}")
            return None
        if not can_draw():
            self._say(f"no drawings: {NO_LIBRARIES}")
        return FeaturizerOptions.from_header(featurizer)

    def _draw(self, number: int, card: Card) -> None:
        """Write the drawing of a row, or note that it is too large for one."""
        if card.layout is None:
            return
        if why := too_large(card.layout):
            self._largest = self._largest or f"{quoted(card.name)} has {why}"
            self._too_large += 1
        if self._drawings and card.layout.paths:
            (self._folder / DRAWINGS).mkdir(exist_ok=True)
            place = self._folder / DRAWINGS / f"{number}_{_UNSAFE.sub('_', card.name)[:60]}.svg"
            place.write_text(drawing.file(card.layout, card.panels(self._explainer.names)), encoding="utf-8")
            self._drawn += 1


def _title(runs: Sequence[Path], data: Data) -> str:
    name = data.name if isinstance(data, Path) else listed(data) if isinstance(data, list) else data.header.name
    return f"Explanations of {name} by {', '.join(run.name for run in runs[:3])}{', …' if len(runs) > 3 else ''}"
