"""What an operator changes while consumers read through Tidegate: log starts, retention, the frontier, remote storage.

The broker is the oracle: what it answers after a change, Tidegate answers, at the latest when the broker's last word
has reached its age. Until then an answer may be the one from before; it is never a third thing. Each test has a topic
of its own.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Self

import pytest

from protocol.wire.errors import ErrorCode
from tests.integration.reading import Reading
from tests.support.differential_steps import alter_configs, delete_records
from tests.support.digests import read_with_confluent
from tests.support.kafka import TieredTopic, fresh_name, orders, produce, segmented_topic, small_segments
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RECORDS = 3000
BATCH_RECORDS = 100
BATCHES_PER_SEGMENT = 4
PARTITION_BYTES_MAX = 64 * 1024
VERSIONS = (12, 17)
AGE_MS = 1000
"""Both ages, and as it happens their defaults: named here for what the tests reckon with."""

AGES, NO_AGES = "believing", "asking"
EARLIEST, EARLIEST_LOCAL = -2, -4
REMOTE_FETCH_BYTES = "kafka_server_brokertopicmetrics_remotefetchbytes_total"


@pytest.fixture(scope="module")
def ageing(kafka: KafkaCluster) -> Iterator[RunningTidegate]:
    """Believes the broker's word as long as it may."""
    ages = {"authority.max.age.ms": str(AGE_MS), "expert.frontier.max.age.ms": str(AGE_MS)}
    with own_tidegate(kafka, ages) as running:
        yield running


