"""One Java process: in a group of its own, logging to a file, and unable to outlive us.

A guard, a tiny shell that waits for the end of a pipe which only we hold open, kills the process's group when we
end, however we end. The kernel's parent-death signal would do the same on Linux alone, and it fires when the
*thread* that started the child ends, which is wrong for callers that start brokers from a worker thread.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

LOG_TAIL_LINES = 20
LOG_TAIL_BYTES_MAX = 64 * 1024
_POLL_S = 0.05
_GUARD_SCRIPT = 'read -r _; kill -s KILL -- "-$1"'


class KafkaClusterError(Exception):
    """The Kafka that we run cannot be started, has died, or did not get as far as asked in time."""


class JavaProcess:
    """Starts `command` at once; standard output and error are appended to `log_path`."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._log_start_position = log.tell()
            self._process = _start(command, stdin=subprocess.DEVNULL, stdout=log)
        guard_command = ("/bin/sh", "-c", _GUARD_SCRIPT, "guard", str(self._process.pid))
        self._guard = _start(guard_command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; −N when signal N ended it."""
        return self._process.poll()

    def wait_for_log(self, text: str, timeout_s: float) -> None:
        """Block until this run has logged text.

        Raises:
            KafkaClusterError: the process ended, or time is up; with the last lines of the log.
        """
        deadline_s = time.monotonic() + timeout_s
        wanted = text.encode()
        with self.log_path.open("rb") as log:
            log.seek(self._log_start_position)
            seen = b""
            while True:
                # The tail of what was seen stays, for a text that was written in two parts.
                seen = seen[-len(wanted) :] + log.read()
                if wanted in seen:
                    return
                if not self.is_running:
                    raise KafkaClusterError(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")
                if time.monotonic() > deadline_s:
                    raise KafkaClusterError(f"{self.name} not ready after {timeout_s:g} s:\n{self.log_tail()}")
                time.sleep(_POLL_S)

    def log_tail(self) -> str:
        """The last lines that this run logged, and where the rest is."""
        with self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start_position, end - LOG_TAIL_BYTES_MAX))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return "\n".join([*lines[-LOG_TAIL_LINES:], f"(whole log: {self.log_path})"])

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL when that took longer than timeout_s. No error when it has ended already."""
        if self.is_running:
            self._signal_group(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # kill() below is the answer to it
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL. No error when it has ended already."""
        # The guard first: once the group is gone its number may be given to a stranger.
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        if self.is_running:
            self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended between our look and the signal
            os.killpg(self._process.pid, number)


def _start(command: Sequence[str], *, stdin: int, stdout: int | IO[bytes]) -> "subprocess.Popen[bytes]":
    # A session of its own: Ctrl-C in the terminal reaches us alone, and we stop the broker in order.
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.STDOUT, start_new_session=True)
