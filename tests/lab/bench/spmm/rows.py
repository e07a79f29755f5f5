"""Records of `bench spmm` for tests."""

from __future__ import annotations

from typing import Any

FIGURE = {"bench": "spmm", "figure": "8a", "batch": 50, "dim": [50, 50], "nnz_per_row": [2, 2], "seed": 0, "nnz": 5000}
FLOPS, BYTES = 640_000, 1_330_000


def record(method: str = "fastest", us: float = 10.0, **changes: Any) -> dict[str, Any]:
    """Return a record with a spread of 5 % around `us`."""
    state = {"cache": "host", "launch": "none"} if method == "scipy" else {"cache": "warm", "launch": "graph"}
    times = {"us": us, "us_p20": 0.95 * us, "us_p80": 1.05 * us}
    rates = {"gflops": float(f"{0.64e3 / us:.4g}"), "gb_per_s": float(f"{1.33e3 / us:.4g}"), "error": 1e-7}
    machine = {"gpu": "Some GPU", "cpu": "Some CPU", "commit": "0123"}
    if method != "scipy":
        machine["copy_gb_per_s"] = 4000.0
    point = {**FIGURE, "columns": 64, "flops": FLOPS, "bytes": BYTES}
    return {**point, "method": method, "choice": "", **state, **times, **rates, **machine, **changes}
