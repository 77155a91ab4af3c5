"""What `/status.json` says, as plain data, and what follows from it; docs/status.md tells every field.

Rule 1. Fields stay: a console may rely on those that are here. New ones may come; what means something else gets
        another name. `null` is "not known". Redpanda's names stand for what Redpanda's admin API has, with inclusive
        last offsets.
Rule 2. Everything is JSON as it stands, since workers send theirs to the supervisor.
Rule 3. Trouble comes first, as `proxy.readiness` has it: what keeps it from being ready, then what is critical. What
        only a part of the document shows the collector tells readiness (`shown_troubles`), so that all places know it.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypedDict, cast

from metrics.troubles import TroubleId, TroubleView

VERSION: Final = 1

PAGE_ROWS: Final = 50
"""Partitions on one page."""

STUCK_MS: Final = 5_000
"""A client that takes nothing for so long while memory is held for it is trouble. Shorter waits are slow lines."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which partitions are asked for: a page of those whose topic contains `topic`."""

    page: int = 1
    topic: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Return what a request's query says; what makes no sense is the first page."""
        page = query.get("page", "")
        number = int(page) if page.isascii() and page.isdecimal() and len(page) <= 9 else 1
        return cls(max(1, number), query.get("topic", "")[:249])


class ConditionStatus(TypedDict):
    state: str
    reason: str
    trouble: str | None


class AboutStatus(TypedDict):
    instance: str
    version: str
    started_ms: int
    cluster_id: str | None
    tier: str | None
    store_tls: str | None


class TrafficStatus(TypedDict):
    tier_bytes_per_s: int
    tier_bytes: int
    gets_per_s: float
    gets: int


class BrokerStatus(TypedDict):
    node_id: int
    host: str
    port: int
    reachable: bool | None
    answer_ms: float | None
    reason: str


class MetadataPartitionStatus(TypedDict):
    metadata_partition: int
    next_offset: int
    end_offset: int | None
    lag_records: int | None
    caught_up: bool
    problem: str | None


class AppliedStatus(TypedDict):
    metadata_partition: int
    offset: int
    age_ms: int


class CatalogStatus(TypedDict):
    segments: int
    segments_max: int
    partitions: int
    refused_partitions: int
    last_applied: AppliedStatus | None
    metadata_partitions: list[MetadataPartitionStatus]


class CacheStatus(TypedDict):
    level: str
    size_bytes: int
    max_bytes: int
    trouble: str | None
    hits: int
    misses: int
    hit_ratio: float | None


class PartitionStatus(TypedDict):
    topic: str
    partition: int
    topic_id: str
    cloud_storage_mode: str
    cloud_log_size_bytes: int | None
    cloud_stored_size_bytes: int | None
    cloud_log_segment_count: int | None
    cloud_log_start_offset: int | None
    cloud_log_last_offset: int | None
    local_log_start_offset: int | None
    local_log_last_offset: int | None
    log_start_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    log_end_offset: int | None
    leader: int | None
    offsets_age_ms: int | None
    left_to_broker: str | None
    problem: str | None


class PartitionsStatus(TypedDict):
    total: int
    page: int
    pages: int
    topic: str
    rows: list[PartitionStatus]


class StreamStatus(TypedDict):
    worker: str | None
    client: str
    client_id: str | None
    sign_in_name: str | None
    groups: list[str]
    topic: str
    partition: int
    segment_start_offset: int
    segment_end_offset: int
    position_bytes: int
    segment_bytes: int
    bytes_per_s: int
    window_bytes: int
    ahead_bytes: int
    waits_for: str
    about_offset: int
    log_end_offset: int | None
    lag_offsets: int | None
    idle_ms: int


class StreamsStatus(TypedDict):
    total: int
    rows: list[StreamStatus]


class FallbackStatus(TypedDict):
    reason: str
    detail: str
    partitions: int
    since_ms: int
    examples: list[str]


class LimitStatus(TypedDict):
    key: str
    client: str | None
    used: int
    max: int


class ClientStatus(TypedDict):
    worker: str | None
    client: str
    waits_ms: int
    holds_bytes: int


class CopyDeletionStatus(TypedDict):
    topic: str
    partition: int
    segments: int
    bytes: int
    until_ms: int | None
    why: str
    alarming: bool


class CopyPartitionStatus(TypedDict):
    topic: str
    partition: int
    copied_offset: int | None
    last_stable_offset: int | None
    copied_bytes: int
    lag_bytes: int
    lag_ms: int
    waits_for: str
    stall: str | None
    dead_segments: int
    dead_bytes: int
    copied: bool
    last_error: str | None
    trouble: str | None


