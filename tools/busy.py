"""Runs a command beside busy loops, several times if need be: what passes there passes on a busy machine.

    python -m tools.busy [--loops 2] [--times 1] COMMAND ...

The loops are processes of ordinary priority that only count. The exit code is that of the first run that failed, and 0
if none did.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_LOOP = "while True: pass"


@contextmanager
def busy(loops: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run so many counting processes while the block runs."""
    running = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(loops)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="Run a command beside busy loops.")
    parser.add_argument("--loops", type=int, default=2, help="processes that count meanwhile (2)")
    parser.add_argument("--times", type=int, default=1, help="runs of the command (1)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    chosen = parser.parse_args(arguments)
    if not chosen.command:
        parser.error("which command?")
    with busy(chosen.loops):
        for number in range(1, chosen.times + 1):
            done = subprocess.run(chosen.command, check=False)
            if done.returncode:
                print(f"run {number} of {chosen.times}: exit code {done.returncode}", file=sys.stderr)
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
