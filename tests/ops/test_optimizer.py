"""Gradient clipping and update rules compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

NORMS = [1e-3, 1.0, 1e3]


def clip(gradients, max_norm: float) -> Problem:
    def run(ops, gradients):
        ops.clip_norm(gradients, max_norm)
        return {"gradients": gradients}

    return Problem(run, {"gradients": gradients})


def adam(case: Case) -> Problem:
    def run(ops, parameters, gradients, m, v, weight_decay, l2):
        for step in range(1, 4):
            ops.adam_step(parameters, gradients, m, v, step, 1e-2, 0.9, 0.999, 1e-8, weight_decay, l2)
        return {"parameters": parameters, "m": m, "v": v}

    inputs = optimizer_inputs(case)
    zeros = np.zeros_like(inputs["parameters"])
    return Problem(run, {**inputs, "m": zeros, "v": zeros})


def sgd(case: Case) -> Problem:
    def run(ops, parameters, gradients, velocity, weight_decay, l2):
        for _ in range(3):
            ops.sgd_step(parameters, gradients, velocity, 1e-2, 0.9, weight_decay, l2)
        return {"parameters": parameters, "velocity": velocity}

    inputs = optimizer_inputs(case)
    return Problem(run, {**inputs, "velocity": np.zeros_like(inputs["parameters"])})


def optimizer_inputs(case: Case):
    """Draw parameters of a dense layer of the case's widths; every other one decays, and some have no gradient.

    Gradients are from 1e-9 to 1; small ones reveal a wrong epsilon in Adam.
    """
    rng, count = case.rng(), case.F * case.P
    every_other = (np.arange(count) % 2).astype(np.float32)
    return {
        "parameters": normal(rng, count),
        "gradients": (normal(rng, count) * (rng.random(count) < 0.8) * 10.0 ** rng.uniform(-9, 0, count)).astype("f4"),
        "weight_decay": np.float32(0.1) * every_other,
        "l2": np.float32(5e-4) * (1 - np.roll(every_other, count // 2)),
    }


PROBLEMS = {
    **{f"clip at {norm:g}": lambda case, norm=norm: clip(normal(case.rng(), case.N * case.F), norm) for norm in NORMS},
    "Adam": adam,
    "SGD": sgd,
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_optimizers(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


@pytest.mark.parametrize("max_norm", NORMS)
def test_clipping_leaves_zeros(backend: Adapter, max_norm: float):
    assert_parity(backend, clip(np.zeros(31, np.float32), max_norm))


def adam_with(**changed):
    """Return Adam with changed arguments; a change is a value or a function of the right one."""
    names = ("step", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "l2")

    def method(right, parameters, gradients, m, v, *numbers):
        given = dict(zip(names, numbers, strict=True))
        new = {name: change(given[name]) for name, change in changed.items()}
        right(parameters, gradients, m, v, *(given | new).values())

    return mutant(adam_step=method)


def without_correction(right, parameters, gradients, m, v, step, *numbers):
    right(parameters, gradients, m, v, 10**6, *numbers)


def sgd_with_decay_in_velocity(right, parameters, gradients, velocity, rate, momentum, weight_decay, l2):
    right(parameters, gradients, velocity, rate, momentum, 0 * l2, l2 + weight_decay)


MUTANTS = {
    "Adam: no bias correction": ("Adam", mutant(adam_step=without_correction)),
    "Adam: a step late": ("Adam", adam_with(step=lambda step: step + 1)),
    "Adam: no epsilon": ("Adam", adam_with(epsilon=lambda epsilon: 1e-12)),
    "Adam: epsilon a hundredth too large": ("Adam", adam_with(epsilon=lambda epsilon: 1.01 * epsilon)),
    "Adam: no decay": ("Adam", adam_with(weight_decay=np.zeros_like)),
    "Adam: no L2": ("Adam", adam_with(l2=np.zeros_like)),
    "Adam: decay of the neighbour": ("Adam", adam_with(weight_decay=lambda decay: np.roll(decay, 1))),
    "Adam: float16 gradients": (
        "Adam",
        mutant(adam_step=lambda right, parameters, gradients, *rest: right(parameters, half(gradients), *rest)),
    ),
    "SGD: decay through momentum": ("SGD", mutant(sgd_step=sgd_with_decay_in_velocity)),
    "SGD: float16 gradients": (
        "SGD",
        mutant(sgd_step=lambda right, parameters, gradients, *rest: right(parameters, half(gradients), *rest)),
    ),
    "clip: a layer's bias missing": (
        "clip at 1",
        mutant(clip_norm=lambda right, gradients, max_norm: np.multiply(
            gradients, np.float32(max_norm / np.linalg.norm(gradients[31:].astype("f8"))), out=gradients)),
    ),
    "clip: never": ("clip at 1", mutant(clip_norm=lambda right, gradients, max_norm: None)),
    "clip: always": (
        "clip at 1000",
        mutant(clip_norm=lambda right, gradients, max_norm: np.multiply(
            gradients, np.float32(max_norm / np.linalg.norm(gradients)), out=gradients)),
    ),
}  # fmt: skip


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    problem, wrong = MUTANTS[name]
    assert_rejected(wrong, PROBLEMS[problem](case))
