"""Make each fault of the tables (*.toml) here in a copy of the project, and run the tests that should see it.

    python -m tools.mutants [--from FOLDER] [NAME ...]

Prints a line for each: killed, or SURVIVED. Exit code 1 if one survived, 2 if one no longer fits the code. The copy is
of what git tracks in FOLDER, by default this project; so another revision's tests are judged by a checkout of that
revision.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TABLES: Final = tuple(sorted(Path(__file__).parent.glob("*.toml")))
TIMEOUT_S: Final = 900
"""A mutant that hangs its tests is seen, too."""
_NO_TESTS: Final = (4, 5)
"""pytest's exit codes for a file that is not there and for nothing collected."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands once in `file`. `tests`: glob patterns of the files and folders that are run."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Write the fault, and return the text as it was.

        Raises:
            ValueError: the old text does not stand there exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text stands {text.count(self.old)} times in {self.file}")
        _write(path, text.replace(self.old, self.new))
        return text


def mutants() -> list[Mutant]:
    """All of the tables, in their order."""
    entries = [entry for table in TABLES for entry in tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="Make faults on purpose, and see whether tests find them.")
    parser.add_argument("--from", dest="source", type=Path, default=ROOT, help="a checkout of another revision")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone")
    chosen = parser.parse_args(arguments)
    wanted = [each for each in mutants() if not chosen.names or each.name in chosen.names]
    survivors, misfits = [], []
    with _copy(chosen.source) as root:
        for mutant in wanted:
            started_s = time.monotonic()
            try:
                is_killed = _is_killed(mutant, root)
            except ValueError as error:
                misfits.append(mutant.name)
                print(error, file=sys.stderr, flush=True)
                continue
            if not is_killed:
                survivors.append(mutant.name)
            said = "killed" if is_killed else "SURVIVED"
            print(f"{said:8} {time.monotonic() - started_s:6.1f} s  {mutant.name}", flush=True)
    print(f"{len(wanted) - len(survivors) - len(misfits)} of {len(wanted)} mutants killed")
    return 2 if misfits else bool(survivors)


def _is_killed(mutant: Mutant, root: Path) -> bool:
    before = mutant.apply(root)
    tests = sorted({str(found.relative_to(root)) for each in mutant.tests for found in root.glob(each)})
    if not tests:
        raise ValueError(f"{mutant.name}: none of {', '.join(mutant.tests)} is there")
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *tests)
    try:
        done = subprocess.run(
            command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    finally:
        _write(root / mutant.file, before)
    if done.returncode in _NO_TESTS:
        raise ValueError(f"{mutant.name}: no tests in {' '.join(tests)}: {done.stdout.decode()[-500:]}")
    return done.returncode != 0


@contextmanager
def _copy(source: Path) -> Iterator[Path]:
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=source, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="tidegate-mutants-") as folder:
        root = Path(folder)
        for name in listed.decode().split("\0"):
            if name and (source / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, root / name)
        if (ROOT / "build").is_dir():
            (root / "build").symlink_to(ROOT / "build")
        yield root


def _write(path: Path, text: str) -> None:
    """With a time of its own: what Python has compiled of a file counts as long as time and size are the same."""
    stamp_ns = max(time.time_ns(), path.stat().st_mtime_ns + 2_000_000_000)
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(stamp_ns, stamp_ns))


if __name__ == "__main__":
    sys.exit(main())
