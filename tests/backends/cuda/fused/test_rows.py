"""Structs of numbers that the host writes into arrays of a plan."""

from __future__ import annotations

import numpy as np

from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.shared.arena import ByteCounter
from gcnbatch.backends.cuda.fused.shared.epoch import PROGRESS, RATE, BegunEpoch, StagedEpoch
from gcnbatch.backends.cuda.fused.wide.jobs import chunk_table
from gcnbatch.config_sections import TrainConfig
from gcnbatch.runners.fused_state import rates_of_steps


def test_chunks_cover_their_jobs() -> None:
    even = {"start": 0, "P": 4, "columns": 4, "packed_columns": 4, "step": 1, "right_stride": 4}
    even |= {"parts": 60, "unit": 16}
    chunks = geometry.chunks([{**even, "count": 8}, {**even, "count": 400}], widest=4)
    assert chunks["job"].tolist() == [0, *[1] * (len(chunks) - 1)]
    assert (chunks["width"] == 4).all()
    assert (chunks["lanes"] == geometry.LANES).all()
    assert chunks["first"][1:].tolist() == list(range(0, 400, 4 * geometry.UPDATE_THREADS // geometry.LANES))


def test_wide_chunks_cover_rows_and_columns() -> None:
    chunks = chunk_table([(40, 64), (1, 10)], rows=32, columns=32)
    assert chunks["job"].tolist() == [0, 0, 0, 0, 1]
    assert list(zip(chunks["row"].tolist(), chunks["column"].tolist(), strict=True)) == [
        (0, 0),
        (0, 32),
        (32, 0),
        (32, 32),
        (0, 0),
    ]


def test_an_epoch_begins_with_its_steps_and_rates() -> None:
    plan = StagedEpoch(ByteCounter(1), steps=3, graphs=5)
    host = np.full((3, plan.array.size), -1, np.int32)
    train = TrainConfig(beta1=0.9, beta2=0.99)
    members = {
        member: BegunEpoch(
            1, 2 + member, 7 + member, rates_of_steps(train, updates=member, steps=2, first=0, learning_rate=rate)
        )
        for member, rate in ((0, 0.5), (2, 0.25))
    }
    plan.begin(host, 1, members)
    size = PROGRESS["FIELDS"]
    for member, rate in ((0, 0.5), (2, 0.25)):
        expected = {
            "NEXT": 1,
            "N": 0,
            "B": 0,
            "STEP": 0,
            "FIRST": 1,
            "END": 2 + member,
            "EPOCH": 7 + member,
            "TURN": 0,
        }
        assert {name: int(host[member, at]) for name, at in PROGRESS.items() if at < size} == expected
        first = host[member, size:][: RATE.size // 4].view(RATE.dtype)[0]
        names, number = ("learning_rate", "correction1", "correction2"), 1 + member
        wanted = [rate, 1 / (1 - 0.9**number), 1 / (1 - 0.99**number)]
        np.testing.assert_allclose([first[name] for name in names], wanted, rtol=1e-5)
    assert (host[1] == -1).all()  # a member that is idle
