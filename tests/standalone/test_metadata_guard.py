"""The metadata topic's guard over fake brokers, a catalog and a listed store, in virtual time."""

from collections.abc import Iterator

import pytest
import trio
from kio.schema.errors import ErrorCode

from metrics.copy_meters import MetadataTopicMeter
from metrics.registry import Registry
from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.metadata_guard import MetadataTopicGuard
from storage.errors import RetriableRemoteStorageError, StorageConfigError
from storage.metadata.catalog import Catalog
from storage.metadata.reading import TopicDescription
from storage.model import RemoteLogSegmentId, Uuid
from storage.remote_storage_manager import StoredObject
from tests.support.fake_kafka import FakeKafka, FakeTopic
from tests.support.metadata_records import finish, started

pytestmark = pytest.mark.autojump

TOPIC_ID = Uuid(b"metadata topicid")
INTERVAL_S = 10.0


class World:
    """What the guard looks at. `position`: of each metadata partition."""

    def __init__(self, fake: FakeKafka, nursery: trio.Nursery) -> None:
        self.fake, self.nursery = fake, nursery
        self.configs = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        self.is_denied = False
        self.objects: list[RemoteLogSegmentId | None] = []
        self.store_failures = 0
        self.record_count = 0
        self.misplaced_records = 0
        self.catalog = Catalog()
        self.told: list[str | None] = []
        self.registry = Registry()
        self.meter = MetadataTopicMeter(self.registry)
        fake.add(1, "a").describe_configs(
            lambda _: ErrorCode.topic_authorization_failed if self.is_denied else self.configs
        )
        fake.topics[METADATA_TOPIC] = FakeTopic(TOPIC_ID, [1, 1])
        self.cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)

    def guard(self) -> MetadataTopicGuard:
        """Return the guard of a process that starts."""
        return MetadataTopicGuard(
            cluster=self.cluster,
            event_log=self,  # type: ignore[arg-type]  # as much of it as is asked
            follower=self,  # type: ignore[arg-type]  # likewise
            catalog=self.catalog,
            storage=self,  # type: ignore[arg-type]  # likewise
            catalog_was_live=trio.lowlevel.checkpoint,
            tell=self.told.append,
            meter=self.meter,
            interval_s=INTERVAL_S,
        )

    def description(self) -> TopicDescription:
        return TopicDescription(TOPIC_ID, 2)

    def partition_count(self) -> int:
        return 2

    def position(self, _number: int) -> int:
        return self.record_count

    def list_objects(self) -> Iterator[StoredObject]:
        if self.store_failures:
            self.store_failures -= 1
            raise RetriableRemoteStorageError("the store is away")
        for number, segment_id in enumerate(self.objects):
            yield StoredObject(f"object-{number}", 1, 1, segment_id)

    async def admitted(self) -> MetadataTopicGuard:
        """One that has begun, and looked."""
        guard = self.guard()
        self.nursery.start_soon(guard.run)
        await guard.admitted.wait()  # without a limit: the store is listed in a thread, and the clock does not know it
        return guard

    async def refused(self) -> str:
        """Why one that starts is refused."""
        with pytest.raises(StorageConfigError) as raised:
            await self.guard().run()
        return str(raised.value)

    async def look(self, guard: MetadataTopicGuard) -> str:
        """Return what stops deletions after another interval; empty: nothing."""
        await trio.sleep(INTERVAL_S + 1)
        trouble = guard.deletions_stopped()
        assert self.told[-1] == trouble
        assert self.registry.sample_value("tidegate_metadata_topic_unsafe") == (trouble is not None)
        return trouble or ""


@pytest.fixture
def world(kafka: FakeKafka, nursery: trio.Nursery) -> World:
    return World(kafka, nursery)


@pytest.mark.parametrize(
    ("key", "value"), [("retention.ms", "1"), ("retention.bytes", "5"), ("cleanup.policy", "compact")]
)
async def test_one_that_forgets_stops_deletions_and_new_starts(world: World, key: str, value: str) -> None:
    kept = world.configs[key]
    assert world.guard().deletions_stopped() == "the metadata topic has not been looked at yet"
    guard = await world.admitted()
    assert guard.deletions_stopped() is None, "who waited for it may delete"
    world.configs[key] = value
    trouble = await world.look(guard)
    assert f"{METADATA_TOPIC} has {key}={value}: " in trouble
    assert trouble.endswith(f"--entity-name {METADATA_TOPIC} --add-config {key}={kept}")
    assert await world.refused() == trouble
    world.configs[key] = kept
    assert await world.look(guard) == ""


async def test_another_topic_than_at_the_start_stops_deletions(world: World) -> None:
    guard = await world.admitted()
    changes = {
        "was deleted: ": None,
        "was deleted and created again": FakeTopic(Uuid(b"another topic id"), [1, 1]),
        "went from 2 to 3 partitions": FakeTopic(TOPIC_ID, [1, 1, 1]),
        "Metadata says ": FakeTopic(TOPIC_ID, [1, 1], error_code=ErrorCode.topic_authorization_failed),
    }
    for said, topic in changes.items():
        world.fake.topics.pop(METADATA_TOPIC, None)
        if topic is not None:
            world.fake.topics[METADATA_TOPIC] = topic
        assert said in await world.look(guard)
    world.fake.topics[METADATA_TOPIC] = FakeTopic(TOPIC_ID, [1, 1])
    assert await world.look(guard) == ""


async def test_records_where_the_partition_count_does_not_lead_are_of_a_topic_that_grew(world: World) -> None:
    world.misplaced_records = 7
    assert "holds 7 records in other partitions than its 2 partitions lead to" in await world.refused()


async def test_a_store_that_holds_what_the_topic_does_not_know_is_refused(world: World) -> None:
    """An empty topic over a full store, or a young one; not where all was deleted, and leftovers are no segments."""
    known, unknown = started("known", 0, 9), started("unknown", 10, 19)
    world.objects = [None, unknown.segment_id]
    assert "the store holds segments, such as object-1, and topic" in await world.refused()
    finish(world.catalog, known)
    world.record_count = 2
    assert "knows none of them" in await world.refused()
    world.objects.append(known.segment_id)
    await world.admitted()
    world.catalog = Catalog()
    await world.admitted()
    world.record_count, world.objects = 0, [None]
    await world.admitted()


async def test_what_is_not_told_stops_deletions_and_ends_nobody(world: World) -> None:
    world.is_denied, world.store_failures = True, 3
    world.objects = [None]
    guard = await world.admitted()
    assert f"ACL DescribeConfigs on Topic {METADATA_TOPIC} is missing" in await world.look(guard)
    world.is_denied = False
    assert await world.look(guard) == ""
    world.fake.stop(1)
    assert "is as it must be is not known: " in await world.look(guard)
