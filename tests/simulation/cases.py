"""The cases of the simulation: what is read, by whom, over which link, and what is to be reached.

All sizes are of plaintext. `Case.aim` is a share of what the link and the consumers' own rate allow. Beside these aims:
a second pass over the same data is never slower than the first, and a half-cached one never slower than a cold one
(`Case.not_below`).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.simulation.consumer import ClientProfile, Position
from tests.support.simulated_link import LATE, SLOW, STALLED, LinkProfile, Manner
from tests.support.simulated_store import GIB, KIB, MIB, SimulatedTopic
from tidegate.tier_storage import TierStorageSettings

LINKS: Mapping[str, LinkProfile] = {
    "30ms-60-400": LinkProfile(first_byte_s=0.030, connection_bytes_per_s=60e6, link_bytes_per_s=400e6),
    "10ms-90-600": LinkProfile(first_byte_s=0.010, connection_bytes_per_s=90e6, link_bytes_per_s=600e6),
    "100ms-20-300": LinkProfile(first_byte_s=0.100, connection_bytes_per_s=20e6, link_bytes_per_s=300e6),
    "30ms-10-160": LinkProfile(first_byte_s=0.030, connection_bytes_per_s=10e6, link_bytes_per_s=160e6),
}
"""First byte, MB a second of a connection, MB a second of all. No constant of the product may depend on which it is."""

FIRST = ("30ms-60-400",)
THREE = (*FIRST, "10ms-90-600", "100ms-20-300")

SEEDS = range(4)
"""Each moves what is read a little and has connections differ in their own way: one run says nothing, since a GET more
or less at the end, or which one is late, moves a share by 0.05."""

DISK = LinkProfile(first_byte_s=0.0001, connection_bytes_per_s=1e9, link_bytes_per_s=2e9)
"""A local NVMe."""

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

ROOMY = replace(DEFAULTS, memory_bytes_max=GIB)
"""All that a case reads stays in memory."""

SHIFT_BYTES = 8 * MIB
"""A seed moves what is read by less than this."""

AHEAD_BYTES = 256 * MIB
"""So much each partition has behind what is read of it."""

CLIENT = ClientProfile()

Blocks = Callable[[int], bool]
"""Whether a block, by its number in the partition, is cached before a case begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`readers`: for each consumer, the spans that it reads: partition, first byte, end.

    `manners`: of GETs of logs, by their numbers. `cached`: what is in memory before, of each partition that is read.
    `disk_bytes`: 0: no disk. `is_quick`: `make test` runs it by one seed, over the first of `links`. `links_in_all`:
    how many of them `make test-all` runs it over, from the first on; over the others it is long.
    """

    name: str
    topic: SimulatedTopic
    readers: Sequence[Sequence[tuple[int, int, int]]]
    settings: TierStorageSettings = DEFAULTS
    client: ClientProfile = CLIENT
    manners: Mapping[int, Manner] = field(default_factory=dict)
    cached: Blocks | None = None
    disk_bytes: int = 0
    passes: int = 1
    links: Sequence[str] = FIRST
    is_quick: bool = False
    links_in_all: int = 1
    aim: float | None = None
    not_below: str | None = None

    def positions(self, seed: int | None = None) -> list[list[Position]]:
        """Each consumer's, at the beginning."""
        batch_bytes, shifts = self.topic.batch_bytes, random.Random(seed)

        def position(number: int, start: int, end: int) -> Position:
            shift = 0 if seed is None else shifts.randrange(SHIFT_BYTES // batch_bytes)
            first, stop = start // batch_bytes + shift, -(-end // batch_bytes) + shift
            return Position(self.topic.partition(number), first, min(stop, self.topic.partition_bytes // batch_bytes))

        return [[position(*span) for span in spans] for spans in self.readers]

    def reachable_bytes_per_s(self, profile: LinkProfile) -> float:
        """Return what the link and the clients allow; what is cached may be faster."""
        return min(profile.link_bytes_per_s, len(self.readers) * self.client.takes_bytes_per_s)


def sequential(
    name: str,
    partitions: int,
    total_bytes: int,
    *,
    segment_bytes: int = 64 * MIB,
    batch_bytes: int = 64 * KIB,
    ahead_bytes: int = AHEAD_BYTES,
) -> Case:
    """One consumer of so many partitions from their beginnings on, nothing cached."""
    each = total_bytes // partitions // batch_bytes * batch_bytes
    whole = -(-(each + ahead_bytes) // segment_bytes) * segment_bytes
    return Case(
        name=f"{name} {partitions} x {each // MIB} MiB",
        topic=SimulatedTopic(
            partitions=partitions, partition_bytes=whole, segment_bytes=segment_bytes, batch_bytes=batch_bytes
        ),
        readers=[[(number, 0, each) for number in range(partitions)]],
    )


def side_by_side(readers: int, each_bytes: int, apart_bytes: int) -> Case:
    """Consumers with a connection each, in one partition, as Spark has them."""
    starts = [at * apart_bytes + 5 * MIB for at in range(readers)]
    whole = -(-(starts[-1] + each_bytes + AHEAD_BYTES) // (64 * MIB)) * 64 * MIB
    return Case(
        name=f"{readers} readers of 1 x {each_bytes // MIB} MiB",
        topic=SimulatedTopic(partitions=1, partition_bytes=whole),
        readers=[[(0, start, start + each_bytes)] for start in starts],
        aim=0.8,
    )


def chunked(case: Case, chunk_bytes: int) -> Case:
    """The same in a format with chunks and manifests."""
    topic = replace(case.topic, chunk_bytes=chunk_bytes)
    return replace(case, name=f"{case.name}, {chunk_bytes // MIB} MiB chunks", topic=topic)


def half_cached(case: Case, name: str, cached: Blocks) -> Case:
    """The same with some blocks cached, and memory for the others."""
    return replace(
        case, name=case.name.replace("cold", f"{name} cached,"), settings=ROOMY, cached=cached, not_below=case.name
    )


def is_even(number: int) -> bool:
    return number % 2 == 0


def is_below_100(number: int) -> bool:
    return number < 100


def is_in_random_half(number: int) -> bool:
    """The same half each time."""
    return random.Random(number).random() < 0.5


_ONE = sequential("cold", 1, 400 * MIB)
_TWO = sequential("cold", 2, 400 * MIB)
_WARM = replace(_TWO, settings=ROOMY)

CASES: Sequence[Case] = (
    replace(_ONE, aim=0.7, links=THREE),
    replace(_TWO, aim=0.8, links=THREE, is_quick=True, links_in_all=3),
    replace(sequential("cold", 2, 2 * GIB), aim=0.9, links=THREE, links_in_all=0),
    replace(sequential("cold", 8, 400 * MIB), links=THREE, is_quick=True, links_in_all=3),
    sequential("cold", 64, 640 * MIB),
    sequential("1 GiB segments", 2, 400 * MIB, segment_bytes=GIB),
    replace(
        sequential("1 GiB segments, 4 KiB batches", 64, 256 * MIB, segment_bytes=GIB, batch_bytes=4 * KIB),
        links_in_all=0,
    ),
    replace(sequential("8 MiB segments", 1, 200 * MIB, segment_bytes=8 * MIB), links=THREE),
    sequential("8 MiB segments", 2, 400 * MIB, segment_bytes=8 * MIB),
    chunked(_TWO, 4 * MIB),
    replace(
        chunked(sequential("8 MiB segments", 2, 200 * MIB, segment_bytes=8 * MIB), 4 * MIB), links=THREE, is_quick=True
    ),
    replace(
        chunked(sequential("slow connections,", 2, 400 * MIB, segment_bytes=50 * MIB, ahead_bytes=0), 4 * MIB),
        settings=replace(DEFAULTS, gets_max=16),
        links=("30ms-10-160",),
        is_quick=True,
        aim=0.77,
    ),
    replace(half_cached(_ONE, "every other block", is_even), links_in_all=0),
    half_cached(_TWO, "every other block", is_even),
    half_cached(_TWO, "random half", is_in_random_half),
    replace(half_cached(_TWO, "first half", is_below_100), is_quick=True),
    replace(_WARM, name="all cached in memory, 2 x 200 MiB", passes=2),
    replace(
        sequential("all cached on disk,", 2, 200 * MIB),
        settings=replace(DEFAULTS, memory_bytes_max=32 * MIB),
        disk_bytes=GIB,
        passes=2,
    ),
    replace(_ONE, name="cache smaller than 1 x 400 MiB", passes=2, links_in_all=0),
    replace(_TWO, name="cache smaller than 2 x 200 MiB", passes=2),
    replace(
        _TWO,
        name="cache of 64 MiB, 2 x 200 MiB",
        settings=replace(DEFAULTS, memory_bytes_max=64 * MIB),
        passes=2,
        links_in_all=0,
    ),
    replace(
        sequential("consumer of 100 MB/s,", 1, 200 * MIB),
        client=replace(CLIENT, takes_bytes_per_s=100e6),
        links=THREE,
        aim=0.8,
    ),
    replace(
        sequential("consumer of 100 MB/s,", 8, 200 * MIB), client=replace(CLIENT, takes_bytes_per_s=100e6), aim=0.9
    ),
    replace(_TWO, name="one connection stalls, 2 x 200 MiB", manners={30: STALLED}, links=THREE),
    replace(_TWO, name="one connection is slow, 2 x 200 MiB", manners={30: SLOW}, links=THREE, is_quick=True),
    replace(_TWO, name="one answer is late, 2 x 200 MiB", manners={30: LATE}, links=THREE),
    side_by_side(16, 50 * MIB, 80 * MIB),
)


def case_named(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)
