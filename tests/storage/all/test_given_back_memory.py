"""In a process of its own: what it has free is given back to the system."""

import platform
import subprocess
import sys

import pytest

_GIVE_BACK = """
from storage.buffers import give_back
def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
pieces = [b"x" * 60_000 for _ in range(1000)]
last = b"x" * 60_000
del pieces
before = resident_bytes()
give_back()
print(before - resident_bytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_what_is_free_below_what_is_used_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _GIVE_BACK], check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) > 30_000_000
