from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.mixture import lapack

X = np.random.default_rng(0).normal(size=(40, 60))
MATRIX = np.asfortranarray(X @ X.T)


@pytest.mark.numerical
def test_factors_and_inverses_are_those_of_numpy() -> None:
    found = lapack.factor(MATRIX.copy("F"))
    expected = np.linalg.cholesky(MATRIX)
    np.testing.assert_allclose(np.tril(found), expected, rtol=1e-9, atol=1e-9)
    assert np.array_equal(np.triu(found, 1), np.triu(MATRIX, 1))
    inverse = lapack.invert_triangle(found.copy("F"))
    np.testing.assert_allclose(np.tril(inverse) @ expected, np.eye(40), atol=1e-9)
    inverse = lapack.invert_factored(found)
    np.testing.assert_allclose(np.tril(inverse), np.tril(np.linalg.inv(MATRIX)), rtol=1e-8, atol=1e-10)
    assert inverse is found


def test_what_lapack_cannot_do_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="dpotrf fails at row 3"):
        lapack.factor(np.diag([1.0, 1.0, -1.0, 1.0]).copy("F"))
    for wrong in (MATRIX.astype(np.float32), np.ones((3, 4)), np.ones((4, 4))[::2, ::2]):
        with pytest.raises(ValueError, match="takes float64 in the order of Fortran"):
            lapack.factor(wrong)
