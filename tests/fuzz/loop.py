"""One target in libFuzzer's loop, which coverage of our own packages leads: `python -m tests.fuzz.loop TARGET CORPUS…`.

Whatever else follows is libFuzzer's. Memory that a decoder asks for beyond MEMORY_BYTES_MAX is a MemoryError, and that
is no decoder's own error.
"""

import resource
import sys
import tempfile
from pathlib import Path
from typing import Final

import atheris

MEMORY_BYTES_MAX: Final = 256 << 20

with atheris.instrument_imports(include=["protocol", "storage"]):
    from tests.fuzz import targets


def main() -> None:
    target = targets.TARGETS[sys.argv.pop(1)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        targets.FOLDER = Path(folder)  # type: ignore[misc]  # each process has its own
        atheris.Setup(sys.argv, target)
        used_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
