import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gcnbatch.reference.readout import readout, readout_backward
from tests.reference.numerical import assert_gradient

KINDS = pytest.mark.parametrize("kind", ["sum", "mean", "max"])
# Graphs of 2, 0 and 3 nodes; the second column of the last graph has its maximum twice.
H = np.array([[1.0, 5], [3, 5], [-1, -2], [-4, 0], [-4, 0]])
NODE_PTR = np.array([0, 2, 2, 5])


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("sum", [[4, 10], [0, 0], [-9, -2]]),
        ("mean", [[2, 5], [0, 0], [-3, -2 / 3]]),
        ("max", [[3, 5], [0, 0], [-1, 0]]),
    ],
)
def test_readout_by_hand(kind: str, want: list[list[float]]):
    assert_allclose(readout(H, NODE_PTR, kind)[0], want, rtol=1e-15)


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("sum", [[1, 2], [1, 2], [3, 6], [3, 6], [3, 6]]),
        ("mean", [[0.5, 1], [0.5, 1], [1, 2], [1, 2], [1, 2]]),
        ("max", [[0, 2], [1, 0], [3, 0], [0, 6], [0, 0]]),
    ],
)
def test_readout_backward_by_hand(kind: str, want: list[list[float]]):
    saved = readout(H, NODE_PTR, kind)[1]
    dr = np.array([[1.0, 2], [100, 100], [3, 6]])
    assert_allclose(readout_backward(dr, NODE_PTR, kind, saved), want, rtol=1e-15)


@KINDS
def test_readout_gradient(kind: str):
    rng = np.random.default_rng(0)
    h, dr, node_ptr = rng.normal(size=(6, 3)), rng.normal(size=(4, 3)), np.array([0, 1, 1, 4, 6])
    saved = readout(h, node_ptr, kind)[1]
    assert_gradient(lambda h: readout(h, node_ptr, kind)[0], h, dr, readout_backward(dr, node_ptr, kind, saved))


@KINDS
def test_readout_is_a_product_with_the_membership_of_one_graph(kind: str):
    h = np.random.default_rng(1).normal(size=(5, 4))
    want = {"sum": np.ones(5) @ h, "mean": np.ones(5) @ h / 5, "max": -np.sort(-h, axis=0)[0]}[kind]
    assert_allclose(readout(h, np.array([0, 5]), kind)[0], want[None], rtol=1e-13)


@KINDS
@pytest.mark.parametrize("n_graphs", [0, 2])
def test_readout_without_nodes(kind: str, n_graphs: int):
    node_ptr = np.zeros(n_graphs + 1, dtype=np.int64)
    r, saved = readout(np.zeros((0, 3)), node_ptr, kind)
    assert_array_equal(r, np.zeros((n_graphs, 3)))
    assert readout_backward(np.ones((n_graphs, 3)), node_ptr, kind, saved).shape == (0, 3)
