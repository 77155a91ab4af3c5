"""`tidegate` in a process that counts what it does between two marks: calls, awaits, task steps, copies in memory.

    python benchmarks/support/counted.py CHECKOUT serve FILE

Tidegate is CHECKOUT's. The marks come over a Unix socket, FILE.marks: a line `begin` sets all to 0, a line `end` is
answered by one JSON object. A thread of its own reads them and is not counted, so that a mark does not wake the loop.
What a figure is: `benchmarks/support/counts.py`, which drives this.

The profile is there from the first line on, and counts between the marks alone; all this makes Tidegate some times
slower, so nothing is timed here.
"""

import ctypes
import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

Profile = Callable[[FrameType, str, object], None]

COROUTINE = 0x80 | 0x200
"""Flags of a code object: a coroutine's, or an asynchronous generator's."""
TRIO_LOOP, TRIO_STEP = "unrolled_run", "run"
"""trio's loop steps a task by `Context.run`, which it calls for nothing else."""


class Counter:
    """The calls of all threads, each thread's counted apart: adding is not atomic."""

    def __init__(self) -> None:
        self._is_on = False
        self._threads: list[list[int]] = []
        self._memory = _copied_bytes()
        self._copied_before = 0

    def install(self) -> None:
        """Count the calls of this thread, the loop's, and of each that starts from now on."""
        threading.setprofile(self._first_event)
        sys.setprofile(self._profile())

    def begin(self) -> None:
        for counts in self._threads:
            counts[:] = [0, 0, 0]
        self._copied_before = self._memory.value if self._memory else 0
        self._is_on = True

    def end(self) -> dict[str, int]:
        self._is_on = False
        (calls, awaits, steps), *others = self._threads
        found = {"calls": calls, "awaits": awaits, "steps": steps, "thread_calls": sum(each[0] for each in others)}
        copied = {"memory_bytes": self._memory.value - self._copied_before} if self._memory else {}
        return {**found, **copied}

    def _first_event(self, frame: FrameType, event: str, argument: object) -> None:
        sys.setprofile(self._profile())

    def _profile(self) -> Profile:
        counts = [0, 0, 0]
        self._threads.append(counts)

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if not self._is_on:
                return
            if event == "call":
                counts[0] += 1
                if frame.f_code.co_flags & COROUTINE:
                    counts[1] += 1
            elif event == "c_call":
                counts[0] += 1
                if frame.f_code.co_name == TRIO_LOOP and getattr(argument, "__name__", "") == TRIO_STEP:
                    counts[2] += 1

        return profile


def _copied_bytes() -> ctypes.c_ulong | None:
    """Return the counter of copied_bytes.c; None where it was not loaded before us."""
    try:
        return ctypes.c_ulong.in_dll(ctypes.CDLL(None), "copied_bytes")
    except ValueError:
        return None


def _answer_marks(listener: socket.socket, counter: Counter) -> None:
    while True:
        client, _ = listener.accept()
        with client, client.makefile("r", encoding="ascii") as lines:
            for line in lines:
                if line == "begin\n":
                    counter.begin()
                    client.sendall(b"{}\n")
                else:
                    client.sendall(json.dumps(counter.end()).encode() + b"\n")


def main() -> None:
    # Without this file's own folder, whose modules are no top-level ones.
    sys.path[0] = sys.argv.pop(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(sys.argv[-1] + ".marks")))
    listener.listen()
    counter = Counter()
    threading.Thread(target=_answer_marks, args=(listener, counter), name="marks", daemon=True).start()

    from tidegate.cli import main as tidegate_main

    counter.install()
    sys.exit(tidegate_main())


if __name__ == "__main__":
    main()