class CopyStatus(TypedDict):
    group: str
    total: int
    copied_bytes: int
    lag_bytes: int
    problems: list[str]
    rows: list[CopyPartitionStatus]
    deletions_total: int
    deletions: list[CopyDeletionStatus]


class ErrorStatus(TypedDict):
    worker: str | None
    time: str
    age_ms: int
    level: str
    event: str
    detail: str


class FailedStatus(TypedDict):
    section: str
    reason: str


class Status(TypedDict):
    """The whole document."""

    version: int
    time_ms: int
    state: str
    ready: bool
    degraded: bool
    reasons: list[str]
    complaints: list[str]
    troubles: list[TroubleView]
    conditions: dict[str, ConditionStatus]
    about: AboutStatus
    traffic: TrafficStatus
    brokers: list[BrokerStatus]
    catalog: CatalogStatus
    cache: list[CacheStatus]
    partitions: PartitionsStatus
    streams: StreamsStatus
    fallbacks: list[FallbackStatus]
    limits: list[LimitStatus]
    clients: list[ClientStatus]
    copy: CopyStatus | None
    errors: list[ErrorStatus]
    failed_sections: list[FailedStatus]
    workers: list[dict[str, Any]]


def pages_of(total: int) -> int:
    """Return how many pages so many partitions take; an empty one is one, too."""
    return max(1, math.ceil(total / PAGE_ROWS))


def hit_ratio(hits: int, misses: int) -> float | None:
    """Return the share of hits among blocks that were looked for; None: none was."""
    return round(hits / (hits + misses), 4) if hits + misses else None


def read_least(status: Status) -> MetadataPartitionStatus | None:
    """The metadata partition that is worst off; None: all are read to their end, as far as their ends are known."""
    worst = max(status["catalog"]["metadata_partitions"], key=_badness, default=None)
    return None if worst is None or _badness(worst) == (False, False, 0) else worst


def _badness(partition: MetadataPartitionStatus) -> tuple[bool, bool, int]:
    return partition["problem"] is not None, not partition["caught_up"], partition["lag_records"] or 0


def failed_last(status: Status) -> ErrorStatus | None:
    """The latest warning or error of the log."""
    return status["errors"][0] if status["errors"] else None


def shown_troubles(
    limits: Iterable[LimitStatus], clients: Iterable[ClientStatus], caches: Iterable[CacheStatus]
) -> dict[TroubleId, list[str]]:
    """Return what these parts of the document show, a sentence each."""
    return {
        TroubleId.CLIENT_STUCK: [
            f"{client['client']} is stuck: it has taken nothing for {client['waits_ms'] // 1000} s, "
            f"and {client['holds_bytes']:,} bytes are held for it"
            for client in clients
            if client["waits_ms"] >= STUCK_MS
        ],
        TroubleId.LIMIT_REACHED: [
            f"{_whose(limit)} has all of {limit['key']}: {limit['used']:,} of {limit['max']:,}"
            for limit in limits
            if limit["used"] >= limit["max"]
        ],
        TroubleId.CACHE_DISK_UNAVAILABLE: [
            f"blocks are not kept on the disk: {cache['trouble']}" for cache in caches if cache["trouble"] is not None
        ],
    }


def _whose(limit: LimitStatus) -> str:
    return "this Tidegate" if limit["client"] is None else limit["client"]


# Several workers' documents as one. Each worker knows the whole catalog and all brokers, and serves its own clients:
# what all know is shown as the worst off of them has it, what each has is put together.


