"""Makes the inputs of the ONNX model beside this file from SMILES, and predicts with it.

    python model.py CCO 'c1ccccc1'
    python model.py < molecules.smi

The output is a CSV. `inputs` needs RDKit and NumPy alone, `predict` also onnxruntime.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import Descriptors, rdFingerprintGenerator, rdPartialCharges
from rdkit.Chem.MolStandardize import rdMolStandardize

OPTIONS: dict[str, Any] = json.loads(r"""{}""")
BATCH = 256
DESCRIPTORS = Descriptors.descList if OPTIONS.get("descriptors") else []
MOST_ATOMS, UNUSUAL = 128, re.compile(r"[*~$<>]|\[(?:\d|H|#)")  # beyond them, Ipc is RDKit's
STEREO = re.compile(r"[@/\\]")
MAP, HYDROGEN = re.compile(r":\d+\]"), re.compile(r"\[\d*(?:H|#1)")
OTHER_CENTRES = re.compile(r"@(?:TH|AL|SP|TB|OH)\d+")
TURNED = {"STEREOZ": "Z", "STEREOCIS": "Z", "STEREOE": "E", "STEREOTRANS": "E"}
TYPES = {Chem.BondType.DOUBLE: 1, Chem.BondType.TRIPLE: 2}


# ------------------------------------------------------------------------------------------------ molecules


def read(smiles: str) -> Any:
    """Return the molecule of a SMILES in normal form, its atoms in the order of the graph; None where there is none."""
    molecule = _parsed(smiles)
    standardize = OPTIONS["largest_fragment"] or OPTIONS["neutralize"]
    if molecule is not None and standardize:
        molecule = _standardized(molecule)
    if molecule is None or not molecule.GetNumAtoms() or 0 < OPTIONS["max_nodes"] < molecule.GetNumAtoms():
        return None
    name = Chem.MolToSmiles(molecule)
    if not OPTIONS["again"]:
        return Chem.RenumberAtoms(molecule, json.loads(molecule.GetProp("_smilesAtomOutputOrder").replace(",]", "]")))
    return Chem.MolFromSmiles(name) if name != smiles or standardize or HYDROGEN.search(smiles) else molecule


def _parsed(text: str) -> Any:
    if len(text.split()) > 1:
        return None
    if "[" in text:
        text = OTHER_CENTRES.sub("", MAP.sub("]", text))
        if HYDROGEN.search(text):
            return _without_hydrogens(text)
    if OPTIONS["stereo"]:
        return Chem.MolFromSmiles(text)
    molecule: Any = Chem.MolFromSmiles(text, sanitize=False)
    if molecule is None:
        return None
    if STEREO.search(text):
        Chem.RemoveStereochemistry(molecule)
    flags = Chem.SanitizeMol(molecule, Chem.SanitizeFlags.SANITIZE_ALL, True)
    return molecule if flags == Chem.SanitizeFlags.SANITIZE_NONE else None


def _without_hydrogens(text: str) -> Any:
    molecule: Any = Chem.MolFromSmiles(text)
    if molecule is None:
        return None
    settings: Any = Chem.RemoveHsParameters()
    settings.removeDummyNeighbors = True
    if not OPTIONS["stereo"]:
        Chem.RemoveStereochemistry(molecule)
        settings.removeDefiningBondStereo = True
    for atom in molecule.GetAtoms():
        if atom.GetAtomicNum() == 0:
            atom.SetNoImplicit(True)
    return Chem.RemoveHs(molecule, settings)


def _standardized(molecule: Any) -> Any:
    if OPTIONS["largest_fragment"]:
        molecule = rdMolStandardize.LargestFragmentChooser().choose(molecule)
    if not OPTIONS["neutralize"]:
        return molecule
    kekulized = Chem.Mol(molecule)
    Chem.Kekulize(kekulized, clearAromaticFlags=True)
    uncharger = rdMolStandardize.Uncharger()
    found = (_parsed(Chem.MolToSmiles(uncharger.uncharge(form))) for form in (molecule, kekulized))
    return next((one for one in found if one is not None), molecule)


# ------------------------------------------------------------------------------------------------ graphs


def inputs(smiles: Iterable[str], columns: Any = None) -> dict[str, Any]:
    """Return the inputs of the model by name.

    Parameters
    ----------
    smiles : iterable of B str
    columns : float (B, D') or None
        Your own features of the molecules, those of ``OPTIONS["columns"]``; None: all are missing.

    Raises
    ------
    ValueError
        For a molecule that cannot be read.
    """
    molecules = []
    for text in smiles:
        molecule = read(text.strip())
        if molecule is None:
            raise ValueError(f"cannot read {text!r}")
        molecules.append(molecule)
    return arrays(molecules, columns)


def arrays(molecules: Sequence[Any], columns: Any = None) -> dict[str, Any]:
    """Return the inputs of molecules that `read` returned."""
    counts = [molecule.GetNumAtoms() for molecule in molecules]
    edges: list[Any] = []
    weights: list[Any] = []
    for molecule, first in zip(molecules, np.cumsum([0, *counts]).tolist(), strict=False):
        of_molecule, of_own = _edges(molecule)
        edges += [entries + first * OPTIONS["channels"] for entries in of_molecule]
        weights += of_own
    starts = np.cumsum(counts) - counts
    found = {
        "x": np.concatenate([_atoms(molecule) for molecule in molecules]),
        "edges": _padded(edges, 0, np.int64),
        "weights": _padded(weights, 0, np.float32),
        "nodes": _padded([first + np.arange(count) for first, count in zip(starts, counts, strict=True)], -1, np.int64),
    }
    if OPTIONS["features"]:
        shape = len(molecules), len(OPTIONS["columns"])
        parts = [np.full(shape, np.nan) if columns is None else np.asarray(columns).reshape(shape)]
        parts.append(np.array([_features(molecule) for molecule in molecules]))
        found["features"] = np.concatenate(parts, axis=1).astype(np.float32)
    return found


def _atoms(molecule: Any) -> Any:
    """Return the features (N, F) of the atoms."""
    symbols, kinds = OPTIONS["symbols"], OPTIONS["hybridisations"]
    n_symbols = len(symbols) + 1  # the last one is any other element
    known = {Chem.GetPeriodicTable().GetAtomicNumber(symbol): place for place, symbol in enumerate(symbols)}
    x = np.zeros((molecule.GetNumAtoms(), n_symbols + 11 + 7 + 2 + len(kinds) + 1 + 5), np.float32)
    rings, further = molecule.GetRingInfo(), []
    for row, atom in zip(x, molecule.GetAtoms(), strict=True):
        hydrogens, kind = atom.GetTotalNumHs(), str(atom.GetHybridization())
        row[known.get(atom.GetAtomicNum(), len(symbols))] = 1
        row[n_symbols + min(atom.GetDegree(), 10)] = 1
        row[n_symbols + 11 + min(hydrogens, 6)] = 1
        rest = row[n_symbols + 18 :]
        rest[:2] = atom.GetFormalCharge(), atom.GetNumRadicalElectrons()
        rest[2 : 2 + len(kinds)] = [kind == one for one in kinds]
        rest[2 + len(kinds)] = atom.GetIsAromatic()
        rest[3 + len(kinds) + min(hydrogens, 4)] = 1
        if OPTIONS["extended"]:
            number, turn = atom.GetIdx(), atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else ""
            count = rings.NumAtomRings(number)
            sizes = [bool(count) and rings.IsAtomInRingOfSize(number, size) for size in OPTIONS["ring_sizes"]]
            further.append([count > 0, count, *sizes, turn == "R", turn == "S", atom.GetMass() / 100])
    parts = [x, np.array(further, np.float32).reshape(len(x), -1), _walks(molecule)]
    return np.concatenate(parts, axis=1)


def _walks(molecule: Any) -> Any:
    """Return the probabilities (N, columns) that a walk of 2, 3, … steps returns to its atom."""
    adjacency = Chem.GetAdjacencyMatrix(molecule).astype(float)
    step = walked = adjacency / np.maximum(adjacency.sum(axis=1), 1)[:, None]
    found = np.zeros((len(step), OPTIONS["walk"]), np.float32)
    for column in range(OPTIONS["walk"]):
        walked = walked @ step
        found[:, column] = walked.diagonal()
    return found


def _edges(molecule: Any) -> tuple[list[Any], list[Any]]:
    """Return the entries ``source * channels + channel`` of the edges into each atom, ascending, and their weights."""
    n, channels, several = molecule.GetNumAtoms(), OPTIONS["channels"], OPTIONS["bond_channels"]
    found = np.zeros((n, n, channels), bool)  # destination, source, channel
    properties = OPTIONS["bond_properties"]
    base = channels - len(properties)
    for bond in molecule.GetBonds():
        kind = 3 if bond.GetIsAromatic() else TYPES.get(bond.GetBondType(), 0)
        has = {"ring": bond.IsInRing(), "conjugated": bond.GetIsConjugated()}
        turn = TURNED.get(str(bond.GetStereo()), "")
        of_bond = [base + place for place, name in enumerate(properties) if has.get(name, turn == name)]
        for channel in [kind if several else 0, *of_bond]:
            i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            found[i, j, channel] = found[j, i, channel] = True
    if OPTIONS["self_loops"]:
        found[np.arange(n), np.arange(n), 4 if several else 0] = True
    degrees = found.sum(axis=1, dtype=float)  # (N, channels)
    flat = found.reshape(n, -1)
    edges = [np.flatnonzero(row) for row in flat]
    weights = [np.ones(len(own), np.float32) for own in edges]
    if OPTIONS["normalized"]:
        all_degrees = degrees.ravel()
        scales = [degrees[row, own % channels] * all_degrees[own] for row, own in enumerate(edges)]
        weights = [(1 / np.sqrt(scale)).astype(np.float32) for scale in scales]
    return edges, weights


def _padded(rows: list[Any], fill: int, kind: Any) -> Any:
    found = np.full((len(rows), max([1, *map(len, rows)])), fill, kind)
    for target, row in zip(found, rows, strict=True):
        target[: len(row)] = row
    return found


# ------------------------------------------------------------------------------------------------ whole molecules


def _features(molecule: Any) -> Any:
    """Return descriptors, NaN where RDKit cannot compute one, and counts of fragments."""
    values = {name: _descriptor(function, molecule) for name, function in DESCRIPTORS}
    if DESCRIPTORS and _is_usual(molecule):
        values["Ipc"], values["AvgIpc"] = _information(molecule)
    counts = [_generator(kind).GetCountFingerprintAsNumPy(molecule) for kind in OPTIONS["fingerprints"]]
    found = np.clip(np.array([*values.values()], float), -1e30, 1e30)
    return np.concatenate([np.where(abs(found) < 1e-12, 0, found), *counts])  # sums that cancel are 0


def _descriptor(function: Any, molecule: Any) -> float:
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):
        return float("nan")


def _is_usual(molecule: Any) -> bool:
    if molecule.GetNumAtoms() > MOST_ATOMS or UNUSUAL.search(Chem.MolToSmiles(molecule)):
        return False
    try:
        rdPartialCharges.ComputeGasteigerCharges(molecule, 12, True)
    except ValueError:
        return False
    return bool(np.isfinite([atom.GetDoubleProp("_GasteigerCharge") for atom in molecule.GetAtoms()]).all())


def _information(molecule: Any) -> tuple[float, float]:
    """Return Ipc and AvgIpc from eigenvalues: RDKit's recurrence loses all digits of a molecule of 80 atoms."""
    values = np.linalg.eigvalsh(Chem.GetAdjacencyMatrix(molecule).astype(float))
    half = len(values) // 2
    low, high, middle = values[:half], values[::-1][:half], values[half : len(values) - half]
    sums, products = np.append(low + high, middle), np.append(low * high, 0 * middle)
    polynomial = np.zeros(2 * len(sums) + 3)
    polynomial[2] = 1  # after two zeros, which stand for what precedes the first coefficient
    for end, total, product in zip(range(5, len(polynomial) + 1, 2), sums, products, strict=False):
        polynomial[2:end] += product * polynomial[: end - 2] - total * polynomial[1 : end - 1]
    share = abs(polynomial) / abs(polynomial).sum()
    average = -(share * np.log2(np.where(share > 0, share, 1))).sum()
    return float(abs(polynomial).sum() * average), float(average)


@cache
def _generator(kind: str) -> Any:
    radius, size = OPTIONS["radius"], OPTIONS["size"]
    if kind == "atompair":
        return rdFingerprintGenerator.GetAtomPairGenerator(fpSize=size)
    atoms = rdFingerprintGenerator.GetMorganFeatureAtomInvGen() if kind == "morgan-feature" else None
    return rdFingerprintGenerator.GetMorganGenerator(
        radius=radius, fpSize=size, includeChirality=kind == "morgan-chiral", atomInvariantsGenerator=atoms
    )


# ------------------------------------------------------------------------------------------------ predictions


def predict(smiles: Iterable[str], model: Path) -> Iterator[tuple[str, list[float] | None]]:
    """Yield each SMILES with its outputs, then their standard deviations if the model has these; None: unreadable."""
    import onnxruntime

    session, texts = onnxruntime.InferenceSession(model), iter(smiles)
    while block := list(islice(texts, BATCH)):
        molecules = [read(text) for text in block]
        known = [molecule for molecule in molecules if molecule is not None]
        found = iter(np.concatenate(session.run(None, arrays(known)), axis=1).tolist() if known else [])
        for text, molecule in zip(block, molecules, strict=True):
            yield text, None if molecule is None else next(found)


def main() -> None:
    """Print the predictions of the arguments, or of the lines on standard input, as CSV."""
    rdBase.DisableLog("rdApp.*")
    lines = sys.argv[1:] or (line.split()[0] for line in sys.stdin if line.strip())
    table = csv.writer(sys.stdout)
    table.writerow(["smiles", *OPTIONS["outputs"]])
    for text, values in predict(lines, Path(__file__).with_suffix(".onnx")):
        if values is None:
            print(f"cannot be predicted: {text}", file=sys.stderr)
        table.writerow([text, *(values if values is not None else [""] * len(OPTIONS["outputs"]))])


if __name__ == "__main__":
    main()
