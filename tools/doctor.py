"""Say in one line each what this machine lacks for setup, demo and tests: python3 tools/doctor.py [python].

Standard library only, and it must run (to say so) under a Python that is too old or too new for the project.
With the argument `python` it looks at the running Python alone. Prints nothing and exits 0 when all is there.
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
DISK_GIB_MIN = 5
"""2 GiB of packages and jars, half of it Spark; the demo's 1 GiB of records and tier; and 2 GiB for the tests, or for
pip while it makes Spark's package."""
MEMORY_GIB_MIN = 3
"""The largest tests run Spark with 1 GiB of heap and two brokers with 512 MiB each beside Tidegate."""
OPEN_FILES_MIN = 8192
"""1,000 idle connections are three sockets each when client, Tidegate and broker share a machine."""


def main(arguments: list[str]) -> int:
    problems = python_problems()
    if arguments != ["python"]:
        problems += tool_problems() + java_problems() + room_problems()
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
    answer = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    match = re.search(rb'version "(\d+)', answer.stdout)
    if match is None:
        return [f"{java} -version gave no version: {advice}"]
    if int(match.group(1)) not in JAVA_VERSIONS:
        return [f"{java} is Java {int(match.group(1))}: {advice}, and put it first on PATH"]
    # The oracle is compiled as it is run, which a mere run-time environment cannot do.
    modules = subprocess.run([java, "--list-modules"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if b"jdk.compiler" not in modules.stdout:
        return [f"{java} cannot compile, it is a run-time environment only: {advice}"]
    return []


def room_problems() -> list[str]:
    problems = []
    root = Path(__file__).resolve().parent.parent
    for place in sorted({root, Path(tempfile.gettempdir())}):
        free_gib = shutil.disk_usage(place).free / GIB
        if free_gib < DISK_GIB_MIN:
            problems.append(f"{place} has {free_gib:.1f} GiB of disk free, {DISK_GIB_MIN} are needed")
    memory_gib = available_memory_gib()
    if memory_gib < MEMORY_GIB_MIN:
        problems.append(f"{memory_gib:.1f} GiB of memory are free, {MEMORY_GIB_MIN} are needed")
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit != resource.RLIM_INFINITY and hard_limit < OPEN_FILES_MIN:
        problems.append(f"the hard limit of open files is {hard_limit}, {OPEN_FILES_MIN} are needed: raise ulimit -Hn")
    return problems


def available_memory_gib() -> float:
    """What Linux calls available; elsewhere all there is, as macOS makes room by compressing."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 / GIB if match else float(MEMORY_GIB_MIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
