"""Runs one case: the real storage side over a simulated store, with consumers, in virtual time.

What is real: `tidegate.tier_storage.open_tier_storage`, so reader, catalog, caches, fills, read-ahead and planner.
What is not: the store and its link, processor time (none is spent but what `ClientProfile` says), the proxy and its
clients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from storage.cache.disk import DiskBlocks
from storage.model import RemoteLogSegmentMetadata
from storage.steps import finish
from tests.simulation.cases import DISK, Case
from tests.simulation.consumer import LINEAGE, Consumer, Position
from tests.support.segments import FIRST_TIMESTAMP_MS
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_link import LinkProfile, SimulatedLink
from tests.support.simulated_store import SimulatedGet, SimulatedStore
from tests.support.simulated_time import Simulation, simulate
from tests.support.tier import catalog_of
from tidegate.tier_storage import open_tier_storage

AFTERWARDS_S = 5.0
"""So long after the last answer GETs may still go on: what they bring counts as fetched."""

PRIMED_BYTES_MAX = 16 * 1024 * 1024

NOW_MS = FIRST_TIMESTAMP_MS + 24 * 3600 * 1000

OpenDisk = Callable[[Simulation, Meters, str], DiskBlocks | None]

Span = tuple[int, int]
"""Positions [start, end) of a segment's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass over the data was like. Times are virtual.

    `share`: of what link and consumers allow. `fetched_bytes`: of the logs, and of what consumers asked for; what one
    of them asks for counts as often as it is fetched. `beyond_bytes`: fetched of what nobody asked for.
    """

    delivered_bytes: int
    elapsed_s: float
    first_answer_s: float
    share: float
    fetched_bytes: int
    beyond_bytes: int
    gets: int
    gets_open_max: int

    @property
    def fetched_ratio(self) -> float:
        return self.fetched_bytes / self.delivered_bytes

    @property
    def gets_per_gb(self) -> float:
        return self.gets / (self.delivered_bytes / 1e9)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's passes, and everything that happened, as lines."""

    passes: tuple[Pass, ...]
    trace: tuple[str, ...]


def run_case(case: Case, profile: LinkProfile, seed: int | None = None) -> Outcome:
    """Run it over such a link. `seed`: another one moves what is read a little, and has other connections differ."""
    link, disk = SimulatedLink(profile, seed), SimulatedLink(DISK)

    async def main(simulation: Simulation) -> Outcome:
        async with trio.open_nursery() as nursery:
            world = World(case, link, simulation, nursery, opened, seed)
            outcome = await world.run()
            world.store.shut()
            nursery.cancel_scope.cancel()
        return outcome

    def opened(simulation: Simulation, meters: Meters, identity: str) -> DiskBlocks | None:
        if not case.disk_bytes:
            return None
        slow = SimulatedDisk(Path(folder), case.disk_bytes, identity, disk, simulation.threads, meters.cache)
        return cast(DiskBlocks, slow)

    with TemporaryDirectory() as folder:
        return simulate(main, link, disk)


