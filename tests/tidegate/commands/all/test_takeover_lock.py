"""`tidegate takeover` beside a process that holds the lock of the broker's folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidegate.commands.test_takeover import World
from tidegate import exit_codes

HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "ab")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
"""Holds a lock as Java's FileChannel.lock does, until its input ends."""


def test_a_broker_that_runs_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(world.data / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        holder.communicate()
    assert "is in use: stop its broker in order" in capsys.readouterr().err
    assert world.epochs() == "0\n1\n6 40\n"
