"""Parameters: their layout and initial values."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest

from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.model.gcn import build
from gcnbatch.model.parameters import ALIGN, ParameterLayout, ParameterSpec
from tests.builders import build_graphset

CONFIG = ChemGCNConfig(widths=(5, 40), dense=(7,), head=(3,))
HEADER = build_graphset(n_features=9, n_channels=3).header


@pytest.fixture
def layout() -> ParameterLayout:
    return build(CONFIG, HEADER).layout()


@pytest.mark.parametrize("trainable", [True, False])
def test_parameters_are_contiguous_and_aligned_to_128_bytes(layout: ParameterLayout, trainable: bool) -> None:
    slots = [layout.slots[name] for name in layout.names(trainable)]
    assert slots[0].start == 0
    for slot, following in pairwise(slots):
        assert following.start % ALIGN == 0
        assert slot.stop <= following.start < slot.stop + ALIGN
    size = layout.n_trainable if trainable else layout.n_buffers
    assert slots[-1].stop <= size < slots[-1].stop + ALIGN
    assert all(slot.spec.trainable == trainable for slot in slots)


def test_fill_writes_only_the_named_parameters(layout: ParameterLayout) -> None:
    flat = layout.fill({"conv1.weight": 2.0, "output.bias": -1.0})
    assert (flat.dtype, flat.shape) == (np.float32, (layout.n_trainable,))
    for name in layout.names(trainable=True):
        slot = layout.slots[name]
        expected = {"conv1.weight": 2.0, "output.bias": -1.0}.get(name, 0.0)
        np.testing.assert_array_equal(flat[slot.start : slot.stop], expected)
    everything = layout.fill(dict.fromkeys(layout.names(trainable=True), 1.0))
    assert everything.sum() == layout.count()


def test_the_number_of_parameters_follows_from_the_architecture(layout: ParameterLayout) -> None:
    convolutions = 9 * 3 * 5 + 3 * 5 + 5 * 3 * 40 + 3 * 40
    norms = 2 * 5 + 2 * 40
    dense = (40 * 7 + 7) + (7 * 3 + 3) + (3 * HEADER.n_outputs + HEADER.n_outputs)
    assert layout.count() == convolutions + norms + dense


def test_names_are_unique() -> None:
    spec = ParameterSpec("w", (2,), "zeros")
    with pytest.raises(AssertionError, match="w"):
        ParameterLayout([spec, spec])


def test_weights_start_within_glorots_limits_and_fill_them(layout: ParameterLayout) -> None:
    for name, value in layout.initial(0).items():
        spec = layout.slots[name].spec
        assert (value.dtype, value.shape) == (np.float32, spec.shape)
        if name.endswith(".weight"):
            limit = np.sqrt(6 / sum(spec.fans))
            assert np.abs(value).max() <= np.float32(limit)
            if prod(spec.shape) > 100:
                assert np.abs(value).max() > 0.95 * limit
                assert abs(value.mean()) < 0.2 * limit
                assert value.std() == pytest.approx(limit / np.sqrt(3), rel=0.2)
        else:
            np.testing.assert_array_equal(value, 1.0 if name.endswith((".gamma", ".running_var")) else 0.0)


def test_glorots_fans_are_those_of_one_channel(layout: ParameterLayout) -> None:
    assert layout.slots["conv1.weight"].spec.fans == (9, 5)
    assert layout.slots["conv1.weight"].spec.shape == (9, 15)


def test_initial_values_depend_on_seed_and_name_alone(layout: ParameterLayout) -> None:
    other = build(CONFIG.model_copy(update={"dense": (), "head": (8, 3)}), HEADER).layout()
    one, same, different = layout.initial(5), other.initial(5), layout.initial(6)
    for name in ("conv1.weight", "conv2.weight"):
        np.testing.assert_array_equal(one[name], same[name])
        assert not np.array_equal(one[name], different[name])
    assert not np.array_equal(one["conv1.weight"].ravel()[:20], one["conv2.weight"].ravel()[:20])


def test_only_weights_decay() -> None:
    for config, header in ((CONFIG, HEADER), (KipfConfig(), build_graphset(level="node", target="multiclass").header)):
        for name, slot in build(config, header).layout().slots.items():
            assert slot.spec.decays == name.endswith(".weight")
