"""`make fuzz`: each decoder's target in turn, or those that are named, for `--seconds` each.

A corpus is kept in build/fuzz, so that the next run goes on from this one's. What crashes a decoder is written to
tests/fuzz/crashers, where it stays as a case.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[2]
CRASHERS: Final = Path(__file__).parent / "crashers"
INPUT_BYTES_MAX: Final = 16 * 1024
ONE_INPUT_S_MAX: Final = 10


def fuzz(name: str, seconds: int, corpus: Path, crashers: Path) -> subprocess.CompletedProcess[str]:
    """Run a target. `corpus`: gets the seeds, and what the run adds. `crashers`: gets what crashes it."""
    corpus.mkdir(parents=True, exist_ok=True)
    crashers.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]()):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzz.loop", name, str(corpus), f"-max_total_time={seconds}"]
    limits = [f"-max_len={INPUT_BYTES_MAX}", f"-timeout={ONE_INPUT_S_MAX}", f"-artifact_prefix={crashers}/{name}-"]
    return subprocess.run(
        [*command, *limits], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    failed = []
    for name in options.targets or TARGETS:
        done = fuzz(name, options.seconds, ROOT / "build" / "fuzz" / name, CRASHERS)
        print(f"{name}: {done.stdout.splitlines()[-1]}", flush=True)
        if done.returncode:
            print(done.stdout)
            failed.append(name)
    print(f"crashed: {', '.join(failed)}" if failed else "no crash")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
