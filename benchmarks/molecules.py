"""Measure molecules from text to predictions, this tree and another one in turn: featuriser, import, infer.

usage: python benchmarks/molecules.py featurise CSV [--other TREE] [--runs N] [--scaffolds]
       python benchmarks/molecules.py import CSV [--other TREE] [--runs N]
       python benchmarks/molecules.py infer RUN CSV [--other TREE] [--runs N]
       python benchmarks/molecules.py memory RUN CSV
       python benchmarks/molecules.py enumerate CSV ROWS OUT.csv

`--other` is a checkout of another commit, for example of ``git worktree add ../old COMMIT``. Each measurement is a new
process; processes of the two trees alternate, so that other load on the machine meets both. Prints a JSON row: medians
of processor time (with child processes) and wall time, and their ratio to the other tree. `memory` prints the largest
resident memory of the main process and of a worker. `enumerate` writes ROWS rows of random SMILES of the molecules in
CSV, to make large inputs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FEATURISE = """
import sys, time
from gcnbatch.data.featurizer import FeaturizerOptions, featurize_chunk
smiles = sys.stdin.read().split("\\n")
options = FeaturizerOptions()
featurize_chunk(smiles[:64], 0, options, sys.argv[1] == "1")
begin = time.process_time(), time.perf_counter()
for first in range(0, len(smiles), 256):
    featurize_chunk(smiles[first : first + 256], first, options, sys.argv[1] == "1")
print(time.process_time() - begin[0], time.perf_counter() - begin[1])
"""


def smiles_of(path: Path) -> list[str]:
    """Return the column `smiles` of a CSV file."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
        rows = list(csv.DictReader(stream))
    return [row["smiles"].strip() for row in rows]


def timed(tree: Path, command: Sequence[str], text: str = "") -> tuple[float, float]:
    """Run a command with the package of `tree`; return processor and wall time of the process and its children."""
    before, begin = os.times(), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, cwd=tree, input=text, text=True, capture_output=True, check=True)
    if command[1] == "-c":
        cpu, wall = map(float, done.stdout.split())
        return cpu, wall
    wall, after = time.perf_counter() - begin, os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system, wall


def compare(tree: Path | None, commands: Iterator[Sequence[str]], text: str, molecules: int, runs: int) -> dict:
    """Alternate the two trees; return medians per tree and ratios of this tree to the other."""
    trees = {"this": ROOT} | ({"other": tree.resolve()} if tree else {})
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    for _ in range(runs):
        for name, place in trees.items():
            found[name].append(timed(place, next(commands), text))
    row: dict[str, object] = {"molecules": molecules, "runs": runs}
    for name, times in found.items():
        cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
        row[name] = {
            "cpu_us_a_molecule": round(cpu / molecules * 1e6, 1),
            "seconds": round(wall, 2),
            "molecules_per_second": round(molecules / wall),
        }
    if tree:
        pairs = list(zip(found["this"], found["other"], strict=True))
        row["cpu_ratio"] = round(statistics.median(a[0] / b[0] for a, b in pairs), 3)
        row["wall_ratio"] = round(statistics.median(a[1] / b[1] for a, b in pairs), 3)
    return row


def command_lines(arguments: argparse.Namespace, folder: Path) -> Iterator[Sequence[str]]:
    """Yield the command of each measurement."""
    number = 0
    while True:
        out, number = folder / f"{number}", number + 1
        if arguments.what == "featurise":
            yield [sys.executable, "-c", FEATURISE, str(int(arguments.scaffolds))]
        elif arguments.what == "import":
            source = str(arguments.paths[0].resolve())
            command = [sys.executable, "-m", "gcnbatch", "data", "import", "smiles", source]
            yield [*command, "-o", f"{out}.h5", "--on-bad-row", "skip"]
        else:
            run, source = (str(path.resolve()) for path in arguments.paths)
            yield [sys.executable, "-m", "gcnbatch", "infer", run, source, "-o", f"{out}.csv", "--quiet"]


def memory(run: Path, source: Path) -> dict:
    """Return the largest resident memory (MiB) of ``gcnbatch infer`` and of its workers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gcnbatch", "infer", str(run), str(source), "-o", f"{folder}/out.csv", "-q"]
        begin = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        most = {"main": 0, "worker": 0}
        while process.poll() is None:
            first = children(str(process.pid))
            workers = [*first, *(forked for one in first for forked in children(one))]
            for kind, numbers in (("main", [str(process.pid)]), ("worker", workers)):
                most[kind] = max([most[kind], *map(peak_kib, numbers)])
            time.sleep(0.5)
        seconds = time.perf_counter() - begin
        with open(f"{folder}/out.csv", encoding="utf-8") as rows:
            count = sum(1 for _ in rows) - 1
    return {
        "rows": count,
        "seconds": round(seconds, 1),
        "main_mib": most["main"] // 1024,
        "worker_mib": most["worker"] // 1024,
    }


def children(process: str) -> list[str]:
    """Return the processes that the main thread of a process has started and not outlived."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    return listed.read_text().split() if listed.exists() else []


def peak_kib(process: str) -> int:
    """Return the largest resident memory of a process so far, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def enumerate_smiles(source: Path, rows: int, out: Path) -> None:
    """Write random SMILES of the molecules in `source`, one after the other, until there are `rows`."""
    from rdkit import Chem, rdBase

    rdBase.DisableLog("rdApp.*")
    molecules = [molecule for text in smiles_of(source) if (molecule := Chem.MolFromSmiles(text)) is not None]
    with out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("name", "smiles"))
        for row in range(rows):
            writer.writerow((f"M{row}", Chem.MolToSmiles(molecules[row % len(molecules)], doRandom=True)))


def main() -> None:
    """Read the command line and print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("featurise", "import", "infer", "memory", "enumerate"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scaffolds", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "enumerate":
        enumerate_smiles(arguments.paths[0], int(str(arguments.paths[1])), arguments.paths[2])
        return
    if arguments.what == "memory":
        row = memory(*arguments.paths)
    else:
        smiles = smiles_of(arguments.paths[-1])
        text = "\n".join(smiles) if arguments.what == "featurise" else ""
        with tempfile.TemporaryDirectory() as folder:
            row = compare(arguments.other, command_lines(arguments, Path(folder)), text, len(smiles), arguments.runs)
    about = {"what": arguments.what, "file": arguments.paths[-1].name, "python": platform.python_version()}
    print(json.dumps(about | row))


if __name__ == "__main__":
    main()
