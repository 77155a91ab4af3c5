"""Two ways to a `tidegate` command without a checkout's environment: `make install`, and uv from the wheel."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.built import wheel_of_the_tree
from tests.support.needs import ROOT
from tools.install_packages import handed_over, pip_configuration, pip_settings

pytestmark = pytest.mark.needs("network")


def test_make_install_needs_python_alone(tmp_path: Path) -> None:
    """Neither Java nor Maven is asked for anything. What was installed is looked at from elsewhere."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("java", "mvn"):
        (tools / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked; exit 1\n")
        (tools / name).chmod(0o755)
    prefix = tmp_path / "prefix"
    environ = {**os.environ, "PATH": f"{tools}:{os.environ.get('PATH', os.defpath)}"}
    environ.pop("PYTHONPATH", None)
    command = ["make", "--no-print-directory", "install", f"PREFIX={prefix}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "asked").exists()
    assert re.fullmatch(r"tidegate \d+\.\d+\.\d+\n", done.stdout)
    assert (prefix / "share" / "man" / "man1" / "tidegate.1").is_file()
    program = "import tidegate.proxy, confluent_kafka, google.cloud.storage; print(tidegate.__file__)"
    where = subprocess.run(
        [prefix / "bin" / "python", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(f"{prefix}/lib/")


def test_uv_runs_it_out_of_the_wheel(tmp_path: Path) -> None:
    """As `uvx --from FILE.whl tidegate`, by the settings that pip has."""
    settings = pip_settings(pip_configuration())
    environ = {**os.environ, **handed_over(settings, os.environ, (99, 0)).environment}
    environ.pop("PYTHONPATH", None)
    if "cert" in settings:
        environ["SSL_CERT_FILE"] = settings["cert"]
    command: list[str | Path] = [
        Path(sys.executable).with_name("uvx"),
        "--quiet",
        "--from",
        wheel_of_the_tree(tmp_path),
        "tidegate",
        "check",
    ]
    file = tmp_path / "tidegate.properties"
    file.write_text("mode=x\n")
    done = subprocess.run([*command, file], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "tidegate: tidegate.properties:1: mode = x: must be one of replica, standalone" in done.stderr
