"""Notes of deletions: kept by topic id, so that who knows an older topic of the name forgets nothing of a newer."""

import pytest
import trio

from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from standalone.copier.waits import WAVES, Noted, Wave
from standalone.serving.deletion_notes import DeletionNotes
from standalone.serving.group_offsets import GroupOffsets
from storage.errors import RemoteStorageError
from storage.model import TopicIdPartition, Uuid, uuid_to_text
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeKafka

ORDERS = [TopicIdPartition(Uuid(bytes([number]) * 16), 0, "orders") for number in range(1, 10)]
HELD = Noted(is_held=True)


@pytest.fixture
def group(kafka: FakeKafka) -> FakeGroup:
    kafka.add(1, "a")
    return FakeGroup(kafka)


@pytest.fixture
def notes(group: FakeGroup, nursery: trio.Nursery) -> DeletionNotes:
    assert group.offsets == {}
    return DeletionNotes(
        GroupOffsets(Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery), "tidegate.deletions")
    )


async def test_who_knows_an_older_topic_forgets_nothing_of_the_newer(notes: DeletionNotes) -> None:
    """Failed before: a copier behind a broker that was cut off noted a wait of the old topic, and an operator's hold on
    the new one was gone."""
    old, new = ORDERS[:2]
    waves = Noted(waves=(Wave(5, 7, -1),))
    await notes.commit({new: HELD})
    await notes.commit({old: waves})
    assert await notes.read([old, new]) == {old: waves, new: HELD}
    await notes.commit({old: Noted()})
    assert await notes.read([new]) == {new: HELD}


async def test_the_last_topics_of_a_name_are_kept_and_fit(notes: DeletionNotes, group: FakeGroup) -> None:
    longest = Noted(waves=(Wave(2**62, 2**62, 2**62),) * WAVES, is_held=True, approved_ms=2**62, cut=(2**62, 2**31))
    for partition in ORDERS:
        await notes.commit({partition: longest})
    kept = [*await notes.read(ORDERS)]
    assert len(kept) >= 3
    assert kept == ORDERS[-len(kept) :]
    assert len(group.offsets["orders", 0][1] or "") < 4096


async def test_what_an_earlier_version_noted_is_read_and_what_is_no_note_stops_deletions(
    notes: DeletionNotes, group: FakeGroup
) -> None:
    ids = [uuid_to_text(each.topic_id) for each in ORDERS]
    group.offsets["orders", 0] = (0, f"{ids[0]} {HELD.as_text()}")
    assert await notes.read(ORDERS[:2]) == {ORDERS[0]: HELD}
    group.offsets["orders", 0] = (0, f"{ids[0]} {{}}")
    with pytest.raises(RemoteStorageError, match="nothing is deleted"):
        pytest.fail(f"{await notes.read(ORDERS[:1])}")
