"""What 100 answers cost in things that can be counted (benchmarks/cost.py --counts).

An answer has 1 MiB of each of two partitions. The rows that are read over and over are asked 100 times; one that a
Tidegate just started reads is read whole, and its counts are scaled to as many bytes. A figure is the least of the
rounds, since what comes between only adds; below it stand the median and the most.

- *calls*: Python functions that the loop's thread enters, and C functions that Python code calls there, as
  sys.setprofile counts them (`call`, `c_call`). A coroutine or generator that goes on is entered again.
- *awaits*: those of the calls that enter a coroutine, the first time or again.
- *steps*: how often the loop goes on with a task.
- *thread calls*: calls of all other threads, together.
- *system calls*: of all threads, as strace sees them, without futex.
- *futex*: those left out; how often threads wait for the interpreter's lock is the scheduler's doing.
- *kernel bytes*: what read, recv, write, send and their kin have returned: bytes copied between kernel and process.
- *memory bytes*: what memcpy and memmove were asked for, from 4 KiB on (`copied_bytes.c`).
- *spliced bytes*: what splice and sendfile have returned: no copy, and each byte twice, into a pipe and out of it.

Client, broker, store and Tidegate share one core meanwhile, and none of them interrupts another. So a sender fills the
socket before the receiver looks at it, and chance has less to say in how often a loop turns for one answer.

Calls and copies in memory are counted by one Tidegate (`counted.py`), and what strace sees by another, which is not
profiled. The client's connection begins and ends within, and what Tidegate does by the clock counts too (3,000 calls a
second). Counts depend on Python's version: compare two versions on one machine, in one run (`--before`).
"""

import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
COUNTED, COPIES = Path(__file__).with_name("counted.py"), Path(__file__).with_name("copied_bytes.c")
ANSWERS = 100
ANSWER_BYTES = 2 * 1024 * 1024

PROFILED = ("calls", "awaits", "steps", "thread_calls", "memory_bytes")
TRACED = ("system_calls", "futex", "kernel_bytes", "spliced_bytes")
RECEIVING, SENDING = ("read", "readv", "pread64", "preadv", "recvfrom", "recvmsg"), ("sendto", "sendmsg")
COPYING = frozenset((*RECEIVING, *SENDING, "write", "writev", "pwrite64", "pwritev"))
SPLICING = frozenset(("splice", "sendfile"))

_ATTACHED_S = 30.0
_LINE = re.compile(r"\d+ +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<begun>\w+)\()(?P<rest>.*)")
_RETURNED = re.compile(r"\) += (\d+)")

Counts = Mapping[str, float]


def missing() -> str:
    """Return why nothing can be counted here; empty where it can."""
    programs = {"strace": "strace", "cc": "gcc"}
    absent = [package for program, package in programs.items() if shutil.which(program) is None]
    return f"--counts needs Debian's {' and '.join(absent)}: apt-get install {' '.join(absent)}" if absent else ""


def counted_program(checkout: Path | None) -> tuple[str, ...]:
    """Return the command of a Tidegate that counts; None: this version's."""
    return ("env", f"LD_PRELOAD={_copies_library()}", sys.executable, str(COUNTED), str(checkout or ROOT))


@cache
def _copies_library() -> Path:
    library = ROOT / "build" / "copied_bytes.so"
    library.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(COPIES), "-o", str(library)], check=True)
    return library


def profiled(properties_path: Path, read: Callable[[], object]) -> Counts:
    """Return what a Tidegate of `counted_program` counts in itself while something is read through it."""
    with socket.socket(socket.AF_UNIX) as marks:
        marks.connect(f"{properties_path}.marks")
        with marks.makefile("rw", encoding="ascii") as lines:

            def mark(word: str) -> dict[str, int]:
                lines.write(f"{word}\n")
                lines.flush()
                answer: dict[str, int] = json.loads(lines.readline())
                return answer

            mark("begin")
            read()
            return mark("end")


