"""The allocator's switches, in a process of their own: they hold for good."""

import platform
import subprocess
import sys

SCRIPT = """
import resource
from storage.buffers import keep_freed_memory

is_kept = keep_freed_memory()
for _ in range(20):
    bytearray(8 * 1024 * 1024)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(8 * 1024 * 1024)
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def test_freed_memory_is_used_again_without_a_page_fault() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    is_kept, faults = done.stdout.split()
    assert is_kept == str(platform.libc_ver()[0] == "glibc")
    assert is_kept == "False" or int(faults) < 100, "each of the twenty has 2,048 pages"
