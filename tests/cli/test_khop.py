"""``gcnbatch data khop`` through the program's entry point, on the host."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.data import synthetic
from gcnbatch.data.store import Dataset


def test_khop_shows_the_expected_size_and_prints_the_path(call, quick, tmp_path) -> None:
    out = tmp_path / "two.h5"
    code, printed, told = call(
        "data", "khop", quick, "-o", out, "--hops", 2, "--mode", "channels", "--backend", "cpu", "--values", "binary"
    )
    assert (code, printed) == (0, f"{out}\n")
    with Dataset(quick) as before, Dataset(out) as after:
        assert after.header.n_channels == before.header.n_channels + 1
        edges, more = int(before.edge_ptr[-1]), int(after.edge_ptr[-1]) - int(before.edge_ptr[-1])
    first, second = told.splitlines()
    expected = int(first.removeprefix("2 hops: about ").removesuffix(" edges").replace(",", ""))
    assert expected == pytest.approx(more, rel=0.15)
    assert second.startswith(f"{edges:,} edges become about ")


def test_khop_propagates_normalized_by_default(call, quick, tmp_path) -> None:
    made = {}
    for name, flags in {"default": [], "yes": ["--normalize"], "no": ["--no-normalize"]}.items():
        out = tmp_path / f"{name}.h5"
        assert call(
            "data", "khop", quick, "-o", out, "--hops", 2, "--mode", "propagated", "--backend", "cpu", *flags
        ) == (0, f"{out}\n", "")
        with Dataset(out) as dataset:
            made[name] = dataset.load().x
    np.testing.assert_array_equal(made["default"], made["yes"])
    assert not np.array_equal(made["default"], made["no"])


def test_khop_on_the_host_reports_a_device_that_was_given(call, quick, tmp_path) -> None:
    arguments = ("data", "khop", quick, "-o", tmp_path / "two.h5", "--hops", 1, "--mode", "propagated")
    _, _, told = call(*arguments, "--backend", "cpu", "--device", 1)
    assert told == "not used: --device; backend cpu computes on the host\n"


def test_khop_warns_of_large_growth_and_refuses_too_large_results(call, tmp_path) -> None:
    synthetic.write("citation", tmp_path / "net.h5", scale=0.2)
    arguments = (
        "data",
        "khop",
        tmp_path / "net.h5",
        "-o",
        tmp_path / "out.h5",
        "--mode",
        "channels",
        "--backend",
        "cpu",
    )
    code, _, told = call(*arguments, "--hops", 4)
    assert code == 0
    assert told.splitlines()[-1].startswith("warning: ")
    (tmp_path / "out.h5").unlink()
    code, printed, told = call(*arguments, "--hops", 4, "--max-edges", 5000)
    assert (code, printed) == (2, "")
    assert "edges expected of 4 hops; expected at most 5,000. Lower --hops, keep fewer" in told
    assert not (tmp_path / "out.h5").exists()
    assert call(*arguments, "--hops", 4, "--max-edges", 9000, "--keep", 1)[0] == 0


def test_khop_refuses_wrong_options_with_one_line(call, quick, tmp_path) -> None:
    code, _, told = call("data", "khop", quick, "-o", tmp_path / "x.h5", "--hops", 1, "--mode", "channels")
    assert (code, told) == (2, "error: --hops: 1; expected 2 to 64 with --mode channels\n")
    code, _, told = call(
        "data", "khop", tmp_path / "none.h5", "-o", tmp_path / "x.h5", "--hops", 2, "--mode", "channels"
    )
    assert code == 2
    assert len(told.splitlines()) == 1
