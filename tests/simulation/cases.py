"""The cases of the simulation: what is read, by whom, over which link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.tier_storage import TierStorageSettings
from tests.simulation.consumer import ClientProfile, Position
from tests.support.simulated_link import LinkProfile, Manner
from tests.support.simulated_store import GIB, MIB, SimulatedTopic

LINKS: Mapping[str, LinkProfile] = {
    "30ms-60-400": LinkProfile(first_byte_s=0.030, connection_bytes_per_s=60e6, link_bytes_per_s=400e6),
    "10ms-90-600": LinkProfile(first_byte_s=0.010, connection_bytes_per_s=90e6, link_bytes_per_s=600e6),
    "100ms-20-300": LinkProfile(first_byte_s=0.100, connection_bytes_per_s=20e6, link_bytes_per_s=300e6),
}
"""No constant of the product may depend on which it is."""

DEFAULTS = TierStorageSettings(
    block_bytes=MIB,
    memory_bytes_max=256 * MIB,
    readahead_stream_bytes_max=128 * MIB,
    readahead_total_bytes_max=512 * MIB,
    inflight_bytes_max=512 * MIB,
    indexes_bytes_max=96 * MIB,
    gets_max=32,
    hedge_gets_per_minute_min=60,
)
"""As Tidegate's configuration has them."""

AHEAD_BYTES = 256 * MIB
"""So much each partition has behind what is read of it."""


CLIENT = ClientProfile()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`readers`: for each consumer, the spans that it reads: partition, first byte, end."""

    name: str
    topic: SimulatedTopic
    readers: Sequence[Sequence[tuple[int, int, int]]]
    settings: TierStorageSettings = DEFAULTS
    client: ClientProfile = CLIENT
    manners: Mapping[int, Manner] = field(default_factory=dict)
    passes: int = 1
    is_long: bool = False

    def positions(self) -> list[list[Position]]:
        """Each consumer's, at the beginning."""
        batch_bytes = self.topic.batch_bytes
        return [
            [
                Position(self.topic.partition(number), start // batch_bytes, -(-end // batch_bytes))
                for number, start, end in spans
            ]
            for spans in self.readers
        ]


def cold(partitions: int, total_bytes: int, *, segment_bytes: int = 64 * MIB, is_long: bool = False) -> Case:
    """One consumer of so many partitions, nothing cached."""
    each = total_bytes // partitions
    whole = -(-(each + AHEAD_BYTES) // segment_bytes) * segment_bytes
    return Case(
        name=f"cold {partitions} x {total_bytes // partitions // MIB} MiB",
        topic=SimulatedTopic(partitions=partitions, partition_bytes=whole, segment_bytes=segment_bytes),
        readers=[[(number, 0, each) for number in range(partitions)]],
        is_long=is_long,
    )


CASES: Sequence[Case] = (
    cold(1, 400 * MIB),
    cold(2, 400 * MIB),
    cold(2, 2 * GIB, is_long=True),
    cold(8, 400 * MIB),
)
