import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gcnbatch.reference.spmm import sddmm, spmm, spmm_backward
from tests.ops.cases import CASES, Case, build_adjacency
from tests.reference.numerical import assert_gradient


def contract_example():
    """Return the example of `gcnbatch.data.sparse.Adjacency`: channel 0 an edge 0→1, channel 1 the self-loops."""
    return build_adjacency(2, 2, np.array([0, 0, 1]), np.array([1, 0, 1]), np.array([0, 1, 1]), np.ones(3))


def test_adjacency_of_the_contract_example():
    forward = contract_example().forward
    dense = np.zeros((2, 4))
    dense[np.repeat([0, 1], np.diff(forward.indptr)), forward.indices] = forward.data
    assert_array_equal(dense, [[0, 1, 0, 0], [1, 0, 0, 1]])


def test_spmm_by_hand():
    h = np.array([[1.0, 10], [2, 20]])  # columns: channel 0, channel 1
    assert_array_equal(spmm(contract_example(), h), [[10], [1 + 20]])


def test_spmm_backward_by_hand():
    assert_array_equal(spmm_backward(contract_example(), np.array([[1.0], [5]])), [[5, 1], [0, 5]])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_spmm_is_the_sum_of_dense_products(case: Case):
    rng = case.rng()
    src, dst, channel = case.edge_list(rng)
    weight = rng.normal(size=len(src))
    dense = np.zeros((case.C, case.N, case.N))
    np.add.at(dense, (channel, dst, src), weight)
    adjacency = build_adjacency(case.N, case.C, src, dst, channel, weight)
    h, dy = rng.normal(size=(case.N, case.C * case.P)), rng.normal(size=(case.N, case.P))
    blocks = [slice(c * case.P, (c + 1) * case.P) for c in range(case.C)]
    want = sum(dense[c] @ h[:, block] for c, block in enumerate(blocks))
    assert_allclose(spmm(adjacency, h), want, rtol=1e-12, atol=1e-12)
    want = np.concatenate([dense[c].T @ dy for c in range(case.C)], axis=1)
    assert_allclose(spmm_backward(adjacency, dy), want, rtol=1e-12, atol=1e-12)


def test_spmm_gradient():
    case = Case("gradient", (3, 2), C=2, P=2)
    rng = case.rng()
    adjacency, h, dy = case.adjacency(rng).matrix, rng.normal(size=(5, 4)), rng.normal(size=(5, 2))
    assert_gradient(lambda h: spmm(adjacency, h), h, dy, spmm_backward(adjacency, dy))


def test_sddmm_by_hand():
    a, b = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 10, 100, 1000], [2, 20, 200, 2000]])
    assert_array_equal(sddmm(a, b, np.array([1, 0, 1]), np.array([0, 3, 3])), [43, 4200, 8600])


def test_sddmm_is_the_gradient_of_spmm_by_the_edges():
    case = Case("gradient", (3, 2), C=2, P=2)
    rng = case.rng()
    src, dst, channel = case.edge_list(rng)
    h, dy = rng.normal(size=(5, 4)), rng.normal(size=(5, 2))

    def product(weight):
        return spmm(build_adjacency(5, 2, src, dst, channel, weight), h)

    assert_gradient(product, rng.normal(size=len(src)), dy, sddmm(dy, h, dst, src * 2 + channel))
