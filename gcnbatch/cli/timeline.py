"""``--timeline FILE.json``: where the seconds of a command go, as a table on stderr and as a trace for Perfetto."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gcnbatch import fileio, outputs, timeline
from gcnbatch.errors import InputError
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.text import counted

OPTION = "--timeline"
TRACE = Kind("a timeline", begins_with(rb"\s*\{\s*\"traceEvents\""), (".json",))
OWN = frozenset({"compare-backends"})  # commands with an option of this name
_REST, _OTHERS = "other work", "other threads and processes:"
_LEAST = 0.005  # share of all seconds; rows below it are joined into one


class Span(NamedTuple):
    """Work of a thread of a process, in seconds of one clock. Thread 0 is the main thread."""

    name: str
    begin: float
    end: float
    pid: int
    thread: int


def taken_from(arguments: list[str]) -> str | None:
    """Remove the option from a command line, wherever it stands; return its file.

    Behind a command of `OWN`, the option is that command's.

    Raises
    ------
    InputError
        When it has no file.

    >>> given = ["train", "set.h5", "--timeline", "seconds.json", "-q"]
    >>> taken_from(given), given
    ('seconds.json', ['train', 'set.h5', '-q'])
    """
    for place, word in enumerate(arguments):
        if word == "--" or word in OWN:
            break
        name, has_value, value = word.partition("=")
        if name == OPTION:
            if not has_value and place + 1 == len(arguments):
                raise InputError(OPTION, "without a file", "FILE.json")
            del arguments[place]
            return value if has_value else arguments.pop(place)
    return None


@contextmanager
def recorded(path: str, is_first: bool) -> Iterator[None]:
    """Record a command; write its timeline at the end, on the first of several ranks.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    output = outputs.check(path, TRACE, what=OPTION)
    folder = Path(f"{os.path.abspath(path)}.parts")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), str(error.strerror), "a folder that can be made") from error
    timeline.start("gcnbatch" if is_first else "another rank", str(folder))
    try:
        yield
    finally:
        timeline.stop()
        if is_first:
            names, spans = read(folder)
            fileio.write_text(output, json.dumps(trace(names, spans, os.getpid())))
            shutil.rmtree(folder, ignore_errors=True)
            print(*table(names, spans, os.getpid(), time.monotonic()), sep="\n", file=sys.stderr, flush=True)


def read(folder: Path) -> tuple[dict[int, str], list[Span]]:
    """Return the processes' names by number, and all spans."""
    names, spans = {}, []
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if "process" in line:
                names[line["pid"]] = line["process"]
            else:
                spans.append(Span(*(line[field] for field in ("name", "begin", "end", "pid", "thread"))))
    return names, spans


def trace(names: dict[int, str], spans: Sequence[Span], first: int) -> dict[str, Any]:
    """Return the events of a trace that Perfetto and chrome://tracing read, in microseconds from the first span on."""
    origin = min(span.begin for span in spans)
    order = sorted(names, key=lambda pid: (pid != first, min(span.begin for span in spans if span.pid == pid)))
    events: list[dict[str, Any]] = []
    for place, pid in enumerate(order):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": names[pid]}})
        events.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": place}})
    for span in spans:
        about = {"name": span.name, "pid": span.pid, "tid": span.thread}
        events.append({**about, "ph": "X", "ts": (span.begin - origin) * 1e6, "dur": (span.end - span.begin) * 1e6})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def table(names: dict[int, str], spans: Sequence[Span], first: int, end: float) -> list[str]:
    """Return lines: the seconds of the first process's main thread by work, then those of other threads and processes.

    A nested span counts once, as itself.
    """
    begin = min(span.begin for span in spans if span.pid == first)
    seconds, whole = own_seconds([span for span in spans if (span.pid, span.thread) == (first, 0)]), end - begin
    seconds[_REST] += whole - sum(seconds.values())
    few = {name: of for name, of in seconds.items() if of < _LEAST * whole and name != _REST}
    rows = sorted(((of, name) for name, of in seconds.items() if name not in few), reverse=True)
    if few:
        rows.append((sum(few.values()), f"{counted(len(few), 'other kind')} of work, each below {_LEAST:.1%}"))
    lines = [f"{whole:8.2f} s from process start to exit"]
    lines += [f"{of:8.2f} s {of / whole:6.1%}  {name}" for of, name in rows]
    beside: dict[str, list[float]] = defaultdict(list)
    threads = {(span.pid, span.thread) for span in spans} - {(first, 0)}
    for pid, thread in threads:
        for name, of in own_seconds([span for span in spans if (span.pid, span.thread) == (pid, thread)]).items():
            beside[f"{'another thread' if pid == first else names.get(pid, '')}: {name}"].append(of)
    most = sorted(((sum(of), len(of), name) for name, of in beside.items()), reverse=True)
    lines += [_OTHERS] if most else []
    return lines + [
        f"{of:8.2f} s  {name}" + (f", in {count} threads" if count > 1 else "")
        for of, count, name in most
        if of >= _LEAST * whole
    ]


def own_seconds(spans: Sequence[Span]) -> defaultdict[str, float]:
    """Return the self time of one thread's spans by name: seconds without those of nested spans.

    Nested imports count as the outer import, by package.
    """
    found: defaultdict[str, float] = defaultdict(float)
    outer: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.begin, -one.end)):
        while outer and outer[-1].end <= span.begin:
            outer.pop()
        length = span.end - span.begin
        name = _by_package(span.name)
        if outer:
            found[_by_package(outer[-1].name)] -= length
        found[name] += length
        outer.append(span)
    return found


def _by_package(name: str) -> str:
    return name.partition(".")[0] if name.startswith("import ") else name
