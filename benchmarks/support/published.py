"""Figures that documents quote, kept beside them: what was measured, when, and on which machine."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "performance"

Figures = Mapping[str, Any]


def save(path: Path, rows: Sequence[Figures], *, key: str = "row") -> None:
    """Write the rows in place of those with the same key; a row has the date and the commit of its run."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    run = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit, "machine": machine()}
    kept = {row[key]: row for row in (load(path) if path.exists() else [])}
    kept |= {row[key]: {**row, **run} for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in kept.values()), encoding="utf-8")


def load(path: Path) -> list[Figures]:
    """A file's rows, each a line of JSON."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def machine() -> str:
    """Return its processor, cores, kernel and Python."""
    models = [
        line.partition(": ")[2]
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
        if line.startswith("model name")
    ]
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}, {system}, " + (
        f"Python {platform.python_version()}"
    )
