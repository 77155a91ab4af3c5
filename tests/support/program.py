"""Which Tidegate the tests start: that of the tree, or an installed one (tests/installed)."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tidegate import cli

PYTHON_VARIABLE = "TESTED_PYTHON"
"""Names the Python of an environment that Tidegate is installed in; `make test-installed` sets it."""


def tidegate_python() -> str:
    """The Python that has the Tidegate to be tested; that of the tests without another word."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and error of `tidegate WORDS`; that of the tree runs in this process, which saves a
    start."""
    if tidegate_python() == sys.executable:
        code = cli.main(words)
        return code, *capsys.readouterr()
    command = [tidegate_python(), "-m", "tidegate", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def run_words(*words: str) -> "subprocess.CompletedProcess[str]":
    """`tidegate WORDS`, as `run_command`, where a test runs many or more than one kind of command."""
    if tidegate_python() != sys.executable:
        command = [tidegate_python(), "-m", "tidegate", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(error):
        code = cli.main(words)
    return subprocess.CompletedProcess(words, code, *(each.buffer.getvalue().decode() for each in (out, error)))


def loaded_by(statements: str) -> set[str]:
    """The names of the modules that a new process has after these."""
    command = [sys.executable, "-c", f"import sys; {statements}; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