class World:
    """One run of a case."""

    def __init__(
        self,
        case: Case,
        link: SimulatedLink,
        simulation: Simulation,
        nursery: trio.Nursery,
        open_disk: OpenDisk,
        seed: int | None,
    ) -> None:
        self._case = case
        self._seed = seed
        self._link = link
        topic = case.topic
        self.segments = topic.segments()
        self.store = SimulatedStore(topic, link, simulation.threads, dict(case.manners))
        meters = Meters(Registry())
        self.storage = open_tier_storage(
            case.settings,
            self.store,
            catalog_of(self.segments),
            nursery=nursery,
            meters=meters,
            disk_blocks=open_disk(simulation, meters, self.store.identity),
            now_ms=lambda: NOW_MS,
        )
        nursery.start_soon(self.storage.run)
        self._trace: list[str] = []

    async def run(self) -> Outcome:
        await self._prime()
        passes = [await self._pass(number) for number in range(self._case.passes)]
        self._trace += [str(get) for get in self.store.gets]
        return Outcome(tuple(passes), tuple(self._trace))

    async def _pass(self, number: int) -> Pass:
        gets_before, self._link.open_max = len(self.store.gets), 0
        started_s = trio.current_time()
        positions = self._case.positions(self._seed)
        consumers = [
            Consumer(self.storage.reader, f"pass {number} consumer {at}", of_one, self._case.client)
            for at, of_one in enumerate(positions)
        ]
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(consumer.run)
        answers = sorted(answer for consumer in consumers for answer in consumer.taken.answers)
        self._trace += [f"answer {answer!r}" for answer in answers]
        open_max = self._link.open_max
        await trio.sleep(AFTERWARDS_S)
        delivered_bytes = sum(consumer.taken.whole_batch_bytes for consumer in consumers)
        elapsed_s = answers[-1][0] - started_s
        gets = [get for get in self.store.gets[gets_before:] if get.is_log]
        asked = self._asked([position for of_one in positions for position in of_one])
        fetched = sum(get.received_bytes for get in gets)
        wanted = sum(_common_bytes(get, asked) for get in gets)
        return Pass(
            delivered_bytes=delivered_bytes,
            elapsed_s=elapsed_s,
            first_answer_s=answers[0][0] - started_s,
            share=delivered_bytes / elapsed_s / self._case.reachable_bytes_per_s(self._link.profile),
            fetched_bytes=wanted,
            beyond_bytes=fetched - wanted,
            gets=len(gets),
            gets_open_max=open_max,
        )

    def _asked(self, positions: Sequence[Position]) -> dict[str, list[Span]]:
        """Return what consumers read of every segment, by its id; spans that do not overlap."""
        batch_bytes = self._case.topic.batch_bytes
        asked: dict[str, list[Span]] = {}
        for segment in self.segments:
            spans = []
            for position in positions:
                if position.partition != segment.topic_id_partition:
                    continue
                first = max(position.start_offset, segment.start_offset)
                end = min(position.offset, segment.end_offset + 1)
                if first < end:
                    spans.append(
                        ((first - segment.start_offset) * batch_bytes, (end - segment.start_offset) * batch_bytes)
                    )
            if spans:
                asked[str(segment.segment_id)] = _union(spans)
        return asked

    async def _prime(self) -> None:
        """Put the case's blocks into the cache before it begins, and the last one of each segment, but nothing else.

        A segment's last batch is read: its answer is not cut short by its size, so nothing is read ahead for it. By its
        origin any other bytes of the segment are read.
        """
        cached, topic = self._case.cached, self._case.topic
        if cached is None:
            return
        block_bytes, primed_bytes_max = self._case.settings.block_bytes, 0
        blocks = topic.segment_bytes // block_bytes
        for position in (position for of_one in self._case.positions(self._seed) for position in of_one):
            of_partition = [other for other in self.segments if other.topic_id_partition == position.partition]
            for at, segment in enumerate(of_partition):
                if segment.start_offset >= position.end_offset:
                    break
                numbers = [number for number in range(blocks) if cached(at * blocks + number)]
                await self._bring(segment, numbers)
                primed_bytes_max += (len(numbers) + 1) * block_bytes
        await trio.sleep(AFTERWARDS_S)
        primed_bytes = sum(get.received_bytes for get in self.store.gets if get.is_log)
        assert primed_bytes <= primed_bytes_max, "what a case wants cached is cached, and nothing was read ahead"

    async def _bring(self, segment: RemoteLogSegmentMetadata, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        name, block_bytes = f"primer {segment.segment_id}", self._case.settings.block_bytes
        records = await finish(
            self.storage.reader.read(
                segment.topic_id_partition,
                segment.end_offset,
                max_bytes=1,  # too little for a guess of where it lies
                minimum_one_batch=True,
                lineage=LINEAGE,
                reader=name,
            )
        )
        records.release()
        self.storage.reader.forget_reader(name)
        assert records.origin is not None
        origin = replace(records.origin, start=0)
        for start, end in _union([(number * block_bytes, (number + 1) * block_bytes) for number in numbers]):
            for part in range(start, end, PRIMED_BYTES_MAX):
                (await origin.read(part, min(part + PRIMED_BYTES_MAX, end))).release()


def _union(spans: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _common_bytes(get: SimulatedGet, asked: dict[str, list[Span]]) -> int:
    came_end = get.start + get.received_bytes
    spans = asked.get(str(get.segment.segment_id), ())
    return sum(max(0, min(end, came_end) - max(start, get.start)) for start, end in spans)
