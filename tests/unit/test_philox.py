"""The counter layout that every kernel must repeat, pinned by an independent Philox4x64-10."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import chi2

from gcnbatch import philox

WORD = 2**64 - 1


def philox4x64_10(counter: list[int], key: list[int]) -> list[int]:
    """Return the block of a counter: ten rounds of two 64 x 64 bit products; each raises the key by Weyl constants."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(c0 * 0xD2E7470EE14C6C93, 2**64)
        high1, low1 = divmod(c2 * 0xCA5A826395121157, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & WORD, k1 + 0xBB67AE8584CAA73B & WORD
    return [c0, c1, c2, c3]


def one_element(seed: int, purpose: str, epoch: int, step: int, element: int) -> int:
    """Draw one element alone, as a kernel's thread does, by the layout in the module's docstring."""
    block, value = divmod(element, 8)
    words = philox4x64_10([block + 1, step, epoch, 0], [seed, philox.purpose_key(purpose)])
    return words[value // 2] >> 32 * (value % 2) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ([0] * 4, [0] * 2, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ([WORD] * 4, [WORD] * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    ],
    ids=["zeros", "ones"],
)
def test_the_independent_philox_gives_the_published_vectors(counter: list[int], key: list[int], want: str):
    """Known answers of the authors' library, Random123."""
    assert [f"{word:016x}" for word in philox4x64_10(counter, key)] == want.split()


def test_numpy_increments_the_counter_before_its_first_block():
    raw = np.random.Philox(key=[3, 4], counter=[10, 20, 30, 40]).random_raw(8)
    assert raw.tolist() == philox4x64_10([11, 20, 30, 40], [3, 4]) + philox4x64_10([12, 20, 30, 40], [3, 4])


@pytest.mark.parametrize(
    ("seed", "purpose", "epoch", "step"),
    [(0, "conv1.dropout", 0, 0), (42, "conv2.dropout", 3, 17), (2**63 - 1, "späť", 999_999, 2**40)],
)
def test_bits_follow_the_documented_layout(seed: int, purpose: str, epoch: int, step: int):
    drawn = philox.bits(seed, purpose, epoch, step, 35)
    assert drawn.dtype == np.uint32
    assert drawn.tolist() == [one_element(seed, purpose, epoch, step, element) for element in range(35)]


def test_purpose_key_is_crc_32():
    assert philox.purpose_key("123456789") == 0xCBF43926  # the check value of CRC-32


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 64])
def test_elements_do_not_depend_on_the_count(count: int):
    assert_array_equal(philox.bits(1, "a", 0, 0, count), philox.bits(1, "a", 0, 0, 100)[:count])


@pytest.mark.parametrize("first", [1, 7, 8, 13, 90])
def test_elements_do_not_depend_on_the_first(first: int):
    assert_array_equal(philox.bits(1, "a", 2, 3, 10, first), philox.bits(1, "a", 2, 3, 100)[first : first + 10])


def test_every_part_of_the_key_changes_the_bits():
    drawn = [
        tuple(philox.bits(seed, purpose, epoch, step, 4))
        for seed in (0, 1, 2)
        for purpose in ("a", "b")
        for epoch in (0, 1, 2)
        for step in (0, 1, 2)
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(shift: int):
    """Pearson's statistic over the 256 values of a byte exceeds the bound once in a million generators."""
    count = 1 << 18
    drawn = philox.bits(5, "uniform", 0, 0, count) >> shift & 255
    expected = count / 256
    statistic = ((np.bincount(drawn, minlength=256) - expected) ** 2 / expected).sum()
    assert chi2.isf(1 - 1e-6, 255) < statistic < chi2.isf(1e-6, 255)


def test_generator_and_bits_use_different_counters():
    raw = philox.generator(9, "weights", epoch=4).bit_generator.random_raw(4)
    assert raw.tolist() == philox4x64_10([1, 0, 4, 1], [9, philox.purpose_key("weights")])


def test_generator_repeats_and_depends_on_its_key():
    first = philox.generator(1, "shuffle", epoch=2).permutation(50).tolist()
    assert first == philox.generator(1, "shuffle", epoch=2).permutation(50).tolist()
    others = [(2, "shuffle", 2), (1, "weights", 2), (1, "shuffle", 3)]
    assert all(first != philox.generator(seed, name, epoch).permutation(50).tolist() for seed, name, epoch in others)
