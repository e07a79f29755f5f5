"""Learning rates: each schedule against its explicit formula."""

from __future__ import annotations

import math

import pytest

from gcnbatch.config_sections import TrainConfig
from gcnbatch.training.position import Plateau, learning_rate


def rates(epochs: int = 10, **options: object) -> list[float]:
    train = TrainConfig(epochs=epochs, learning_rate=0.8, **options)  # type: ignore[arg-type]
    return [learning_rate(train, epoch, Plateau()) for epoch in range(epochs)]


def test_constant_keeps_the_rate() -> None:
    assert rates() == [0.8] * 10


def test_step_reduces_the_rate_every_schedule_every_epochs() -> None:
    assert rates(7, schedule="step", schedule_every=3, schedule_factor=0.5) == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]


def test_step_stops_at_the_floor() -> None:
    assert rates(4, schedule="step", schedule_every=1, schedule_factor=0.25, schedule_floor=0.1) == [0.8, 0.2, 0.1, 0.1]


def test_cosine_goes_from_the_start_towards_the_floor() -> None:
    found = rates(4, schedule="cosine", schedule_floor=0.2)
    assert found == pytest.approx([0.8, 0.5 + 0.3 * math.sqrt(0.5), 0.5, 0.5 - 0.3 * math.sqrt(0.5)])
    assert rates(1, schedule="cosine") == [0.8]


def test_the_last_epoch_of_a_cosine_trains() -> None:
    assert rates(2, schedule="cosine") == pytest.approx([0.8, 0.4])


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "plateau"])
def test_a_floor_above_the_start_does_not_raise_the_rate(schedule: str) -> None:
    assert rates(4, schedule=schedule, schedule_every=1, schedule_floor=5.0) == pytest.approx([0.8] * 4)


def test_plateau_reduces_the_rate_after_schedule_every_epochs_without_gain() -> None:
    train = TrainConfig(
        learning_rate=0.8, schedule="plateau", schedule_every=2, schedule_factor=0.5, schedule_floor=0.15
    )
    plateau, found = Plateau(), []
    for improved in (True, False, True, False, False, False, False, False, False, True):
        plateau.observe(improved, train)
        found.append(learning_rate(train, 0, plateau))
    assert found == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.15, 0.15])
