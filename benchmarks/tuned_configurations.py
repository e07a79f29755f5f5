"""Search a configuration for each of MoleculeNet's sets and write it as configs/<set>_tuned.toml.

    python benchmarks/tuned_configurations.py TABLES FOLDER --sets freesolv,esol --trials 48 --jobs 4

The sets are searched at the same time, each with `--jobs` processes. FOLDER keeps the imported sets and the studies:
the same command goes on where it was stopped, and more trials extend the studies. A search uses no test row of the
configuration's split. The configuration's head has the commands that found it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from shared import options

from gcnbatch import environment, fileio
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import read_toml
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.lab.benchmark.suite import find_sets, load
from gcnbatch.resources import configs

SPACE = Path(__file__).with_name("moleculenet_space.toml")
FEATURES = "descriptors"  # of the suite


class Search(NamedTuple):
    """Splits to validate on, epochs and batch size of the trials; epochs of the configuration that is written.

    Small sets have noisy validation scores, so they have more splits. Classifiers are better on validation rows when
    they train twice as long; trials are short, so that a search has more of them.
    """

    splits: str
    epochs: int
    batch_size: int
    final_epochs: int


SEARCHES = {
    "freesolv": Search("--repeats 5", 100, 32, 100),
    "esol": Search("--repeats 5", 60, 32, 60),
    "lipo": Search("--repeats 2", 60, 64, 60),
    "bbbp": Search("--repeats 8", 20, 64, 40),
    "bace": Search("--repeats 8", 25, 64, 50),
    "clintox": Search("--repeats 8", 20, 64, 40),
    "tox21": Search("--folds 3 --set split.kind=scaffold", 30, 64, 50),
}
WRAP = " \\\n#       "


def main() -> None:
    """Search all sets at once, then write their configurations."""
    parser = options(__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SEARCHES))
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--backend", default="auto")
    given = parser.parse_args()
    tables = find_sets(load(), given.tables, given.sets.split(","))
    for name, table in tables.items():
        _import(name, table, given.folder / f"{name}.h5")
    with ThreadPoolExecutor(len(tables)) as threads:
        list(threads.map(lambda name: _search(name, given), tables))
    for name, table in tables.items():
        _write(name, table.name, given.folder / name)


def _import(name: str, table: Path, path: Path) -> None:
    one, suite = load().sets[name], load()
    columns: dict[str, Any] = {"smiles_column": one.smiles, "target_columns": list(one.targets)}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        import_smiles(table, path, suite.features[FEATURES], **columns, skip_bad_rows=True, name=name)


def _arguments(name: str) -> list[str]:
    search = SEARCHES[name]
    return [
        *("molecules", "--data", f"{name}.h5", "--space", f"benchmarks/{SPACE.name}", *search.splits.split()),
        *("--epochs", str(search.epochs), "--set", f"train.batch_size={search.batch_size}"),
    ]


def _search(name: str, given: argparse.Namespace) -> None:
    study = given.folder / name
    arguments = [argument.replace(f"benchmarks/{SPACE.name}", str(SPACE)) for argument in _arguments(name)]
    arguments[2] = str(given.folder / f"{name}.h5")
    begin = [*arguments, "--backend", given.backend, "-o", str(study)]
    command = ["--resume", str(study)] if (study / "study.json").exists() else begin
    limits = ["--trials", str(given.trials), *(["--minutes", str(given.minutes)] if given.minutes else [])]
    whole = [sys.executable, "-m", "gcnbatch", "tune", *command, *limits, "--jobs", str(given.jobs), "-q"]
    subprocess.run(whole, check=True)


def _write(name: str, table: str, study: Path) -> None:
    """Write the best trial's keys that differ from the defaults, under a comment with the study's commands.

    Numbers are rounded to three digits.
    """
    search, arguments = SEARCHES[name], " ".join(_arguments(name))
    trials = len((study / "trials.csv").read_text(encoding="utf-8").splitlines()) - 1
    best = resolve(read_toml(study / "best.toml")).model_dump(mode="json")
    best["train"]["epochs"] = search.final_epochs
    usual = Config().model_dump(mode="json")
    usual["model"].pop("kind")
    found = {
        part: {key: _rounded(value) for key, value in best[part].items() if value != usual[part].get(key)}
        for part in ("model", "train")
    }
    one = load().sets[name]
    columns = "".join(f' --target-columns "{target}"' for target in one.targets) if len(one.targets) == 1 else ""
    smiles = f" --smiles-column {one.smiles}" if one.smiles else ""
    head = [
        f"# ChemGCN on {one.title}, found on validation rows; commit {environment.commit()[:7]}.",
        f"#   gcnbatch data import smiles {table} -o {name}.h5 --bond-channels --atom-features extended86{WRAP}"
        f"--bond-properties ring,conjugated,stereo --descriptors rdkit2d --on-bad-row skip"
        + (f"{WRAP}{(smiles + columns).strip()}" if smiles + columns else ""),
        f"#   gcnbatch tune {arguments.replace(f' {search.splits}', f'{WRAP}{search.splits}')} --trials {trials}",
        *(
            [f"# {search.final_epochs} epochs are better on validation rows."]
            if search.final_epochs > search.epochs
            else []
        ),
        f"#   gcnbatch train configs/{name}_tuned.toml --data {name}.h5",
    ]
    tree = tomli_w.dumps({"name": f"{name}_tuned", **found})
    lists = re.sub(r"\[\n([^\]]*),\n\]", lambda match: f"[{' '.join(match[1].split())}]", tree)
    fileio.write_text(configs() / f"{name}_tuned.toml", "\n".join([*head, lists]))


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
