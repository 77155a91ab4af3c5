"""Whose processor time a stretch of work was."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.support.processor_time import OTHERS, watch

pytestmark = pytest.mark.needs("linux")

BURN_S = 0.3
_PROGRAM = f"import time\nwhile time.process_time() < {BURN_S}: pass"


def test_work_counts_for_the_process_that_does_it() -> None:
    with watch({"here": os.getpid()}) as spent:
        until_s = time.process_time() + BURN_S
        while time.process_time() < until_s:
            pass
    assert BURN_S - 0.05 <= spent.cpu_s["here"] <= BURN_S + 0.2
    assert 0.0 <= spent.idle_share < 1.0


def test_work_of_processes_that_are_not_named_is_that_of_others() -> None:
    with watch({"here": os.getpid()}) as spent:
        subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
    assert spent.cpu_s[OTHERS] >= BURN_S - 0.05
    assert spent.cpu_s["here"] < BURN_S
