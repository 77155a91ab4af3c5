"""Whether the metadata topic of a tier of our own is as it must be: nobody else looks after it in standalone mode.

Rule 1. It keeps everything: cleanup.policy=delete, and no retention.
Rule 2. It is the topic that the segments' metadata is in. While a process runs its id and its partition count stay; no
        record is in a metadata partition where its count does not lead, as after it was given more; and it knows some
        of the segments that the store holds. What it knows counts at a start, and not its id, which is another one
        after `tidegate metadata import`.
Rule 3. A process that starts with another one ends and says what to do. One that finds out while it runs goes on
        reading and copying, and deletes nothing from the tier until all is as it must be.
Rule 4. What brokers or store do not tell counts as not as it must be, but ends no process.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final

import structlog
import trio

from metrics.copy_meters import MetadataTopicMeter
from protocol.client.errors import UpstreamError
from protocol.client.leaders import code_name
from protocol.wire.errors import ErrorCode
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.copy_topics import topic_configs
from storage.backoff import Backoff
from storage.errors import RemoteStorageError, StorageConfigError
from storage.metadata.catalog import Catalog
from storage.metadata.follower import CatalogFollower
from storage.metadata.reading import TopicDescription, changed
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.model import Uuid
from storage.remote_storage_manager import RemoteStorageManager

OBJECTS_LISTED_MAX: Final = 5000
"""Some pages of a listing: of so many one at least is of a segment that the metadata topic knows."""

KEEPS_ALL: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

_log = structlog.get_logger(__name__)


class MetadataTopicGuard:
    """Owned by the trio thread.

    Args:
        cluster: that has the metadata topic.
        catalog_was_live: returns once the whole topic has been read.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        event_log: TopicMetadataEventLog,
        follower: CatalogFollower,
        catalog: Catalog,
        storage: RemoteStorageManager,
        catalog_was_live: Callable[[], Awaitable[None]],
        tell: Callable[[str | None], None],
        meter: MetadataTopicMeter,
        interval_s: float,
    ) -> None:
        self._cluster = cluster
        self._event_log = event_log
        self._follower = follower
        self._catalog = catalog
        self._storage = storage
        self._catalog_was_live = catalog_was_live
        self._tell = tell
        self._meter = meter
        self._interval_s = interval_s
        self._trouble: str | None = "the metadata topic has not been looked at yet"
        self.admitted = trio.Event()
        """It was as it must be when this process began."""

    def deletions_stopped(self) -> str | None:
        """Why nothing may be deleted from the tier now, a sentence; None: it may."""
        return self._trouble

    async def run(self) -> None:
        """Look after it, for ever.

        Raises:
            StorageConfigError: it is not as it must be at the start.
        """
        await self._require(self._find_changes)
        await self._catalog_was_live()
        await self._require(self._find_strangers)
        while True:
            try:
                self._note(await self._find_changes())
            except (UpstreamError, _NotToldError) as error:
                self._note(_not_known(error))
            self.admitted.set()  # by now it is known whether anything may be deleted
            await trio.sleep(self._interval_s)

    async def _require(self, find: Callable[[], Awaitable[str | None]]) -> None:
        backoff = Backoff()
        while True:
            try:
                trouble = await find()
            except _NotToldError:
                return  # which is noted in a moment, and for as long as it is so
            except (UpstreamError, RemoteStorageError) as error:
                self._note(_not_known(error))
            else:
                if trouble is not None:
                    raise StorageConfigError(trouble)
                return
            await trio.sleep(backoff.next_delay_s())

    async def _find_changes(self) -> str | None:
        """Rule 1, and what changes while we run of rule 2."""
        known = self._event_log.description()
        [topic] = await self._cluster.learn_topics([METADATA_TOPIC])
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return f"topic {METADATA_TOPIC} was deleted: {_MAKE_AGAIN}"
        if topic.error_code:
            return f"topic {METADATA_TOPIC}: Metadata says {code_name(topic.error_code)}"
        now = TopicDescription(Uuid(topic.topic_id), len(topic.partitions))
        if (change := changed(known, now)) is not None:
            return f"topic {METADATA_TOPIC} {change}: {_MAKE_AGAIN}"
        configs = (await topic_configs(self._cluster, [METADATA_TOPIC]))[METADATA_TOPIC]
        if isinstance(configs, str):
            raise _NotToldError(configs)
        return configs_trouble(configs) or self._misplaced()

    def _misplaced(self) -> str | None:
        if not (count := self._follower.misplaced_records):
            return None
        return (
            f"topic {METADATA_TOPIC} holds {count} records in other partitions than its "
            f"{self._event_log.partition_count()} partitions lead to: it was given more, so that writers do not find "
            f"what is in the tier. {_MAKE_AGAIN}"
        )

    async def _find_strangers(self) -> str | None:
        """The rest of rule 2, when everything was read."""
        return self._misplaced() or await trio.to_thread.run_sync(self._unknown_objects, abandon_on_cancel=True)

    def _unknown_objects(self) -> str | None:
        has_records = any(map(self._follower.position, range(self._event_log.partition_count())))
        if has_records and not self._catalog.segment_count:
            return None  # everything was deleted; what is left in the store is for `tidegate gc`
        name = None
        for found in islice(self._storage.list_objects(), OBJECTS_LISTED_MAX):
            if found.segment_id is not None:
                if self._catalog.find_segment(found.segment_id) is not None:
                    return None
                name = name or found.name
        if name is None:
            return None
        return (
            f"the store holds segments, such as {name}, and topic {METADATA_TOPIC} knows none of them: it is another "
            f"one than they were written with, or another store or prefix is meant. {_MAKE_AGAIN}"
        )

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self._trouble:
            _log.error("metadata_topic_unsafe", reason=trouble)
        elif trouble is None and self._trouble is not None and self.admitted.is_set():
            _log.info("metadata_topic_safe_again")
        self._trouble = trouble
        self._meter.on_look(trouble is not None)
        self._tell(trouble)


_MAKE_AGAIN: Final = (
    "stop all copiers, make it again with as many partitions as it had, and read its records back from a dump "
    "(tidegate metadata import; docs/standalone.md#the-metadata-topic)"
)


class _NotToldError(Exception):
    """Brokers do not tell the metadata topic's configuration; the message is a sentence."""


def _not_known(error: Exception) -> str:
    return f"whether {METADATA_TOPIC} is as it must be is not known: {error}"


def configs_trouble(configs: Mapping[str, str]) -> str | None:
    """Return what is wrong with the metadata topic's configuration, with the remedy (rule 1)."""
    wrong = {key: found for key, kept in KEEPS_ALL.items() if (found := configs.get(key, kept)) != kept}
    if not wrong:
        return None
    said = ", ".join(f"{key}={value}" for key, value in wrong.items())
    remedy = ",".join(f"{key}={KEEPS_ALL[key]}" for key in wrong)
    return (
        f"{METADATA_TOPIC} has {said}: what it forgets cannot be found in the tier any more; kafka-configs.sh "
        f"--bootstrap-server ... --alter --entity-type topics --entity-name {METADATA_TOPIC} --add-config {remedy}"
    )
