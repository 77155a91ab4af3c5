"""Tidegate in this process over Aiven's objects, through a store, or on a way to one, that does as the test says.

    async with subject(kafka, tier, tmp_path, way=link) as found:
        assert await found.fetch() == await found.right()

The broker goes on with its own copy of the tier, so it says what is right.
"""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from protocol.wire.errors import ErrorCode
from proxy.fetch import fallback
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.object_keys import main_path
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.object_store import ObjectStore
from storage.object_store.registry import open_object_store
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.aiven_tier import AivenTier
from tests.support.in_process import InProcess, fetch_from, in_process, in_thread
from tests.support.raw_client import FetchedPartition
from tests.support.s3_front import S3Front
from tests.support.scripted_object_store import ScriptedObjectStore
from tests.support.toxiproxy import Link
from tests.support.waiting import wait_until
from tidegate import read_tier
from tidegate.tier_storage import open_tier_storage
from tools.demo.kafka_cluster import KafkaCluster

BLOCK_BYTES = 64 * 1024

MAX_WAIT_MS = 5000
"""The longest that a tier read may hold a request (docs/protocol.md#l3)."""

TIMEOUT_MS = 500
"""For one GET's silence. Three of them, and the pauses between, are well below MAX_WAIT_MS."""

FRESH_MS, OLD_MS = 1000, 3_600_000
"""How long ago segments were finished."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An application of this process over `tier`, through a store that does as the test says."""

    tidegate: InProcess
    store: ScriptedObjectStore
    tier: AivenTier

    async def fetch(self, offset: int = 0, *, max_wait_ms: int = MAX_WAIT_MS) -> FetchedPartition:
        """Alone in its Fetch, and with time: what may pass is retried."""
        (answer,) = await self.tidegate.fetch([self.tidegate.target(offset)], max_wait_ms=max_wait_ms)
        return answer

    async def right(self, offset: int = 0) -> FetchedPartition:
        """The broker's own answer. It gives a remote read up after 500 ms, and is asked again then."""
        target = self.tidegate.target(offset)

        def look() -> FetchedPartition | None:
            (answer,) = fetch_from(self.tidegate.direct, [target], 500)
            return answer if answer.records else None

        answer = await in_thread(lambda: wait_until(look, f"the broker's answer for {target}"))
        assert answer is not None
        return answer

    def failed(self, error_code: ErrorCode) -> FetchedPartition:
        """A failed partition as the broker writes it (docs/protocol.md#fetch-answers)."""
        return FetchedPartition(self.tidegate.topic, 0, error_code, -1, -1, -1, None, -1, b"")

    def counted(self, name: str, **labels: str) -> Callable[[], float]:
        """Return how much a metric has grown from now on."""
        before = self.tidegate.sample(name, **labels)
        return lambda: self.tidegate.sample(name, **labels) - before

    def gets(self, outcome: str) -> float:
        return self.tidegate.sample("tidegate_gets_total", outcome=outcome)

    @property
    def left_to_broker(self) -> float:
        return self.tidegate.sample("tidegate_fallback_reads_total")

    @property
    def retries(self) -> float:
        return self.tidegate.sample("tidegate_get_retries_total")

    def key(self, suffix: str, segment: int = 0) -> str:
        """The key of an object, as a pattern."""
        return f"*{main_path(self.segment(segment))}.{suffix}"

    def segment(self, number: int) -> RemoteLogSegmentMetadata:
        return self.tier.segments[number]


def with_timeout(store: ObjectStore, timeout_s: float) -> ObjectStore:
    """Another store like this one, which waits no longer for bytes; only S3 has keys for that."""
    kind: Any = type(store)
    settings: Any = store.settings  # type: ignore[attr-defined]  # of every store in a cloud
    return cast(ObjectStore, kind(replace(settings, read_timeout_s=timeout_s)))


@asynccontextmanager
async def subject(
    kafka: KafkaCluster,
    tier: AivenTier,
    folder: Path,
    *,
    way: Link | S3Front | None = None,
    age_ms: int = OLD_MS,
    keys: Mapping[str, str | None] | None = None,
    waits_for_tier: bool = True,
    **properties: str,
) -> AsyncIterator[Subject]:
    """One before `kafka`.

    Args:
        way: to the store, when it is not the server's own address; one that goes silent is not waited for.
        age_ms: of the newest segment, whatever the time is.
        waits_for_tier: as in_process.
        keys: more of the plug-in's, None takes one away; `properties` are Tidegate's, with _ for the dot.
    """
    stores: list[ScriptedObjectStore] = []

    def open_scripted(_: str, config: Mapping[str, str]) -> RemoteStorageManager:
        stores.append(ScriptedObjectStore(with_timeout(open_object_store(config), timeout_ms / 1000)))
        return AivenRemoteStorageManager(config, store=stores[0])

    now_ms = max(segment.event_timestamp_ms for segment in tier.segments) + age_ms
    endpoint_url = None if way is None else way.endpoint_url
    timeout_ms = TIMEOUT_MS if isinstance(way, Link) else MAX_WAIT_MS
    lines = {
        **tier.properties(endpoint_url=endpoint_url, **(keys or {})),
        "expert.cache.block.bytes": str(BLOCK_BYTES),
        "readahead.stream.max.bytes": "0",
        **{name.replace("_", "."): value for name, value in properties.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        # What was left to the broker is read from the tier with the next Fetch.
        patch.setattr(fallback, "SPELL_S_MIN", 0.0)
        patch.setattr(read_tier, "open_tier_storage", functools.partial(open_tier_storage, now_ms=lambda: now_ms))
        topic = tier.segments[0].topic_id_partition.topic
        async with in_process(
            kafka, topic, folder, lines, open_storage_manager=open_scripted, waits_for_tier=waits_for_tier
        ) as tidegate:
            yield Subject(tidegate, stores[0], tier)
