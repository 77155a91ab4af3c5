"""`tidegate warm FILE TOPIC[:PARTITION]`: have a running `serve` fill its cache for a range (docs/tools.md#warm).

It reads the range through `serve` as any consumer does, and drops the bytes. So rights hold, each partition is read at
its leader's listener, where its clients will read it (with workers: by the worker that has that broker), and `serve`
needs no second way in. What `serve` reads from the store goes to memory at once and to disk behind that, whoever asked.

- A partition is read from its first offset to its last, several partitions side by side; `bytes_per_s` is for all.
- It ends at the local log start: what is above is the brokers' own, and not cached.
- Its Fetches are as large as a consumer's, so read-ahead goes in front of it as it would for one.
"""

import os
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import trio
from prometheus_client.parser import text_string_to_metric_families

from protocol.client.connection import drive_async
from protocol.client.errors import OffsetOutOfRangeError, UpstreamError, UpstreamUnsupportedError
from protocol.client.leaders import AskMetadata, FetchedRecords, LeaderQuestions, Step, Steps
from protocol.list_offsets import OffsetTimestamp
from protocol.record_batches import CorruptBatchError, iterate_batches
from proxy.commands.output import Progress, print_json, print_table, size
from proxy.commands.report import Report
from proxy.commands.through_serve import both_sides
from proxy.commands.tier import TierError, run_command
from proxy.config.model import Config
from proxy.process import exit_codes
from proxy.upstream.cluster import Cluster
from storage.config.model import HostPort
from storage.config.sources import ConfigError

T = TypeVar("T")

ROLE: Final = "warm"

FETCH_BYTES: Final = 4 * 1024 * 1024
FETCH_WAIT_MS: Final = 500
PARTITIONS_AT_ONCE: Final = 8
TROUBLES_MAX: Final = 60
"""Errors that may pass, or empty answers, one after the other, of one partition; with the waits between, some minutes
in which the store, or a leader, does not answer."""
TROUBLE_WAIT_S: Final = 1.0

METRICS_WAIT_S: Final = 5.0
METRICS_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOptions:
    """`partition`: None for all. Of the ends of the range an offset is set, or a time, or neither: then it is the log
    start, or the local log start."""

    topic: str
    partition: int | None
    from_offset: int | None
    to_offset: int | None
    from_timestamp_ms: int | None
    to_timestamp_ms: int | None
    bytes_per_s: int
    bootstrap: HostPort | None
    command_config: Path | None


@dataclass(slots=True)
class Range:
    """What is read of one partition: from `position` to below `end_offset`."""

    partition: int
    start_offset: int
    end_offset: int
    position: int = field(init=False)
    size_bytes: int = 0
    problem: str = ""

    def __post_init__(self) -> None:
        self.position = self.start_offset

    @property
    def left(self) -> int:
        return max(0, self.end_offset - self.position)


