"""Time `gcnbatch serve` over HTTP and print a JSON row per test.

    python benchmarks/serving.py RUN [--backend cpu] [--seconds 60] [--clients 32] [--molecules 1000] [--tests …]

- ``latency``: one client asks for one molecule after the other; milliseconds from request to answer, after a warm-up,
  and the server's processor time. Where other programs run, ``chrt -f 10`` keeps them from delaying the answers.
- ``sizes``: one client asks for 1 to 256 molecules at once; the median in milliseconds. Two named backends show up to
  how many molecules one of them is faster.
- ``clients``: so many clients ask for one molecule after the other for so many seconds; answers a second, errors, and
  the server's resident memory after a tenth of the time and at the end.
- ``bulk``: 8 clients, each a process, send JSON with so many molecules each; molecules a second.

Clients run on the same machine, so they take a part of its processors. A client only checks status and length of an
answer. Molecules are 576 combinations of substituents and rings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import cycle, islice, product
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from gcnbatch import environment

LEFT = ["C", "CC", "CCC", "Cl", "F", "O", "N", "CO", "CN", "N#C", "CC(=O)N", "CC(=O)"]
RIGHT = ["C", "CO", "C#N", "N(C)C", "C(N)=O", "CF"]
RINGS = ["{}c1ccc(C{})nc1", "{}c1ccc(C{})cc1", "{}C1CCC(C{})CC1", "{}C1CCN(C{})CC1"]
RINGS += ["{}c1ccc(C{})s1", "{}c1ccc(C{})o1", "{}c1cnc(C{})nc1", "{}c1ccc2cc(C{})ccc2c1"]
SMILES = [ring.format(left, right) for ring, left, right in product(RINGS, LEFT, RIGHT)]
WARM_UP, ASKED, BULK_CLIENTS = 50, 500, 8


@contextmanager
def served(run: str, backend: str) -> Iterator[tuple[str, int]]:
    """Start a server; yield its URL and process id."""
    command = [sys.executable, "-m", "gcnbatch", "serve", run, "--port", "0", "--backend", backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


class Client:
    """A connection that is kept open."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=120)

    def ask(self, smiles: list[str]) -> bool:
        """Ask for molecules; return whether they were predicted."""
        body = json.dumps({"smiles": smiles})
        self._connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        return answer.read().endswith(b"]}") and answer.status == 200


def latency(url: str, pid: int) -> dict[str, float]:
    """Return percentiles of the time for one molecule, and the server's processor time, in milliseconds."""
    client, molecules, times = Client(url), cycle(SMILES), []
    for _ in range(WARM_UP):
        assert client.ask([next(molecules)])
    before = processor_seconds(pid)
    for _ in range(ASKED):
        started = time.perf_counter()
        assert client.ask([next(molecules)])
        times.append(1e3 * (time.perf_counter() - started))
    spent = round(1e3 * (processor_seconds(pid) - before) / ASKED, 2)
    return {f"p{share}_ms": round(float(np.percentile(times, share)), 2) for share in (5, 50, 95, 99)} | {
        "cpu_ms": spent
    }


def sizes(url: str) -> dict[str, float]:
    """Return the median time in milliseconds by the molecules of a request."""
    client, found = Client(url), {}
    for count in (1, 16, 64, 256):
        smiles, times = list(islice(cycle(SMILES), count)), []
        for _ in range(WARM_UP):
            started = time.perf_counter()
            assert client.ask(smiles)
            times.append(1e3 * (time.perf_counter() - started))
        found[f"p50_ms_of_{count}"] = round(float(np.median(times[WARM_UP // 5 :])), 2)
    return found


def clients(url: str, pid: int, count: int, seconds: float) -> dict[str, float]:
    """Return answers a second, errors, percentiles and memory of so many clients for so many seconds."""
    times: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + seconds

    def work(first: int) -> None:
        client, molecules = Client(url), islice(cycle(SMILES), first, None)
        while time.monotonic() < end:
            started = time.perf_counter()
            try:
                if not client.ask([next(molecules)]):
                    errors.append("status")
            except OSError as error:
                errors.append(str(error))
                client = Client(url)
            times.append(1e3 * (time.perf_counter() - started))

    threads = [threading.Thread(target=work, args=(17 * number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 10)
    early = resident_mb(pid)
    for thread in threads:
        thread.join()
    shares = {f"p{share}_ms": round(float(np.percentile(times, share)), 1) for share in (50, 95, 99)}
    memory = {"early_mb": early, "late_mb": resident_mb(pid)}
    return {"clients": count, "per_second": round(len(times) / seconds, 1), "errors": len(errors), **shares, **memory}


def resident_mb(pid: int) -> int:
    """Return the resident memory of a process and of its children, in MB."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
    return pages * 4096 // 10**6


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process and of its children."""
    threads = [path for one in family(pid) for path in Path(f"/proc/{one}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def family(pid: int) -> list[str]:
    """Return a process and its children."""
    return [
        str(pid),
        *(one for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()),
    ]


def bulk(url: str, molecules: int, seconds: float) -> dict[str, float]:
    """Return molecules a second of clients in processes of their own."""
    with ProcessPoolExecutor(BULK_CLIENTS) as pool:
        list(pool.map(send, [url] * BULK_CLIENTS, [molecules] * BULK_CLIENTS, [min(seconds / 4, 5)] * BULK_CLIENTS))
        started = time.monotonic()
        answers = sum(pool.map(send, [url] * BULK_CLIENTS, [molecules] * BULK_CLIENTS, [seconds] * BULK_CLIENTS))
        took = time.monotonic() - started
    return {"clients": BULK_CLIENTS, "molecules": molecules, "molecules_per_second": round(answers * molecules / took)}


def send(url: str, molecules: int, seconds: float) -> int:
    """Send requests for so many seconds; return their number."""
    client, smiles, count = Client(url), list(islice(cycle(SMILES), molecules)), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert client.ask(smiles)
        count += 1
    return count


def main() -> None:
    """Run the tests and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--molecules", type=int, default=1000)
    parser.add_argument("--tests", nargs="*", default=["latency", "clients", "bulk"])
    given = parser.parse_args()
    with served(given.run, given.backend) as (url, pid):
        tests = {
            "latency": lambda: latency(url, pid),
            "sizes": lambda: sizes(url),
            "clients": lambda: clients(url, pid, given.clients, given.seconds),
            "bulk": lambda: bulk(url, given.molecules, given.seconds),
        }
        for name in given.tests:
            about = {"run": Path(given.run).name, "backend": given.backend, "cpu": environment.cpu_model()}
            print(json.dumps({"test": name, **about, **tests[name]()}), flush=True)


if __name__ == "__main__":
    main()
