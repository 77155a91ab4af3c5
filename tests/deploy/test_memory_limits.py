"""Containers and units get `memory.max.bytes` and 150 MiB: what resident memory stays below."""

import re
from pathlib import Path

from storage.config.value_kinds import MIB
from tests.support.needs import ROOT
from tidegate.config.model import SERVE_KEYS

BESIDE_BYTES = 150 * MIB
DEPLOY = ROOT / "deploy"
SIZES = {"m": MIB, "mi": MIB, "mib": MIB, "gib": 1024 * MIB}


def found(path: Path, pattern: str) -> int:
    """The size that a pattern's only match in a file says, in bytes."""
    ((number, unit),) = set(re.findall(pattern, path.read_text("utf-8")))
    return round(float(number) * SIZES[unit.lower()])


def test_limits_are_what_resident_memory_stays_below() -> None:
    default = SERVE_KEYS.by_name["memory.max.bytes"].default_value
    assert found(DEPLOY / "systemd" / "tidegate.service", r"(?m)^MemoryMax=(\d+)(M)$") == default + BESIDE_BYTES
    manifest, properties = DEPLOY / "kubernetes" / "tidegate.yaml", DEPLOY / "compose" / "tidegate.properties"
    key = r"memory\.max\.bytes=([\d.]+) ([MG]iB)"
    assert found(manifest, r"memory: (\d+)(Mi)\}") == found(manifest, key) + BESIDE_BYTES
    compose = found(ROOT / "docker-compose.yml", r"mem_limit: (\d+)(m)  # memory.max.bytes")
    assert compose == found(properties, key) + BESIDE_BYTES