class Pace:
    """So many bytes a second, after each other's: who has read waits until its bytes are due."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_at_s = trio.current_time()

    async def spend(self, size_bytes: int) -> None:
        """Wait for the end of what these bytes take."""
        self._due_at_s = max(self._due_at_s, trio.current_time()) + size_bytes / self._bytes_per_s
        await trio.sleep_until(self._due_at_s)


def run(config: Config, options: WarmOptions, out: TextIO, *, is_json: bool = False) -> int:
    """Warm and print; the exit code."""
    try:
        settings = both_sides(config, options.bootstrap, options.command_config, os.environ).serve
    except ConfigError as error:
        for problem in error.problems:
            print(f"tidegate: {problem}", file=sys.stderr)
        return exit_codes.USAGE

    async def work() -> int:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(settings, nursery)
            before = await _cache_samples(config, options)
            began_at_s = time.monotonic()
            warming = Warming(cluster, options)
            ranges = await warming.ranges()
            if not is_json:
                offsets = sum(each.left for each in ranges)
                out.write(f"{offsets} offsets of {len(ranges)} partitions are read from the tier\n\n")
                out.flush()
            with Progress("warming", "offsets") as progress:
                await warming.run(ranges, progress.told)
            took_s = time.monotonic() - began_at_s
            after = await _cache_samples(config, options)
            nursery.cancel_scope.cancel()
        document = _document(options.topic, ranges, took_s, before, after)
        if is_json:
            print_json(out, document)
        else:
            _show(document, out)
        return exit_codes.FOUND_WRONG if any(each.problem for each in ranges) else exit_codes.DONE

    return run_command(work)


class Warming:
    """Reads ranges through one cluster view, that of `serve`."""

    def __init__(self, cluster: Cluster, options: WarmOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._questions = LeaderQuestions(cluster, cluster.settings)
        self._pace = Pace(options.bytes_per_s)

    async def ranges(self) -> list[Range]:
        """What there is to be read, of partitions that have some of it in the tier.

        Raises:
            TierError: there is no such topic or partition, or `serve` does not answer.
        """
        topic = self._options.topic
        try:
            found = await self._run(self._questions.describe([topic]))
            if not found:
                raise TierError(
                    f"there is no topic {topic}, or this identity may not describe it; --command-config names another"
                )
            numbers = sorted(found[0].partitions)
            if self._options.partition is not None:
                if self._options.partition not in numbers:
                    raise TierError(
                        f"topic {topic} has no partition {self._options.partition}: it has {len(numbers)}; name one"
                        f" below that, or none for all"
                    )
                numbers = [self._options.partition]
            ranges = [await self._range(number) for number in numbers]
        except UpstreamUnsupportedError as error:
            raise TierError(f"{error}: only Kafka 3.6 and later tell where the local log begins; upgrade it") from error
        except UpstreamError as error:
            raise TierError(
                f"no answer through Tidegate: {error}. Is `tidegate serve` running, and reachable from here?"
                " --bootstrap names another address, --command-config another identity"
            ) from error
        return [each for each in ranges if each.left]

    async def run(self, ranges: Sequence[Range], told: Callable[[int, int], None]) -> None:
        """Read them all; what goes wrong is noted in each."""
        total = sum(each.left for each in ranges)
        turn = trio.CapacityLimiter(PARTITIONS_AT_ONCE)
        lanes = list(range(1, PARTITIONS_AT_ONCE + 1))

        async def read(one: Range) -> None:
            async with turn:
                lane = lanes.pop()
                try:
                    await self._read(one, lane, lambda: told(total - sum(each.left for each in ranges), total))
                finally:
                    lanes.append(lane)

        async with trio.open_nursery() as nursery:
            for each in ranges:
                nursery.start_soon(read, each)

    async def _range(self, partition: int) -> Range:
        options = self._options
        first = await self._offset(partition, OffsetTimestamp.EARLIEST)
        end = await self._offset(partition, OffsetTimestamp.EARLIEST_LOCAL)
        start = first
        if options.from_offset is not None:
            start = max(start, options.from_offset)
        elif options.from_timestamp_ms is not None:
            found = await self._offset(partition, options.from_timestamp_ms)
            start = end if found < 0 else max(start, found)
        if options.to_offset is not None:
            end = min(end, options.to_offset + 1)
        elif options.to_timestamp_ms is not None:
            found = await self._offset(partition, options.to_timestamp_ms + 1)
            end = end if found < 0 else min(end, found)
        return Range(partition, start, end)

    async def _offset(self, partition: int, timestamp: int) -> int:
        query = (self._options.topic, partition, int(timestamp))
        answers = await self._run(self._questions.list_offsets([query], {}))
        return answers[query].offset

    async def _read(self, one: Range, lane: int, on_progress: Callable[[], None]) -> None:
        troubles = 0
        while one.left:
            try:
                fetched = await self._fetch(one, lane)
                end = _end_of(fetched)
            except OffsetOutOfRangeError:
                # Retention has passed by: what is gone needs no cache.
                one.position = max(one.position + 1, await self._offset(one.partition, OffsetTimestamp.EARLIEST))
                continue
            except (UpstreamError, CorruptBatchError) as error:
                troubles += 1
                if troubles > TROUBLES_MAX or not getattr(error, "retriable", False):
                    one.problem = str(error)
                    return
                await trio.sleep(TROUBLE_WAIT_S)
                continue
            if end <= one.position:
                troubles += 1
                if troubles > TROUBLES_MAX:
                    one.problem = f"nothing has come at offset {one.position} for {troubles} times"
                    return
                continue
            troubles = 0
            one.position = end
            one.size_bytes += len(fetched.data)
            on_progress()
            await self._pace.spend(len(fetched.data))

    async def _fetch(self, one: Range, lane: int) -> FetchedRecords:
        steps = self._questions.fetch(
            self._options.topic,
            one.partition,
            one.position,
            max_bytes=FETCH_BYTES,
            read_committed=False,
            max_wait_ms=FETCH_WAIT_MS,
        )
        return await self._run(steps, lane)

    async def _run(self, steps: Steps[T], lane: int = 0) -> T:
        async def answer(step: Step) -> Any:
            if isinstance(step, AskMetadata):
                return await self._cluster.learn_topics(step.names or ())
            answers: list[Any] = []
            for asked in step:
                try:
                    connection = await self._cluster.connection_to(asked.node_id, ROLE, lane=lane)
                    answers.append(await connection.request(asked.question, asked.timeout_s))
                except UpstreamError as error:
                    if error.retriable:
                        self._cluster.forget(self._options.topic)  # the leader may be another one
                    answers.append(error)
            return answers

        return await drive_async(steps, answer)


def _end_of(fetched: FetchedRecords) -> int:
    """The offset behind the last whole batch; −1 without one."""
    end = -1
    for _position, base_offset, _size, _magic, delta in iterate_batches([fetched.data]):
        end = base_offset + delta + 1
    if end < 0 and fetched.data:
        raise CorruptBatchError(f"{len(fetched.data)} bytes without a whole batch")
    return end


def _document(
    topic: str, ranges: Sequence[Range], took_s: float, before: dict[str, float] | None, after: dict[str, float] | None
) -> dict[str, Any]:
    size_bytes = sum(each.size_bytes for each in ranges)
    document: dict[str, Any] = {
        "topic": topic,
        "bytes": size_bytes,
        "seconds": round(took_s, 3),
        "bytes_per_second": round(size_bytes / took_s) if took_s else 0,
        "partitions": [
            {
                "partition": each.partition,
                "start_offset": each.start_offset,
                "end_offset": each.position,
                "bytes": each.size_bytes,
                **({"problem": each.problem} if each.problem else {}),
            }
            for each in ranges
        ],
    }
    if before is not None and after is not None:
        document["cache"] = {
            "filled_bytes": after["filled"] - before["filled"],
            "disk_resident_bytes": after["disk"],
            "memory_resident_bytes": after["memory"],
            "disk_skipped_blocks": after["skipped"] - before["skipped"],
            "evicted_blocks": after["evicted"] - before["evicted"],
        }
    return document


def _show(document: dict[str, Any], out: TextIO) -> None:
    rows = [
        (each["partition"], each["start_offset"], each["end_offset"], size(each["bytes"]))
        for each in document["partitions"]
    ]
    print_table(out, ("partition", "from offset", "to below", "bytes"), rows)
    report = Report(out)
    out.write("\n")
    for each in document["partitions"]:
        if "problem" in each:
            at, number = each["end_offset"], each["partition"]
            go_on = f"{document['topic']}:{number} --from-offset {at} goes on"
            report.wrong(f"{document['topic']}-{number}: ended at {at}: {each['problem']}; {go_on}")
    if not document["partitions"]:
        report.ok("there is nothing of this range in the tier alone: the brokers serve it from their own logs")
    rate = size(document["bytes_per_second"])
    report.ok(f"{size(document['bytes'])} read in {document['seconds']:.1f} s, {rate} a second")
    cache = document.get("cache")
    if cache is None:
        return
    held = f"{size(int(cache['disk_resident_bytes']))} on disk, {size(int(cache['memory_resident_bytes']))} in memory"
    report.ok(f"{size(int(cache['filled_bytes']))} came from the store; the caches hold {held}, of all topics")
    if cache["disk_skipped_blocks"]:
        report.warning(
            f"{int(cache['disk_skipped_blocks'])} blocks were not written to disk, which did not keep up: warm again"
            " with a lower --bytes-per-second"
        )
    if cache["evicted_blocks"]:
        report.warning(
            f"{int(cache['evicted_blocks'])} blocks were evicted meanwhile: what was read first may be gone again; see"
            " cache.disk.bytes"
        )


_SAMPLES: Final = {
    ("tidegate_cache_fill_bytes_total", ""): "filled",
    ("tidegate_cache_resident_bytes", "disk"): "disk",
    ("tidegate_cache_resident_bytes", "memory"): "memory",
    ("tidegate_cache_disk_skipped_blocks_total", ""): "skipped",
    ("tidegate_cache_evictions_total", "disk"): "evicted",
}


async def _cache_samples(config: Config, options: WarmOptions) -> dict[str, float] | None:
    """What the admin listener says of the caches; None where it cannot be asked, or may be another instance's."""
    if options.bootstrap is not None:
        return None
    listen = config.admin.listen
    host = "127.0.0.1" if listen.host in ("", "0.0.0.0") else listen.host
    url = f"http://{HostPort(host, listen.port)}/metrics"

    def ask() -> str | None:
        try:
            with urllib.request.urlopen(url, timeout=METRICS_WAIT_S) as answer:
                return str(answer.read(METRICS_BYTES_MAX).decode())
        except (OSError, ValueError, HTTPException):
            return None  # this is an extra: warming does not need it

    page = await trio.to_thread.run_sync(ask)
    return None if page is None else cache_samples(page)


def cache_samples(page: str) -> dict[str, float]:
    """The samples that tell what caches hold, of a page of `/metrics`."""
    found = dict.fromkeys(_SAMPLES.values(), 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = _SAMPLES.get((sample.name, sample.labels.get("level", "")))
            if name is not None:
                found[name] += sample.value
    return found
