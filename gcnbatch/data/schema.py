"""The HDF5 format "gcnbatch", version 1: names, types and the header. The written specification is ``datasets/FORMAT.md``.

This module holds what the reader, the writer and the importers must agree on; it reads no file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT_NAME = "gcnbatch"
FORMAT_VERSION = 1

Level = Literal["graph", "node"]
Target = Literal["binary", "multiclass", "regression"]


class Header(BaseModel):
    """What the arrays of a data set mean. Stored as JSON in ``/header``.

    ``task_names`` has one name per column of the targets (K); a multiclass set has one task and names its classes.
    ``n_features`` is F; ``feature_names`` is empty or has F names. ``normalized`` says that edge weights already hold
    D^-1/2 A D^-1/2 per channel. ``featurizer`` holds the options that turned molecules into this set, so that
    predictions can repeat them. ``source`` is free text per key: where the data came from, its sha256.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    level: Level
    target: Target
    task_names: tuple[str, ...] = Field(min_length=1, strict=False)
    class_names: tuple[str, ...] = Field(default=(), strict=False)
    n_features: int = Field(ge=1)
    feature_names: tuple[str, ...] = Field(default=(), strict=False)
    channel_names: tuple[str, ...] = Field(min_length=1, max_length=256, strict=False)
    normalized: bool = False
    group_kind: str = ""
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


# Every array a file may hold: path -> (allowed dtypes as NumPy kind+size codes, rank). "S" is fixed-length UTF-8 bytes.
ARRAYS: dict[str, tuple[tuple[str, ...], int]] = {
    "header": (("S",), 1),
    "graphs/node_ptr": (("i8",), 1),
    "graphs/edge_ptr": (("i8",), 1),
    "graphs/id": (("S",), 1),
    "graphs/group": (("i4",), 1),
    "graphs/y": (("f4", "i4"), 2),
    "nodes/x": (("u1", "i1", "f2", "f4"), 2),
    "nodes/x_csr/indptr": (("i8",), 1),
    "nodes/x_csr/indices": (("i4",), 1),
    "nodes/x_csr/data": (("f4",), 1),
    "nodes/id": (("S",), 1),
    "nodes/y": (("f4", "i4"), 2),
    "edges/src": (("i4",), 1),
    "edges/dst": (("i4",), 1),
    "edges/channel": (("u1",), 1),
    "edges/weight": (("f4",), 1),
}
SPLIT_PARTS = ("train", "valid", "test")
GROUPS = ("graphs", "nodes", "nodes/x_csr", "edges", "splits")
