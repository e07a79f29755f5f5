"""Fit the mixture without its network to MoleculeACE or TDC's ADMET sets and print a JSON row for each set.

    python benchmarks/mixture.py FOLDER CACHE [--sets CHEMBL1862_Ki ...] [--jobs 2] [--test]

FOLDER holds MoleculeACE's ``NAME.csv.gz`` (columns smiles, y, split) or TDC's ``NAME.train_val.csv.gz`` and
``NAME.test.csv.gz`` (columns Drug, Y). Features are kept in CACHE. All choices are made by out-of-fold figures of the
training rows; test rows are read with --test alone. Equal canonical SMILES are copies of a molecule.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from gcnbatch import environment, metrics
from gcnbatch.mixture import Molecules, Problem, fit_members, mix

METRICS = {
    "caco2_wang": "mae",
    "lipophilicity_astrazeneca": "mae",
    "ppbr_az": "mae",
    "vdss_lombardo": "spearman",
    "clearance_microsome_az": "spearman",
    "bbb_martins": "roc_auc",
    "hia_hou": "roc_auc",
    "herg": "roc_auc",
    "dili": "roc_auc",
    "cyp2c9_substrate_carbonmangels": "pr_auc",
    "cyp2d6_veith": "pr_auc",
}


class Rows(NamedTuple):
    """Molecules of a set, their targets (n, 1), canonical SMILES, and which are training rows."""

    molecules: Molecules
    y: np.ndarray
    names: np.ndarray
    train: np.ndarray


def main() -> None:
    """Fit every set and print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--test", action="store_true")
    given = parser.parse_args()
    names = given.sets or sorted({path.name.partition(".")[0] for path in given.folder.glob("*.csv.gz")})
    rows = []
    for name in names:
        rows.append(fit(name, load(name, given.folder, given.cache), given.jobs, given.test))
        print(json.dumps(rows[-1]), flush=True)
    figures = ("kernel", "trees", "mixture", "test_kernel", "test_trees", "test_mixture")
    means = {key: round(float(np.mean([row[key] for row in rows])), 4) for key in figures if key in rows[0]}
    print(json.dumps({"sets": len(rows), **means, "commit": environment.commit()}))


def fit(name: str, rows: Rows, jobs: int, test: bool) -> dict[str, Any]:
    """Return the figures of a set."""
    metric = METRICS.get(name, "rmse")
    train, others = np.flatnonzero(rows.train), np.flatnonzero(~rows.train)
    target = "binary" if metric in ("roc_auc", "pr_auc") else "regression"
    sign = -1 if metrics.higher_is_better(metric) else 1

    def error(y: np.ndarray, outputs: np.ndarray) -> float | None:
        found = metrics.score(metric, target, y, outputs)
        return None if found is None else sign * found

    began, cpu = time.monotonic(), time.process_time()
    problem = Problem.of(target, rows.y[train], rows.names[train], error, jobs=jobs)
    members, left_out = fit_members(problem, rows.molecules[train])
    mixed = mix(problem, members, left_out)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    row: dict[str, Any] = {"set": name, "metric": metric, "rows": len(train), "transform": members.transforms.kinds[0]}
    row |= {share.member: round(sign * share.error, 4) for share in mixed.table}
    row["mixture"] = round(sign * error(problem.y, mixed.left_out), 4)
    row["weights"] = mixed.mixture.weights[:, 0].round(2).tolist()
    row["seconds"], row["cpu_seconds"] = round(seconds, 1), round(cpu, 1)
    row["megabytes"] = round(sum(array.nbytes for array in mixed.mixture.arrays().values()) / 1e6, 2)
    if test:
        outputs = members.predict(rows.molecules[others], jobs)
        found = {**outputs, "mixture": mixed.mixture.combine(outputs)}
        row |= {f"test_{key}": round(sign * error(rows.y[others], of), 4) for key, of in found.items()}
        row["test_mean"] = round(sign * error(rows.y[others], sum(outputs.values()) / len(outputs)), 4)
    return row


def load(name: str, folder: Path, cache: Path) -> Rows:
    """Return a set, with features from the cache or made for it."""
    kept = cache / f"{name}.npz"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(kept, **features(list(table(name, folder))))
    with np.load(kept) as found:
        counts = [sparse.csr_array(found[key].astype(np.uint8)) for key in ("morgan", "pairs")]
        return Rows(Molecules.of(counts, found["descriptors"]), found["y"][:, None], found["names"], found["train"])


def table(name: str, folder: Path) -> Any:
    """Yield SMILES, target and whether it is a training row."""
    parts = {"": None} if (folder / f"{name}.csv.gz").exists() else {".train_val": True, ".test": False}
    for part, is_train in parts.items():
        with gzip.open(folder / f"{name}{part}.csv.gz", "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if is_train is None:
                    yield row["smiles"], float(row["y"]), row["split"] == "train"
                else:
                    yield row["Drug"], float(row["Y"]), is_train


def features(rows: list[tuple[str, float, bool]]) -> dict[str, np.ndarray]:
    """Return arrays of all molecules that RDKit reads."""
    from rdkit import Chem, RDLogger
    from rdkit.Chem import Descriptors, rdFingerprintGenerator

    RDLogger.DisableLog("rdApp.*")
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    pairs = rdFingerprintGenerator.GetAtomPairGenerator(fpSize=2048)
    read = [(molecule, y, train) for smiles, y, train in rows if (molecule := Chem.MolFromSmiles(smiles))]
    molecules = [molecule for molecule, _, _ in read]
    described = [list(Descriptors.CalcMolDescriptors(molecule, missingVal=np.nan).values()) for molecule in molecules]

    def counts(generator: Any) -> np.ndarray:
        return np.stack([np.minimum(generator.GetCountFingerprintAsNumPy(of), 255) for of in molecules]).astype(
            np.uint8
        )

    return {
        "morgan": counts(morgan),
        "pairs": counts(pairs),
        "descriptors": np.clip(np.array(described, np.float64), -1e30, 1e30).astype(np.float32),
        "names": np.array([Chem.MolToSmiles(of) for of in molecules]),
        "y": np.array([y for _, y, _ in read]),
        "train": np.array([train for _, _, train in read]),
    }


if __name__ == "__main__":
    main()