def merged(own: Status, workers: Mapping[str, Status]) -> Status:
    """The supervisor's document, of which readiness, errors and limits are its own, with those of its workers."""
    if not workers:
        return own
    told = [*workers.values()]
    status = cast(Status, dict(own))
    status["about"] = told[0]["about"]
    status["traffic"] = _sum_of([each["traffic"] for each in told])
    status["brokers"] = _worst((broker for each in told for broker in each["brokers"]), "node_id", _trouble_of_broker)
    status["catalog"] = _merged_catalog([each["catalog"] for each in told])
    status["cache"] = _merged_caches(cache for each in told for cache in each["cache"])
    status["partitions"] = _merged_partitions([each["partitions"] for each in told])
    rows = [
        cast(StreamStatus, {**row, "worker": name}) for name, each in workers.items() for row in each["streams"]["rows"]
    ]
    status["streams"] = StreamsStatus(total=sum(each["streams"]["total"] for each in told), rows=rows)
    status["fallbacks"] = _merged_fallbacks(spell for each in told for spell in each["fallbacks"])
    status["limits"] = [*own["limits"], *(limit for each in told for limit in each["limits"])]
    status["clients"] = sorted(
        (cast(ClientStatus, {**row, "worker": name}) for name, each in workers.items() for row in each["clients"]),
        key=lambda client: -client["waits_ms"],
    )
    status["copy"] = next((each["copy"] for each in told if each["copy"] is not None), None)  # one worker copies
    errors = [cast(ErrorStatus, {**row, "worker": name}) for name, each in workers.items() for row in each["errors"]]
    status["errors"] = sorted([*own["errors"], *errors], key=lambda error: error["age_ms"])
    status["failed_sections"] = [*own["failed_sections"], *(row for each in told for row in each["failed_sections"])]
    return status


def _sum_of(traffics: Sequence[TrafficStatus]) -> TrafficStatus:
    return cast(TrafficStatus, {name: sum(cast(Any, each)[name] for each in traffics) for name in traffics[0]})


def _worst(rows: Iterable[Any], key: str, badness: Callable[[Any], Any]) -> list[Any]:
    found: dict[Any, Any] = {}
    for row in rows:
        if row[key] not in found or badness(row) > badness(found[row[key]]):
            found[row[key]] = row
    return [found[number] for number in sorted(found)]


def _trouble_of_broker(broker: BrokerStatus) -> int:
    return (True, None, False).index(broker["reachable"])


def _merged_catalog(catalogs: Sequence[CatalogStatus]) -> CatalogStatus:
    rows = (row for catalog in catalogs for row in catalog["metadata_partitions"])
    applied = [catalog["last_applied"] for catalog in catalogs if catalog["last_applied"] is not None]
    return CatalogStatus(
        segments=max(catalog["segments"] for catalog in catalogs),
        segments_max=min(catalog["segments_max"] for catalog in catalogs),
        partitions=max(catalog["partitions"] for catalog in catalogs),
        refused_partitions=max(catalog["refused_partitions"] for catalog in catalogs),
        last_applied=min(applied, key=lambda each: each["age_ms"], default=None),
        metadata_partitions=_worst(rows, "metadata_partition", _badness),
    )


def _merged_caches(caches: Iterable[CacheStatus]) -> list[CacheStatus]:
    found: dict[str, CacheStatus] = {}
    for cache in caches:
        known = found.get(cache["level"])
        if known is None:
            found[cache["level"]] = cache.copy()
            continue
        known["size_bytes"] += cache["size_bytes"]
        known["max_bytes"] += cache["max_bytes"]
        known["hits"] += cache["hits"]
        known["misses"] += cache["misses"]
        known["trouble"] = known["trouble"] or cache["trouble"]
        known["hit_ratio"] = hit_ratio(known["hits"], known["misses"])
    return [*found.values()]


def _merged_partitions(pages: Sequence[PartitionsStatus]) -> PartitionsStatus:
    """The page of the worker that knows the most, each row as the one has it that heard of it last."""
    page = max(pages, key=lambda each: each["total"])
    latest: dict[tuple[str, int], PartitionStatus] = {}
    for row in (row for each in pages for row in each["rows"]):
        name = row["topic_id"], row["partition"]
        known = latest.get(name)
        if known is None or _staleness(row) < _staleness(known):
            latest[name] = row
    rows = [latest[row["topic_id"], row["partition"]] for row in page["rows"]]
    return cast(PartitionsStatus, {**page, "rows": rows})


def _staleness(row: PartitionStatus) -> tuple[bool, float]:
    age_ms = row["offsets_age_ms"]
    return row["left_to_broker"] is None, math.inf if age_ms is None else age_ms


def _merged_fallbacks(spells: Iterable[FallbackStatus]) -> list[FallbackStatus]:
    found: dict[str, FallbackStatus] = {}
    for spell in spells:
        known = found.setdefault(spell["reason"], cast(FallbackStatus, {**spell, "partitions": 0}))
        # What we may not describe all workers know of, and what the tier failed each for its own clients.
        summed = max if spell["reason"] == "not_described" else operator.add
        known["partitions"] = summed(known["partitions"], spell["partitions"])
        known["since_ms"] = max(known["since_ms"], spell["since_ms"])
    return [*found.values()]