def traced(pid: int, read: Callable[[], object]) -> Counts:
    """Return which system calls a process makes, all threads together, while something is read through it."""
    with TemporaryDirectory(prefix="tidegate-strace-") as folder:
        trace = Path(folder) / "trace"
        with _strace(pid, trace):
            read()
        with trace.open(encoding="ascii", errors="replace") as lines:
            return system_calls(lines)


@contextmanager
def on_one_core(pids: Sequence[int]) -> Iterator[None]:
    """Let processes with all their threads share a core, and interrupt nobody, until the block ends."""
    cores = os.sched_getaffinity(0)
    _schedule(pids, {max(cores)}, os.SCHED_BATCH)
    try:
        yield
    finally:
        _schedule(pids, cores, os.SCHED_OTHER)


def _schedule(pids: Sequence[int], cores: set[int], policy: int) -> None:
    for task in (int(each.name) for pid in pids for each in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(ProcessLookupError):  # a thread that has ended since
            os.sched_setaffinity(task, cores)
            os.sched_setscheduler(task, policy, os.sched_param(0))


@contextmanager
def _strace(pid: int, trace: Path) -> Iterator[None]:
    command = ["strace", "-f", "-s", "0", "-o", str(trace), "-p", str(pid)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    attached = threading.Timer(_ATTACHED_S, process.kill)
    attached.start()
    try:
        if "attached" not in (said := process.stderr.readline()):
            raise SystemExit(f"strace cannot attach to Tidegate: {said.strip()}")
        attached.cancel()
        yield
    finally:
        attached.cancel()
        process.send_signal(signal.SIGINT)
        process.communicate()


def system_calls(lines: Iterator[str]) -> Counts:
    """Return what lines of `strace -f -o` hold. A call that another thread's interrupts has two lines."""
    calls, returned_bytes = Counter[str](), Counter[str]()
    for line in lines:
        if (match := _LINE.match(line)) is None:
            continue  # a signal, or the end of a thread
        if match["begun"]:
            calls[match["begun"]] += 1
        if found := _RETURNED.search(match["rest"]):
            returned_bytes[match["begun"] or match["resumed"]] += int(found[1])
    return {
        "system_calls": calls.total() - calls["futex"],
        "futex": calls["futex"],
        "kernel_bytes": sum(returned_bytes[name] for name in COPYING),
        "spliced_bytes": sum(returned_bytes[name] for name in SPLICING),
    }


def of_100_answers(found: Counts, answers: float) -> Counts:
    """Return the counts of one reading, scaled from so many answers."""
    return {name: value * ANSWERS / answers for name, value in found.items()}


def row_of(name: str, rounds: Sequence[Counts]) -> dict[str, object]:
    """Return a row: each figure's least, median and most of the rounds."""
    return {"row": name} | {
        figure: {
            "least": min(each[figure] for each in rounds),
            "median": statistics.median(each[figure] for each in rounds),
            "most": max(each[figure] for each in rounds),
        }
        for figure in (*PROFILED, *TRACED)
        if all(figure in each for each in rounds)
    }


def show(rows: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """Print the rows."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"counts of {ANSWERS} answers", box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    table.add_column("row")
    for name in (*PROFILED, *TRACED):
        table.add_column(name.replace("_bytes", " MB").replace("_", " "), justify="right")
    for row in rows:
        cells = [_cell(name, row[name]) for name in (*PROFILED, *TRACED)]
        table.add_row(str(row["row"]), *cells)
    Console(width=200).print(table)


def _cell(name: str, figure: object) -> str:
    assert isinstance(figure, dict)
    unit, places = (1e6, 1) if name.endswith("_bytes") else (1, 0)
    least, median, most = (f"{figure[part] / unit:,.{places}f}" for part in ("least", "median", "most"))
    return f"{least}\n{median} – {most}"
