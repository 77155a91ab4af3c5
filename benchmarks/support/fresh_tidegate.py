"""Tidegate just started before the cold stage: nothing in its memory but the catalog."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.aiven_stage import ColdStage
from benchmarks.support.stage import Address
from benchmarks.support.tier_usage import TierUsage, tier_usage
from tools.demo.tidegate_process import PROGRAM, Tidegate


@dataclass(frozen=True, slots=True)
class FreshTidegate:
    """It runs and is ready."""

    address: Address
    process: Tidegate

    def usage(self) -> TierUsage:
        """Since it was started."""
        return tier_usage(self.process)


@contextmanager
def fresh_tidegate(
    stage: ColdStage,
    variant: str,
    scheme: str,
    properties: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[FreshTidegate]:
    """Start one with default budgets and no disk cache; `properties` win over those."""
    process = Tidegate(
        work=Path(tempfile.mkdtemp(prefix="tidegate-", dir=stage.work)),
        server_properties=stage.cluster.server_properties_path(1),
        bootstrap_servers=stage.cluster.bootstrap_servers,
        properties={**stage.tidegate_properties(variant, scheme), **(properties or {})},
        program=program,
    )
    process.start()
    try:
        host, _, port = process.wait_ready().rpartition(":")
        yield FreshTidegate((host, int(port)), process)
    finally:
        process.stop()