@dataclass(slots=True)
class Sides:
    """Open connections to the broker and through Tidegates, one for each version, and one partition to ask about."""

    topic: str
    topic_id: bytes
    direct: RawClient
    through: Mapping[str, Mapping[int, RawClient]]
    _stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def open(cls, kafka: KafkaCluster, tidegates: Mapping[str, RunningTidegate], topic: str) -> Self:
        stack = ExitStack()
        direct = stack.enter_context(RawClient("127.0.0.1", kafka.broker(1).port))
        through = {}
        for name, tidegate in tidegates.items():
            address = "127.0.0.1", broker_ports(tidegate)[1]
            through[name] = {version: stack.enter_context(RawClient(*address)) for version in VERSIONS}
        return cls(topic, direct.topic_id(topic), direct, through, stack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def fetch(self, client: RawClient, version: int, offset: int) -> FetchedPartition:
        """One answer as it comes, in time or empty."""
        (answer,) = client.fetch(version, [self._target(offset)], max_wait_ms=100).partitions
        return answer

    def _target(self, offset: int) -> FetchTarget:
        return self.topic, self.topic_id, 0, offset, PARTITION_BYTES_MAX

    def answer(self, client: RawClient, version: int, offset: int) -> FetchedPartition:
        """Records or an error."""
        return client.patient_fetch(version, [self._target(offset)], max_wait_ms=100).partitions[0]

    def clients(self) -> Iterator[tuple[str, int, RawClient]]:
        for name, by_version in self.through.items():
            for version, client in by_version.items():
                yield f"{name}, version {version}", version, client

    def require_the_brokers_answers(self, offsets: Sequence[int]) -> list[FetchedPartition]:
        """The same at both, through the Tidegate that believes an aged word as soon as it has aged. The broker is asked
        before and after, so that its own change is not taken for ours."""
        answers = []
        for offset in offsets:
            for name, version, client in self.clients():

                def is_same(
                    at: int = offset, name: str = name, client: RawClient = client, version: int = version
                ) -> bool:
                    before = self.answer(self.direct, version, at)
                    ours = self.answer(client, version, at)
                    after = self.answer(self.direct, version, at)
                    if ours == before == after:
                        return True
                    may_differ = name.startswith(AGES) or before != after
                    assert may_differ, f"{name}, offset {at}: {told(before)} and {told(ours)}"
                    return False

                wait_until(is_same, f"{name}: the broker's answer at {offset}")
            answers.append(self.answer(self.direct, VERSIONS[-1], offset))
        return answers

    def wait_gone(self, offset: int) -> None:
        """Until it is out of range for everyone; the last word that it is not may have to age."""

        def is_gone() -> bool:
            codes = {self.fetch(client, version, offset).error_code for _, version, client in self.clients()}
            return codes == {ErrorCode.OFFSET_OUT_OF_RANGE}

        wait_until(is_gone, f"offset {offset} to be gone")

    def listed(self, client: RawClient, timestamp: int) -> int:
        (found,) = client.list_offsets(8, [(self.topic, 0, timestamp)])
        assert found.error_code == ErrorCode.NONE
        return found.offset


# --- DeleteRecords ---


def test_records_deleted_at_the_broker_are_gone_when_its_last_word_is_old(
    kafka: KafkaCluster, ageing: RunningTidegate, tidegate: RunningTidegate
) -> None:
    topic = changing_topic(kafka).name
    with Sides.open(kafka, {AGES: ageing, NO_AGES: tidegate}, topic) as sides:
        expected = sides.require_the_brokers_answers((0, 600, 1200))
        delete_records(kafka, topic, 0, 1100)
        deleted_at_s = time.monotonic()
        for name, version, client in sides.clients():

            def is_gone(name: str = name, client: RawClient = client, version: int = version) -> bool:
                sent_at_s = time.monotonic()
                answer = sides.fetch(client, version, 600)
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    return True
                # Another connection may have heard it already: then no records go out, though the probe counts still.
                assert answer in (expected[1], replace(expected[1], records=b"")), name
                assert name.startswith(AGES), f"{name}: the broker was to be asked each time"
                assert sent_at_s < deleted_at_s + AGE_MS / 1000, f"{name}: answered of too old a word"
                return False

            wait_until(is_gone, f"{name}: offset 600 to be gone")
        answers = sides.require_the_brokers_answers((0, 600, 1099, 1100, 1200))
        assert [answer.error_code for answer in answers] == [1, 1, 1, 0, 0]
        assert answers[4].records == expected[2].records


# --- retention ---


def test_segments_that_retention_deletes_while_they_are_read_end_in_a_reset(
    kafka: KafkaCluster, ageing: RunningTidegate, tidegate: RunningTidegate
) -> None:
    """Never wrong bytes, and out of range no sooner than at the broker. An object may be gone a moment before the
    broker's last word has aged: that one answer may be an error, as it may be at the broker."""
    topic = changing_topic(kafka).name
    offsets = range(0, 2000, BATCH_RECORDS)
    with ExitStack() as stack:
        sides = stack.enter_context(Sides.open(kafka, {AGES: ageing, NO_AGES: tidegate}, topic))
        readings = [
            stack.enter_context(Reading(each.bootstrap_servers, topic, {"auto.offset.reset": "earliest"}))
            for each in (ageing, tidegate)
        ]
        expected = dict(zip(offsets, sides.require_the_brokers_answers(offsets), strict=True))
        for reading in readings:
            reading.read_to(200)
        unknown_errors = dict.fromkeys([name for name, _, _ in sides.clients()], 0)

        # About 220 bytes a record: two of seven segments and a half may stay.
        alter_configs(kafka, topic, {"retention.bytes": str(300_000)})

        def has_moved() -> bool:
            for offset in offsets:
                for name, version, client in sides.clients():
                    answer = sides.fetch(client, version, offset)
                    log_start = sides.listed(sides.direct, EARLIEST)
                    unknown_errors[name] += answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
                    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        assert offset < log_start, f"{name}, offset {offset}"
                    assert answer.records in (b"", expected[offset].records), f"{name}, offset {offset}"
            return sides.listed(sides.direct, EARLIEST) > 800

        wait_until(has_moved, "retention to delete segments")
        log_start = settled(lambda: sides.listed(sides.direct, EARLIEST))
        # Each connection may have hit each segment once at the moment it went.
        assert all(count <= log_start // (BATCH_RECORDS * BATCHES_PER_SEGMENT) for count in unknown_errors.values())
        sides.wait_gone(0)
        answers = sides.require_the_brokers_answers([*offsets, log_start - 1, log_start])
        assert [bool(answer.records) for answer in answers[-2:]] == [False, True]
        for reading in readings:
            reading.read_to_end()
            assert not reading.errors
            after = reading.offsets[0][reading.jumps_at :]
            assert after == list(range(after[0], RECORDS))


# --- the frontier ---


def test_readers_cross_a_frontier_that_moves_under_them(
    kafka: KafkaCluster, ageing: RunningTidegate, tidegate: RunningTidegate
) -> None:
    """Local retention takes segments away from right before, under and behind the readers, and new ones are rolled and
    copied while they read."""
    topic = fresh_name("changes-frontier")
    tiered_topic_configs = {**small_segments(BATCHES_PER_SEGMENT), "local.retention.bytes": str(64 * 1024 * 1024)}
    kafka.create_topic(topic, 1, {"remote.storage.enable": "true", "retention.ms": "-1", **tiered_topic_configs})
    fill(kafka, topic, RECORDS)
    kafka.wait_tiered(topic, until=lambda offsets: offsets.latest_tiered_offset > RECORDS - 1000)
    with ExitStack() as stack:
        sides = stack.enter_context(Sides.open(kafka, {AGES: ageing, NO_AGES: tidegate}, topic))
        readings = [stack.enter_context(Reading(each.bootstrap_servers, topic)) for each in (ageing, tidegate)]
        assert sides.listed(sides.direct, EARLIEST_LOCAL) == 0
        end = RECORDS
        for limit_bytes in (400_000, 200_000, 1):
            for reading in readings:
                reading.read_to(len(reading.offsets[0]) + 500)
            local_start = sides.listed(sides.direct, EARLIEST_LOCAL)
            alter_configs(kafka, topic, {"local.retention.bytes": str(limit_bytes)})
            fill(kafka, topic, 500)
            end += 500

            def has_moved(known: int = local_start) -> bool:
                now = sides.listed(sides.direct, EARLIEST_LOCAL)
                around = (known, known + 1, max(now - 1, 0), now, now + 1)
                assert all(answer.records for answer in sides.require_the_brokers_answers(around))
                return now > known

            wait_until(has_moved, "the local log start to move")
        for reading in readings:
            reading.read_to(end)
            assert reading.offsets[0] == list(range(end))
            assert not reading.errors
            direct = read_with_confluent(kafka.bootstrap_servers, topic, {0: end}, "read_uncommitted")
            assert reading.digest.result() == direct
        assert ageing.metric(REMOTE_FETCH_BYTES, topic=topic) > 0


# --- remote storage switched off ---


def test_remote_storage_is_made_read_only_and_then_taken_away(
    kafka: KafkaCluster, ageing: RunningTidegate, tidegate: RunningTidegate
) -> None:
    """KIP-950: what is tiered is read on; then the log start jumps to the local log's, and the tier is forgotten."""
    topic = changing_topic(kafka).name
    tidegates = {AGES: ageing, NO_AGES: tidegate}
    with Sides.open(kafka, tidegates, topic) as sides:
        local_start = sides.listed(sides.direct, EARLIEST_LOCAL)
        offsets = (*range(0, RECORDS, 250), local_start - 1, local_start, RECORDS - 1)
        before = sides.require_the_brokers_answers(offsets)

        alter_configs(
            kafka, topic, {"remote.log.copy.disable": "true", "local.retention.bytes": "-2", "local.retention.ms": "-2"}
        )
        fill(kafka, topic, 1000)
        later = sides.require_the_brokers_answers((*offsets, RECORDS + 500))
        assert [answer.records[:PREFIX] for answer in later[:-1]] == [answer.records[:PREFIX] for answer in before]
        for tidegate_of in tidegates.values():
            served_before = tidegate_of.metric(REMOTE_FETCH_BYTES, topic=topic)
            direct = read_with_confluent(kafka.bootstrap_servers, topic, {0: RECORDS + 1000}, "read_uncommitted")
            servers = tidegate_of.bootstrap_servers
            assert direct == read_with_confluent(servers, topic, {0: RECORDS + 1000}, "read_uncommitted")
            assert tidegate_of.metric(REMOTE_FETCH_BYTES, topic=topic) > served_before

        alter_configs(kafka, topic, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
        wait_until(lambda: sides.listed(sides.direct, EARLIEST) == local_start, "the log start to be the local one")
        sides.wait_gone(0)
        answers = sides.require_the_brokers_answers(offsets)
        assert {answer.error_code for answer in answers if not answer.records} == {ErrorCode.OFFSET_OUT_OF_RANGE}
        assert [bool(answer.records) for answer in answers] == [offset >= local_start for offset in offsets]
        wait_until(lambda: are_relayed(sides, tidegates), "the tier's segments to be forgotten")


PREFIX = 1000
"""Bytes: batches are the same, and where an answer ends is up to the segment."""


def are_relayed(sides: Sides, tidegates: Mapping[str, RunningTidegate]) -> bool:
    """Return whether Fetches below the log start cost no probes any more: nothing of the topic is known to be in the
    tier."""

    def probes() -> float:
        return sum(each.metric("tidegate_probes_sent_total") for each in tidegates.values())

    before = probes()
    for _, version, client in sides.clients():
        assert sides.fetch(client, version, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    return probes() == before


# --- all ---


def changing_topic(kafka: KafkaCluster) -> TieredTopic:
    """A partition with six segments of 400 records in the tier, more or less."""
    return segmented_topic(kafka, "changes", RECORDS, batches=BATCHES_PER_SEGMENT, batch_records=BATCH_RECORDS)


def fill(kafka: KafkaCluster, topic: str, count: int) -> None:
    produce(kafka, topic, orders(count, 1), batch_num_messages=BATCH_RECORDS)


def settled(look: Callable[[], int], quiet_s: float = 3.0) -> int:
    """A number once it has been the same for some time: the broker's tasks run each second or two."""
    seen, since_s = look(), time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since_s
        if (now := look()) != seen:
            seen, since_s = now, time.monotonic()
        return time.monotonic() - since_s >= quiet_s

    wait_until(is_quiet, "a number to stay")
    return seen


def told(answer: FetchedPartition) -> str:
    return (
        f"error {answer.error_code}, high watermark {answer.high_watermark}, log start {answer.log_start_offset}, "
        f"{len(answer.records)} bytes"
    )
