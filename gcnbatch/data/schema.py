"""The HDF5 format "gcnbatch", version 1: names, types, limits and the header. ``datasets/FORMAT.md`` specifies it.

The reader, the writer and the importers share this module; it reads no file.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT_NAME = "gcnbatch"
FORMAT_VERSION = 1

MAX_CHUNK_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 20
MAX_FEATURIZER_DEPTH = 8  # of lists and objects within each other
MAX_ID_BYTES = 1024
MAX_OUTPUTS = 4096  # tasks or classes: a model has a column of weights for each
MAX_FEATURES = 1 << 18  # a model has a row of weights for each
MAX_GRAPH_NODES = 2**31 - 1

Level = Literal["graph", "node"]
Target = Literal["binary", "multiclass", "regression"]


class Header(BaseModel):
    """Meaning of the arrays of a data set. Stored as JSON in ``/header``.

    ``task_names`` has one name per column of the targets (K); a multiclass set has one task and names its classes.
    ``n_features`` is F; ``feature_names`` is empty or has F names. ``normalized``: edge weights already are
    D^-1/2 A D^-1/2 per channel. ``featurizer`` has the options that converted molecules into this set, so that
    predictions can repeat them. ``graph_feature_names`` has a name per feature of whole graphs (D); the last
    ``graph_feature_counts`` of them are counts of fragments. ``label_names`` has, for a binary task whose source
    had labels other than 0 and 1, the texts that became 0 and 1. ``units`` has the unit of each regression task whose
    source gave one. ``source`` is free text by key: the origin of the data, its sha256.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    level: Level
    target: Target
    task_names: tuple[str, ...] = Field(min_length=1, strict=False)
    class_names: tuple[str, ...] = Field(default=(), strict=False)
    label_names: dict[str, Annotated[tuple[str, str], Field(strict=False)]] = Field(default_factory=dict)
    units: dict[str, str] = Field(default_factory=dict)
    n_features: int = Field(ge=1, le=2**31 - 1)
    feature_names: tuple[str, ...] = Field(default=(), strict=False)
    channel_names: tuple[str, ...] = Field(min_length=1, max_length=256, strict=False)
    normalized: bool = False
    group_kind: str = ""
    graph_feature_names: tuple[str, ...] = Field(default=(), strict=False)
    graph_feature_counts: int = Field(default=0, ge=0, le=2**31 - 1)
    featurizer: dict[str, Any] | None = None
    source: dict[str, str] = Field(default_factory=dict)

    @property
    def n_channels(self) -> int:
        """C, the number of adjacency channels."""
        return len(self.channel_names)

    @property
    def n_outputs(self) -> int:
        """K, the model's outputs: tasks, or classes for a multiclass set."""
        return len(self.class_names) if self.target == "multiclass" else len(self.task_names)

    @property
    def fingerprints(self) -> list[slice]:
        """Columns of each fingerprint of counts among the features of whole graphs; its first name ends in ``=0``."""
        return _fingerprints(self.graph_feature_names, self.graph_feature_counts)

    @property
    def n_joined(self) -> int:
        """Number of features of whole graphs that a network reads, the first ones: of fingerprints, the first alone."""
        return self.fingerprints[0].stop if self.graph_feature_counts else len(self.graph_feature_names)


@lru_cache(maxsize=8)  # a server asks for each molecule
def _fingerprints(names: tuple[str, ...], counts: int) -> list[slice]:
    first = len(names) - counts
    starts = [place for place in range(first, len(names)) if place == first or names[place].endswith("=0")]
    return [slice(*ends) for ends in pairwise([*starts, len(names)])]


MURCKO = "murcko scaffold"  # Header.group_kind of imported molecules
UNLABELLED = "unlabelled"  # the task of a set that was made without targets

# Types of the targets by their kind, the written one first: files of earlier versions have values of 32 bits.
TARGET_TYPES: dict[Target, tuple[str, ...]] = {"binary": ("f4",), "multiclass": ("i4",), "regression": ("f8", "f4")}

# Every array a file may hold: path -> (types, lengths). A type is a NumPy kind and size; "S" is fixed-length UTF-8.
# `gcnbatch.data.checks` knows the lengths by name; rows are graphs, or nodes of a node-level set.
Rule = tuple[tuple[str, ...], tuple[str, ...]]
ARRAYS: dict[str, Rule] = {
    "header": (("S",), ("texts",)),
    "graphs/node_ptr": (("i8",), ("graphs + 1",)),
    "graphs/edge_ptr": (("i8",), ("graphs + 1",)),
    "graphs/group": (("i4",), ("graphs",)),
    "graphs/time": (("f8",), ("graphs",)),
    "graphs/features": (("f4",), ("graphs", "measured features")),
    "graphs/counts/indptr": (("i8",), ("graphs + 1",)),
    "graphs/counts/indices": (("i4",), ("counts",)),
    "graphs/counts/data": (("u4",), ("counts",)),
    "graphs/smiles_ptr": (("i8",), ("graphs + 1",)),
    "graphs/smiles": (("u1",), ("letters",)),
    "nodes/x": (("u1", "i1", "f2", "f4"), ("nodes", "features")),
    "nodes/x_csr/indptr": (("i8",), ("nodes + 1",)),
    "nodes/x_csr/indices": (("i4",), ("entries",)),
    "nodes/x_csr/data": (("f4",), ("entries",)),
    "edges/src": (("i4",), ("edges",)),
    "edges/dst": (("i4",), ("edges",)),
    "edges/channel": (("u1",), ("edges",)),
    "edges/weight": (("f4",), ("edges",)),
}
for _folder in ("graphs", "nodes"):
    ARRAYS[f"{_folder}/id"] = (("S",), ("rows",))
    ARRAYS[f"{_folder}/y"] = (("f4", "f8", "i4"), ("rows", "outputs"))
    ARRAYS[f"{_folder}/censored"] = (("i1",), ("rows", "outputs"))
    ARRAYS[f"{_folder}/sample_weight"] = (("f4",), ("rows",))
SPLIT_ARRAY: Rule = (("i8",), ("part",))
SPLIT_PARTS = ("train", "valid", "test")
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
GRAPH_FEATURES = "graphs/features"
COUNTS = ("graphs/counts/indptr", "graphs/counts/indices", "graphs/counts/data")  # all or none
SMILES = ("graphs/smiles_ptr", "graphs/smiles")  # both or none
GROUPS = ("graphs", "graphs/counts", "nodes", "nodes/x_csr", "edges", "splits")


def row_folder(level: Level) -> str:
    """Return the group whose rows have ids and targets: ``graphs`` or ``nodes``."""
    return "nodes" if level == "node" else "graphs"


def array_rule(name: str) -> Rule | None:
    """Return (types, lengths) of the array at this path, or None when the format knows no such array."""
    folder, _, part = name.rpartition("/")
    if folder.startswith("splits/") and part in SPLIT_PARTS:
        return SPLIT_ARRAY
    return ARRAYS.get(name)
