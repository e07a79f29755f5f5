"""Structs that the host writes as rows of an array, one number per field, have their fields in the host's order."""

from __future__ import annotations

import re

import numpy as np

from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.config_sections import TrainConfig
from gcnbatch.resources import cuda_sources
from gcnbatch.runners.fused_state import rates_of_steps


def test_chunks_are_rows_of_update_chunk() -> None:
    layout = declared("fused/narrow/update.cuh").layout("UpdateChunk")
    even = {"start": 0, "P": 4, "columns": 4, "packed_columns": 4, "step": 1, "right_stride": 4}
    rows = geometry.chunks([{**even, "count": 8}, {**even, "count": 400}], widest=4)
    chunks = rows.view(layout.dtype)[:, 0]
    assert chunks["job"].tolist() == [0, *[1] * (len(rows) - 1)]
    assert (chunks["width"] == 4).all()
    assert chunks["first"][1:].tolist() == list(range(0, 400, 4 * geometry.UPDATE_THREADS // geometry.LANES))


def test_rates_are_rows_of_rate() -> None:
    text = (cuda_sources() / "dense" / "optimizer.cuh").read_text(encoding="utf-8")
    body = re.sub("//.*", "", re.search(r"struct __align__\(16\) Rate \{(.*?)\};", text, re.DOTALL)[1])
    fields = ["learning_rate", "correction1", "correction2", "label_weight"]
    assert re.findall(r"\w+", body.replace("float", "")) == fields
    train = TrainConfig(beta1=0.9, beta2=0.99)
    (rate,) = rates_of_steps(train, updates=0, steps=1, first=0, learning_rate=0.5)
    np.testing.assert_allclose(rate, [0.5, 1 / (1 - 0.9), 1 / (1 - 0.99)], rtol=1e-5)
