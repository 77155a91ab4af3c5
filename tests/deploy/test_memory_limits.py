"""Containers and units get `memory.max.bytes` and 150 MiB: what resident memory stays below."""

import re
from pathlib import Path

import pytest

from proxy.config.model import SERVE_KEYS
from storage.config.keys import MIB
from tests.support.needs import ROOT

BESIDE_BYTES = 150 * MIB
DEPLOY = ROOT / "deploy"
SIZES = {"m": MIB, "mi": MIB, "mib": MIB, "gib": 1024 * MIB}


def found(path: Path, pattern: str) -> int:
    """The size that a pattern's only match in a file says, in bytes."""
    ((number, unit),) = set(re.findall(pattern, path.read_text("utf-8")))
    return round(float(number) * SIZES[unit.lower()])


@pytest.mark.parametrize(
    ("limit", "pattern", "properties"),
    [
        (DEPLOY / "systemd" / "tidegate.service", r"(?m)^MemoryMax=(\d+)(M)$", None),
        (DEPLOY / "kubernetes" / "tidegate.yaml", r"memory: (\d+)(Mi)\}", DEPLOY / "kubernetes" / "tidegate.yaml"),
        (
            ROOT / "docker-compose.yml",
            r"mem_limit: (\d+)(m)  # memory.max.bytes",
            DEPLOY / "compose" / "tidegate.properties",
        ),
    ],
    ids=["systemd", "kubernetes", "compose"],
)
def test_the_limit_is_what_resident_memory_stays_below(limit: Path, pattern: str, properties: Path | None) -> None:
    memory_bytes_max = (
        SERVE_KEYS.by_name["memory.max.bytes"].default_value
        if properties is None
        else found(properties, r"memory\.max\.bytes=([\d.]+) ([MG]iB)")
    )
    assert found(limit, pattern) == memory_bytes_max + BESIDE_BYTES
