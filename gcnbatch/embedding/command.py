"""``gcnbatch embed``: run folders and data in; a table of vectors and a map out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, outputs, tables
from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.featurizer_options import MORGAN, RDKIT2D, FeaturizerOptions, is_molecular
from gcnbatch.data.graphs import Int64
from gcnbatch.data.molecule_features import graph_feature_names
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.binary import parquet_names
from gcnbatch.embedding.map import MAP, MOST_POINTS, Colouring, Points, render
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output
from gcnbatch.inference.domain import embedder, errors_of
from gcnbatch.inference.inputs import Data, open_input
from gcnbatch.inference.models import found_together, load_wholes
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.inference.parts import Part, RowBlock
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.predictions import output_names
from gcnbatch.progress import counter
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.text import counted

ENDINGS = (".parquet", ".npy", ".csv")
IDS = ".ids.csv"  # in place of .npy: the ids of an array
Float32 = NDArray[np.float32]
Say = Callable[[str], object]


def _is_vectors(path: Path) -> bool:
    if path.suffix.lower() == tables.PARQUET:
        names = parquet_names(path)
        return names[:1] == ("id",) and "e0" in names[1:3]
    return begins_with(rb'\x93NUMPY|"?id"?,("?error"?,)?"?e0"?,')(path)


VECTORS = Kind("vectors of an embedding", _is_vectors, ENDINGS)
IDS_OF = Kind("the ids of vectors", begins_with(rb'"?id"?(,"?error"?)?\r?\n'), (".csv",))


@dataclass(frozen=True)
class EmbeddingSummary:
    """Summary of an embedding.

    Parameters
    ----------
    rows, unreadable : int
    members : int
        Networks, whose vectors stand side by side.
    embedding, features : int
        Numbers per row: of the networks, and of fingerprint and descriptors.
    out, map : str
        Files; `map` is "" without one.
    """

    rows: int
    unreadable: int
    members: int
    embedding: int
    features: int
    out: str
    map: str = ""


def embed(
    runs: Sequence[Path],
    data: Data,
    out: Path,
    *,
    fingerprint: bool = False,
    descriptors: bool = False,
    map_file: Path | None = None,
    backend: str = "auto",
    device: int = 0,
    cuda: CudaConfig | None = None,
    csv: CsvOptions | None = None,
    quiet: bool = False,
    say: Say = lambda line: None,
) -> EmbeddingSummary:
    """Write a vector for each row of `data`: the values that enter the output layer of each network, side by side.

    Parameters
    ----------
    runs : sequence of Path
    data : Path, GraphSet or list of str
        As for `gcnbatch.inference.ensemble.infer`.
    out : Path
        ``.parquet`` or ``.csv`` with ids; ``.npy`` with the ids in a file ``.ids.csv`` beside it.
    fingerprint, descriptors : bool
        Also counts of circular fragments, and RDKit's descriptors.
    map_file : Path or None
        Page with a two-dimensional map of the networks' vectors.
    backend, device, cuda
        Backend, GPU and CUDA options.
    csv : CsvOptions or None
    quiet : bool
        No progress.
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        When runs, data or outputs cannot be used or do not match.
    """
    read = [*runs, *([data] if isinstance(data, Path) else [])]
    target = outputs.check(out, VECTORS, read)
    of_ids = outputs.check(out.with_suffix(IDS), IDS_OF, read) if target.path.suffix.lower() == ".npy" else None
    of_map = None if map_file is None else outputs.check(map_file, MAP, read, "--map")
    if target.path.suffix.lower() == tables.PARQUET:
        tables.check_parquet(str(out))
    wholes = load_wholes(runs, say)
    members = [model for one in wholes for model in one.models]
    header = members[0].header
    if header.level == "node":
        raise InputError(str(runs[0]), "predicts nodes of a graph", "a model of graphs")
    features = _features(header, fingerprint, descriptors)
    networks, choice, options = [*map(embedder, members)], BackendChoice(backend, device, cuda), csv or CsvOptions()
    wholes = [one.on(choice.fastest) for one in wholes]
    blocks, smiles, each, predicted = list[RowBlock](), list[str](), list[Float32](), list[NDArray[np.floating]]()
    with open_input(data, members, options, say) as source, counter(source.n_graphs, " graphs", quiet=quiet) as bar:
        for part in source.parts:
            own = [one.outputs(choice, part.source(*one.input_form)) for one in networks]
            if features:
                own.append(_of_molecules(part, features, options.processes))
            blocks.append(block := part.block())
            each.append(block.spread(np.concatenate(own, axis=1, dtype=np.float32)))
            if of_map is not None:
                predicted.append(found_together(wholes, choice, part.source).outputs)
                smiles += part.smiles() or [""] * len(block.places)
            bar.update(part.rows)
    rows, vectors = RowBlock.joined(blocks), np.concatenate(each)
    names = graph_feature_names(features) if features else ()
    width = vectors.shape[1] - len(names)
    known = None if of_map is None else _drawable(rows, vectors[:, :width])
    _write(target, of_ids, rows, vectors, [*(f"e{place}" for place in range(width)), *names])
    if of_map is not None and known is not None:
        _draw(of_map, header, rows, known, smiles, vectors[:, :width], np.concatenate(predicted), say)
    if unreadable := len(rows.errors or ()):
        say(f"{counted(unreadable, 'row')} could not be read")
    written = "" if map_file is None else str(map_file)
    return EmbeddingSummary(len(vectors), unreadable, len(members), width, len(names), str(out), written)


def _features(header: Header, fingerprint: bool, descriptors: bool) -> FeaturizerOptions | None:
    """Return which features of molecules to add, None for none: the fingerprint of the model, if it has one."""
    if not fingerprint and not descriptors:
        return None
    if not is_molecular(header.featurizer):
        got = "a run that was not trained on a set made from SMILES"
        raise InputError("--fingerprint, --descriptors", got, "a model of molecules")
    options = FeaturizerOptions.from_header(header.featurizer)
    kinds = (options.fingerprints or (MORGAN,)) if fingerprint else ()
    return replace(options, fingerprints=kinds, descriptors=RDKIT2D if descriptors else "", as_written=False)


def _of_molecules(part: Part, options: FeaturizerOptions, processes: int) -> Float32:
    """Return the features (M, D) of the molecules that could be read."""
    smiles = part.smiles()
    if smiles is None:
        raise InputError("--fingerprint, --descriptors", "data without SMILES", "molecules")
    found = np.full((len(smiles), len(graph_feature_names(options))), np.nan, np.float32)
    for arrays in featurize(smiles, options, processes=processes):
        assert arrays.graph_features is not None
        found[arrays.rows] = arrays.graph_features.dense()
    return found


def _write(out: Output, of_ids: Output | None, rows: RowBlock, vectors: Float32, names: Sequence[str]) -> None:
    about: dict[str, Any] = {"id": [*map(str, rows.ids)]} | ({"error": rows.reasons()} if rows.errors else {})
    if of_ids is not None:
        with fileio.atomic_path(out) as temporary, temporary.open("wb") as stream:
            np.save(stream, vectors)
        tables.write(of_ids, about)
        return
    tables.write(out, about | dict(zip(names, vectors.T, strict=True)))


def _drawable(rows: RowBlock, vectors: Float32) -> Int64:
    """Return which of the readable rows have finite vectors; refuse a map of fewer than 3."""
    known = np.flatnonzero(np.isfinite(vectors[rows.places]).all(axis=1))
    if len(known) < 3:
        raise InputError("--map", counted(len(known), "row"), "at least 3")
    return known


def _draw(
    out: Output,
    header: Header,
    rows: RowBlock,
    known: Int64,
    smiles: Sequence[str],
    vectors: Float32,
    outputs: NDArray[np.floating],
    say: Say,
) -> None:
    """Write the map of at most MOST_POINTS of the `known` rows; `smiles` and `outputs` are of readable rows."""
    if len(known) > MOST_POINTS:
        say(f"the map shows {MOST_POINTS:,} rows of {len(known):,}, evenly drawn")
        known = known[np.linspace(0, len(known) - 1, MOST_POINTS).round().astype(np.int64)]
    places, values = rows.places[known], outputs[known].astype(np.float64)
    colours: list[Colouring] = []
    if rows.y is not None:
        measured = rows.y[places]
        y = measured.astype(np.float64)
        targets = np.where(y < 0, np.nan, y) if header.target == "multiclass" else y
        colours += [Colouring(f"{name}, target", of) for name, of in zip(header.task_names, targets.T, strict=True)]
        error = errors_of(header, measured, np.arange(len(known)), values)
        colours.append(Colouring("error", error.astype(np.float64)))
    named = zip(output_names(header), values.T, strict=True)
    colours += [Colouring(f"{name}, prediction", of) for name, of in named]
    ids, shown = [str(rows.ids[row]) for row in places.tolist()], [smiles[row] for row in known.tolist()]
    fileio.write_text(out, render(header.name, Points.of(vectors[places], ids, shown), colours))
