"""The command line in processes of its own: signals while it starts, and what it must not import."""

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate import cli

FILE = "upstream.bootstrap.servers=broker:9092\nremote.log.storage.manager.class.name=tidegate.PlainObjects\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tidegate.properties"
    path.write_text(FILE)
    return str(path)


STARTING = """
import contextlib, signal, sys, types

async def serve(config):
    signal.raise_signal(signal.SIGHUP)
    print("passed over", flush=True)
    with contextlib.suppress(BaseException):  # as many an import does
        signal.raise_signal(signal.SIGTERM)
    print("it went on", flush=True)
    return 1

sys.modules["tidegate.serve"] = types.SimpleNamespace(serve=serve)
from tidegate import cli
sys.exit(cli.main(["serve", sys.argv[1]]))
"""


def test_a_signal_ends_a_start_wherever_it_comes_and_a_reload_is_passed_over(file: str) -> None:
    started = subprocess.run([sys.executable, "-c", STARTING, file], capture_output=True, text=True, timeout=60)
    assert (started.returncode, started.stdout) == (0, "passed over\n"), started.stderr


def run(script: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: this one has imported everything long ago."""
    command, folder = [sys.executable, "-c", script], Path(cli.__file__).parents[1]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=60)


def test_help_imports_no_library() -> None:
    done = run(
        "import sys\n"
        "from tidegate import cli\n"
        "try:\n"
        "    cli.main(['--help'])\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "heavy = {'trio', 'boto3', 'kio', 'javaproperties', 'cryptography', 'pydantic', 'structlog', 'rich'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else code)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "serve" in done.stdout
    assert all(name in done.stdout for name in ("check", "ls", "metadata"))


def test_the_configuration_is_loaded_without_trio_or_boto3(file: str) -> None:
    done = run(
        "import sys, pathlib\n"
        "from tidegate.config import load\n"
        f"load(pathlib.Path({file!r}), {{}})\n"
        "heavy = {'trio', 'boto3', 'kio', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
