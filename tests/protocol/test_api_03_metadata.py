"""Metadata: which id each topic has. Addresses are tested in test_addresses."""

import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.addresses import rewrite
from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.metadata import topics
from tests.support import kio_frames
from tests.support.hostile_bytes import assert_refused_when_cut

VERSIONS = kio_frames.versions_of(ApiKey.METADATA)
WITH_IDS = [version for version in VERSIONS if version >= 10]
BROKERS = [{"node_id": 1, "host": "kafka-1", "port": 9092}]

topic_ids = st.uuids()
names = st.text(st.characters(codec="utf-8"), max_size=249)


def partition(replicas: int) -> dict[str, object]:
    return {"replica_nodes": tuple(range(replicas)), "isr_nodes": (), "offline_replicas": (3,) * (replicas // 2)}


def response(api_version: int, answers: list[tuple[str | None, uuid.UUID | None, int]], **more: object) -> Any:
    """Topics of so many partitions each, in a cluster of one broker."""
    listed = [
        {"name": name, "topic_id": topic_id, "partitions": [partition(replicas % 5) for replicas in range(count)]}
        for name, topic_id, count in answers
    ]
    values = {"brokers": BROKERS, "topics": listed, **more}
    return kio_frames.fill(kio_frames.schema(ApiKey.METADATA, api_version, unknown_tag=bool(more)), values)


@pytest.mark.parametrize("api_version", WITH_IDS)
@given(answers=st.lists(st.tuples(names, topic_ids, st.integers(0, 4)), max_size=4), unknown_tag=st.booleans())
def test_names_and_ids_are_learned(
    api_version: int, answers: list[tuple[str, uuid.UUID, int]], unknown_tag: bool
) -> None:
    more = {"cluster_id": "cluster"} if unknown_tag else {}
    frame = kio_frames.response_frame(response(api_version, list(answers), **more), unknown_tag=unknown_tag)

    assert topics(memoryview(frame), api_version) == [(name, topic_id.bytes) for name, topic_id, _ in answers]


@pytest.mark.parametrize("api_version", [version for version in VERSIONS if version < 10])
def test_versions_without_ids_teach_nothing(api_version: int) -> None:
    frame = kio_frames.response_frame(response(api_version, [("orders", None, 1)]))

    assert topics(memoryview(frame), api_version) == []


@pytest.mark.parametrize("api_version", [12, 13])
def test_topics_without_a_name_are_left_out_and_unknown_ids_are_zero(api_version: int) -> None:
    known = uuid.UUID(int=1 << 100)
    answers = [(None, known, 0), ("no such topic", None, 0), ("orders", known, 2)]
    frame = kio_frames.response_frame(response(api_version, answers))

    assert topics(memoryview(frame), api_version) == [("no such topic", bytes(16)), ("orders", known.bytes)]


@pytest.mark.parametrize("api_version", WITH_IDS)
def test_partitions_with_very_many_replicas_are_passed_over(api_version: int) -> None:
    wide = {"replica_nodes": tuple(range(500)), "isr_nodes": tuple(range(127)), "offline_replicas": ()}
    topic = {"name": "wide", "topic_id": uuid.UUID(int=5), "partitions": [partition(3), wide, partition(2)]}
    message = kio_frames.fill(
        kio_frames.schema(ApiKey.METADATA, api_version), {"brokers": BROKERS, "topics": [topic, topic]}
    )

    learned = topics(memoryview(kio_frames.response_frame(message)), api_version)

    assert learned == [("wide", uuid.UUID(int=5).bytes)] * 2


@pytest.mark.parametrize("api_version", WITH_IDS)
def test_an_answer_cut_before_the_end_of_its_topics_is_the_peers_error(api_version: int) -> None:
    message = response(api_version, [("orders", uuid.UUID(int=1), 3), ("payments", uuid.UUID(int=2), 1)])
    frame = kio_frames.response_frame(message)
    after_topics = len(frame) - 1  # the response's tagged section
    if api_version == 10:
        after_topics -= 4  # cluster authorized operations, gone in v11
    if api_version == 13:
        after_topics -= 2  # error code

    assert_refused_when_cut(lambda cut: topics(cut, api_version), frame[:after_topics])
    assert len(topics(memoryview(frame)[:after_topics], api_version)) == 2


@given(st.sampled_from(WITH_IDS), st.binary(max_size=150))
def test_garbage_is_read_or_is_the_peers_error(api_version: int, payload: bytes) -> None:
    with suppress(PeerProtocolError):
        topics(memoryview(kio_frames.with_length(payload)), api_version)


@pytest.mark.parametrize("api_version", VERSIONS)
def test_topics_are_not_looked_at_when_addresses_are_rewritten(api_version: int) -> None:
    no_topics = kio_frames.response_frame(response(api_version, []))
    frame = memoryview(kio_frames.with_length(no_topics[4:] + b"\xff" * 1000))

    rewritten = rewrite(ApiKey.METADATA, api_version, frame, {1: ("edge", 1)})

    assert rewritten.endswith(no_topics[-1:] + b"\xff" * 1000)
    assert b"kafka-1" not in rewritten
