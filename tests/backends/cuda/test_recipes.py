"""Variants of the model, frozen layers and warm starts on a GPU: agreement with the reference, bits that stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.registry import open_backend
from gcnbatch.lab.backend_comparison.parity import Parity
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.model.gcn import freeze_layers
from gcnbatch.runners.choice import make_runner
from tests.backends.cuda.models import CUDA, FOUR_STEPS, TRAINING
from tests.training.runs import configure, write_set

pytestmark = pytest.mark.gpu

VARIANTS: dict[str, tuple[str, ...]] = {
    "residual, jumping knowledge, three readouts": (
        *("model.widths=[33,33,33]", "model.residual=true", "model.jumping_knowledge=cat"),
        *("model.readout=sum,mean,max", "model.dense=[31]"),
    ),
    "layer norm, virtual node, feed-forward network": (
        *("model.widths=[31,31,31]", "model.jumping_knowledge=max"),
        *("model.norm=layer", "model.virtual_node=true", "model.ffn=true"),
        *("model.dropout=0.25", "train.clip_norm=0.5"),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CUDA)
def test_variants_of_the_model_agree_with_the_reference(tmp_path: Path, name: str, variant: str) -> None:
    write_set(tmp_path / "data.h5", n_channels=2)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *VARIANTS[variant])) as workload:
        agreement = Parity(workload, FOUR_STEPS).check(open_backend(name))
    assert agreement.passed, agreement.worst


@pytest.mark.parametrize("name", CUDA)
def test_frozen_layers_keep_their_bits_and_the_others_agree(tmp_path: Path, name: str) -> None:
    write_set(tmp_path / "data.h5")
    assignments = ("model.widths=[33,64]", "model.dropout=0.25", "train.weight_decay=1e-2", "train.clip_norm=0.5")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *assignments)) as work:
        task = replace(work.task, model=freeze_layers(work.task.model, ["conv1"]))
        assert Parity(replace(work, task=task), FOUR_STEPS).check(open_backend(name)).passed
        runner = make_runner(open_backend(name), [task])
        before = runner.state()
        runner.begin_epoch([MemberEpoch(0, work.batches, 0.01)])
        for index in range(len(work.batches)):
            runner.step(index)
        after = runner.state()
        runner.close()
    for parameter in task.model.frozen_parameters():
        np.testing.assert_array_equal(after[parameter], before[parameter])
    assert not np.array_equal(after["conv2.weight"], before["conv2.weight"])


@pytest.mark.parametrize("name", TRAINING)
def test_a_warm_start_begins_with_the_given_bits(tmp_path: Path, name: str) -> None:
    write_set(tmp_path / "data.h5")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[64,64]")) as work:
        other = work.task.model.layout().initial(seed=9)
        runner = make_runner(open_backend(name), [replace(work.task, initial={"conv1.weight": other["conv1.weight"]})])
        state = runner.state()
        runner.close()
    np.testing.assert_array_equal(state["conv1.weight"], other["conv1.weight"])
    assert not np.array_equal(state["conv2.weight"], other["conv2.weight"])
