"""Say in one line each what this machine lacks for setup, demo and tests: python3 tools/doctor.py [demo | python].

Standard library only, and it must run (to say so) under a Python that is too old or too new for the project.
With the argument `demo` it asks for no more room than `make demo` takes, with `python` it looks at the running Python
alone. Prints nothing and exits 0 when all is there.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHON_FIRST, PYTHON_LAST = (3, 11), (3, 14)
JAVA_VERSIONS = (17, 21)
GIB = 1024**3
DISK_GIB_MIN = {"tests": 5, "demo": 1}
"""Tests: 2 GiB of packages and jars, half of it Spark, 1 GiB of records and tier; and 2 GiB for their files, or for pip
while it makes Spark's package. The demo: a quarter of packages and jars, and half of records, tier and cache."""
MEMORY_GIB_MIN = {"tests": 3, "demo": 2}
"""The largest tests run Spark with 1 GiB of heap and two brokers with 512 MiB each beside Tidegate; the demo runs one
such broker, Tidegate and a client."""
OPEN_FILES_MIN = 8192
"""1,000 idle connections are three sockets each when client, Tidegate and broker share a machine."""


def main(arguments: list[str]) -> int:
    problems = python_problems()
    if arguments != ["python"]:
        problems += tool_problems() + java_problems() + room_problems("demo" if arguments == ["demo"] else "tests")
    for problem in problems:
        print("tidegate: " + problem, file=sys.stderr)
    return 1 if problems else 0


def python_problems() -> list[str]:
    if not PYTHON_FIRST <= sys.version_info[:2] <= PYTHON_LAST:
        found = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return [f"Python 3.11 to 3.14 is needed, {sys.executable} is {found}: run make with PYTHON=python3.12"]
    try:
        import ensurepip  # noqa: F401  # absent is an answer
        import venv  # noqa: F401  # likewise
    except ImportError:
        return [f"{sys.executable} has no venv module: install it (Debian: apt-get install python3-venv)"]
    return []


def tool_problems() -> list[str]:
    problems = []
    if shutil.which("make") is None:
        problems.append("make is missing: install it (Debian: apt-get install make)")
    if shutil.which("mvn") is None:
        problems.append("Maven (mvn) is missing: install it (Debian: apt-get install maven; macOS: brew install maven)")
    return problems


def java_problems() -> list[str]:
    advice = "install Java 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless; macOS: brew install openjdk@21)"
    java = shutil.which("java")
    if java is None:
        return [f"java is missing: {advice}"]
    modules = subprocess.run([java, "--list-modules"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    match = re.search(rb"^java\.base@(\d+)", modules.stdout, re.MULTILINE)
    if match is None:
        return [f"{java} is older than Java 9, or does not run: {advice}, and put it first on PATH"]
    if int(match.group(1)) not in JAVA_VERSIONS:
        return [f"{java} is Java {int(match.group(1))}: {advice}, and put it first on PATH"]
    # The demo's and the tests' own programs are compiled as they are run, which a mere run-time environment cannot do.
    if b"jdk.compiler" not in modules.stdout:
        return [f"{java} cannot compile, it is a run-time environment only: {advice}"]
    return []


def room_problems(purpose: str) -> list[str]:
    problems = []
    disk_gib_min, memory_gib_min = DISK_GIB_MIN[purpose], MEMORY_GIB_MIN[purpose]
    root = Path(__file__).resolve().parent.parent
    for place in sorted({root, Path(tempfile.gettempdir())}):
        free_gib = shutil.disk_usage(place).free / GIB
        if free_gib < disk_gib_min:
            problems.append(f"{place} has {free_gib:.1f} GiB of disk free, {disk_gib_min} are needed")
    memory_gib = available_memory_gib()
    if memory_gib is not None and memory_gib < memory_gib_min:
        problems.append(f"{memory_gib:.1f} GiB of memory are free, {memory_gib_min} are needed")
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit != resource.RLIM_INFINITY and hard_limit < OPEN_FILES_MIN:
        problems.append(f"the hard limit of open files is {hard_limit}, {OPEN_FILES_MIN} are needed: raise ulimit -Hn")
    return problems


def available_memory_gib() -> "float | None":
    """Return what Linux calls available, if it says so; elsewhere all there is, as macOS makes room by compressing."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 / GIB if match else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
