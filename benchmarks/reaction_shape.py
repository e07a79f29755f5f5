"""Write a data set of Reaction100's size: molecules drawn at random from another set, with random classes.

    python benchmarks/reaction_shape.py tox21.h5 reaction_shape.h5 [--graphs 75477]
    python benchmarks/training_step.py configs/reaction100.toml reaction_shape.h5 --backends fused,batched

Reaction100, with 75,477 graphs, is not public. The labels are random and serve for timing only. An epoch of a random
80/10/10 split has 604 steps of 100 graphs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from shared import options

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset

CLASSES = tuple(f"class {number}" for number in range(1, 101))


def drawn(molecules: GraphSet, n_graphs: int, seed: int = 0) -> GraphSet:
    """Return `n_graphs` of these molecules, drawn with replacement, each with a random class."""
    rng = np.random.default_rng(seed)
    found = molecules.take(rng.integers(molecules.n_graphs, size=n_graphs))
    about = {"name": "reaction_shape", "target": "multiclass", "task_names": ("class",), "class_names": CLASSES}
    return replace(
        found,
        header=found.header.model_copy(update=about),
        y=rng.integers(len(CLASSES), size=(n_graphs, 1)).astype(np.int32),
        ids=np.arange(n_graphs).astype(str),
        splits={},
        groups=None,
    )


def main() -> None:
    """Write the set."""
    parser = options(__doc__)
    parser.add_argument("molecules", help="a data set of molecules, such as Tox21 with at most 50 atoms")
    parser.add_argument("out")
    parser.add_argument("--graphs", type=int, default=75_477)
    given = parser.parse_args()
    with Dataset(given.molecules) as dataset:
        write_graphset(given.out, drawn(dataset.load(), given.graphs))


if __name__ == "__main__":
    main()
