"""Names of nodes: compact storage of whole numbers and texts, and lookup by graph and name."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from gcnbatch.data.importers import names
from gcnbatch.data.importers.names import NameList, finder, whole_numbers

KINDS = {
    "row numbers": str,
    "from 1, shuffled": lambda number: str(number * 37 % 100 + 1),
    "sparse": lambda number: str(number * 10**12 + 5),
    "texts": lambda number: f"ä{number}\n",
    "texts with NUL": lambda number: f"ä\0{number}",
    "long texts": lambda number: f"{number}".rjust(40, "x"),
    "with zeros before": lambda number: f"{number:03}",
    "of both kinds": lambda number: str(number) if number % 3 else f"n{number}",
    "of more than 18 digits": lambda number: str(10**18 + number),
}


def listed(texts: list[str], block: int = 7) -> names.Names:
    found = NameList()
    for first in range(0, len(texts), block):
        found.append(texts[first : first + block])
    return found.names(np.arange(len(texts)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[100], [40, 0, 60]])
@pytest.mark.parametrize("one_hash", [False, True])
def test_exactly_the_known_names_are_found(
    monkeypatch: pytest.MonkeyPatch, kind: str, sizes: list[int], one_hash: bool
) -> None:
    if one_hash and kind != "texts with NUL":  # names are told apart even then
        monkeypatch.setattr(names, "hash", lambda _: 1, raising=False)
    monkeypatch.setattr(names, "_BLOCK", 9)
    texts = [KINDS[kind](number) for size in sizes for number in range(size)]
    held, node_ptr = listed(texts), np.concatenate([[0], np.cumsum(sizes)])
    assert list(map(str, held.tolist())) == texts
    found, graph = finder(held, node_ptr), np.repeat(np.arange(len(sizes)), sizes)
    assert found.find(graph, texts).tolist() == list(range(100))
    assert found.find(graph[::-1], texts[::-1]).tolist() == list(range(100))[::-1]
    if (numbers := whole_numbers(texts)) is not None:
        assert found.find(graph, numbers).tolist() == list(range(100))
    strangers = ["", "-1", "+1", "01", "1.0", "1_0", "1e0", "\u0661", "5\n6", "x", "9" * 18, "9" * 19]
    none = [name for name in strangers if name not in texts]
    assert (found.find(np.zeros(len(none), np.int64), none) == -1).all()
    assert (found.find(np.zeros(2, np.int64), np.array([10**17, 98_765])) == -1).all()
    assert found.repeated() is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_repeated_name_is_reported(kind: str) -> None:
    texts = [KINDS[kind](number) for number in range(30)]
    twice = listed([*texts[:20], *texts[5:9], *texts[20:], texts[2]])
    assert finder(twice, np.array([0, 35])).repeated() == 20
    assert finder(twice, np.array([0, 22, 35])).repeated() == 21 - 1
    assert finder(twice, np.array([0, 20, 35])).repeated() is None


def test_only_plain_whole_numbers_are_stored_as_integers() -> None:
    assert whole_numbers(["0", "17", "9" * 18]).tolist() == [0, 17, 10**18 - 1]
    for text in ("", "-1", "+1", "01", " 1", "1.0", "1_0", "1e0", "\u0661", "5\n6", "x", "9" * 19):
        assert whole_numbers(["0", text]) is None


def test_names_take_a_fraction_of_a_dictionary() -> None:
    for name, most in ((str, 25), (lambda number: f"atom{number}", 40)):
        tracemalloc.start()
        texts, blocks = NameList(), 50
        for first in range(0, 2_000 * blocks, 2_000):
            texts.append([name(number) for number in range(first, first + 2_000)])
        held = texts.names(np.arange(2_000 * blocks))
        kept = (held, finder(held, np.array([0, len(held)])))
        assert tracemalloc.get_traced_memory()[0] / len(kept[0]) < most
        tracemalloc.stop()
