"""How far one partition is, for the page, the log and `copy --once`."""

from dataclasses import dataclass

from metrics.copy_meters import Stall
from standalone.copier.waits import Waiting


@dataclass(slots=True, kw_only=True)
class PartitionProgress:
    """Offsets are Kafka's: `copied_offset` is the last one in the tier; -1: none, or not known.

    `is_copied`: else it is only deleted from. `waits_for`: in words; `stall`: None while all goes well; `last_error`:
    of what is being tried again, None once it has succeeded. `looks`: those in which everything that was due was done.
    `is_pressed`: upstream has deleted records that are staged here, or is about to. `retention_share`: what is not in
    the tier, as a share of what upstream keeps by age or by size. `deletion`: what waits to be deleted.
    `dead_segments`: hold only records that upstream has lost.
    """

    topic: str
    partition: int
    is_copied: bool = True
    copied_offset: int = -1
    last_stable_offset: int = -1
    copied_bytes: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    retention_share: float = 0.0
    waits_for: str = "its metadata"
    stall: Stall | None = None
    last_error: str | None = None
    looks: int = 0
    is_pressed: bool = False
    deletion: Waiting | None = None
    dead_segments: int = 0
    dead_bytes: int = 0

    @property
    def is_poisoned(self) -> bool:
        """Return whether a batch ends the copying that can never be copied."""
        return self.stall is Stall.POISON
