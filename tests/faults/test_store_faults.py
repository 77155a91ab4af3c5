"""Tidegate over S3 when the way to it, the store, or an object of it is bad; in process, before a real broker.

Other stores: long/test_store_faults.py. Segments are a real broker's, published as Aiven's objects
(tests.support.aiven_tier). Faults are made where they happen: toxiproxy breaks the way, an HTTP server in front of the
store answers what stores answer, a scripted object store loses and spoils objects. Each test says the answer and the
metric, and that all is well once the fault is gone; the broker, which reads its own copy of the tier, says what is
right, and is the way out.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.wire.errors import ErrorCode
from tests.support.aiven_subject import FRESH_MS, MAX_WAIT_MS, OLD_MS, TIMEOUT_MS, subject
from tests.support.aiven_tier import AivenTier, StoreServer, publish_tier
from tests.support.in_process import in_thread
from tests.support.kafka import TieredTopic, orders, segmented_topic
from tests.support.s3_front import S3Front
from tests.support.s3_server import CREDENTIALS
from tests.support.scripted_http import s3_error
from tests.support.toxiproxy import Link
from tools.demo.kafka_cluster import KafkaCluster

START_MS = 1_700_000_000_000
RECORDS = 12_000
BATCH_RECORDS = 100
SEGMENT_RECORDS = 400
"""Four batches, about 100 KiB: two blocks."""

CHUNK_BYTES = 16 * 1024
LAST_BATCH = 300
"""One of a segment's records: it lies in the second block alone, found by the index; the first one needs none."""

ATTEMPTS_MAX = 3
STALLED_ATTEMPTS_MAX = 2
HELD_MS = 2000
"""An error that says "come again" is held for the client's own wait; the attempts before it take half a second."""

Fault = Callable[[Link], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> TieredTopic:
    """One partition with some thirty small segments in the tier."""
    # A segment rolls when its time index is full, and gets an entry for a batch that is later than the last.
    records = (replace(record, timestamp_ms=START_MS + number) for number, record in enumerate(orders(RECORDS, 1)))
    return segmented_topic(
        kafka, "s3-faults", records, batches=SEGMENT_RECORDS // BATCH_RECORDS, batch_records=BATCH_RECORDS
    )


@pytest.fixture(scope="module")
def plain(
    kafka: KafkaCluster, topic: TieredTopic, server: StoreServer, tmp_path_factory: pytest.TempPathFactory
) -> AivenTier:
    return publish_tier(kafka, server, [topic.name], tmp_path_factory.mktemp("plain"), chunk_bytes=CHUNK_BYTES)


@pytest.fixture(scope="module")
def encrypted(
    kafka: KafkaCluster, topic: TieredTopic, server: StoreServer, tmp_path_factory: pytest.TempPathFactory
) -> AivenTier:
    return publish_tier(
        kafka,
        server,
        [topic.name],
        tmp_path_factory.mktemp("encrypted"),
        compression=True,
        encryption=True,
        chunk_bytes=CHUNK_BYTES,
    )


# --- the way to the store ---


def late_first_byte(link: Link) -> AbstractContextManager[None]:
    return link.toxic("latency", latency=3 * TIMEOUT_MS)


def stall(link: Link) -> AbstractContextManager[None]:
    """Answers begin, and stop after some bytes for longer than anyone waits."""
    return link.toxic("slicer", average_size=4000, size_variation=0, delay=3_000_000)


def reset(link: Link) -> AbstractContextManager[None]:
    return link.toxic("reset_peer", timeout=0)


def cut(link: Link) -> AbstractContextManager[None]:
    """Answers end within the body."""
    return link.toxic("limit_data", bytes=2000)


def gone(link: Link) -> AbstractContextManager[None]:
    return link.down()


FAULTS: list[Fault] = [late_first_byte, stall, reset, cut, gone]
SILENT = (late_first_byte, stall)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bad_way_is_a_retriable_error_or_the_brokers_answer_until_it_ends(
    kafka: KafkaCluster, plain: AivenTier, link: Link, tmp_path: Path, fault: Fault
) -> None:
    async with subject(kafka, plain, tmp_path, way=link) as found:
        # Manifest and index are known then, and a connection is open: the fault meets a body of the log.
        assert await found.fetch() == await found.right()
        # Silence is a reason to read from the broker, which has a tier of its own.
        answer = await found.right(LAST_BATCH) if fault in SILENT else found.failed(ErrorCode.REPLICA_NOT_AVAILABLE)
        attempts = STALLED_ATTEMPTS_MAX if fault in SILENT else ATTEMPTS_MAX
        with fault(link):
            assert await found.fetch(LAST_BATCH, max_wait_ms=MAX_WAIT_MS if fault in SILENT else HELD_MS) == answer
        assert (found.gets("retriable"), found.retries) == (attempts, attempts - 1)
        assert found.tidegate.remote_fetch_errors == 1
        assert await found.fetch(LAST_BATCH) == await found.right(LAST_BATCH)
        assert found.gets("retriable") == attempts
        assert found.tidegate.remote_fetch_errors == 1


# --- what the store answers ---


async def test_expired_credentials_are_refused_until_their_file_is_renewed(
    kafka: KafkaCluster, plain: AivenTier, front: S3Front, tmp_path: Path
) -> None:
    """AWS says it with a 400; of a 403: tests/storage/object_store."""
    file = tmp_path / "credentials.properties"
    in_file = {
        "storage.aws.access.key.id": None,
        "storage.aws.secret.access.key": None,
        "storage.aws.credentials.file": str(file),
    }
    write_credentials(file, "old-key")
    async with subject(kafka, plain, tmp_path, way=front, keys=in_file) as found:
        right = await found.right()
        assert await found.fetch() == right
        front.refuse(s3_error(400, "ExpiredToken"), credential="old-key")
        # What is cached is nobody's to refuse.
        assert await found.fetch() == right
        assert await found.fetch(SEGMENT_RECORDS) == await found.right(SEGMENT_RECORDS)
        assert (found.retries, found.tidegate.remote_fetch_errors) == (0, 1)
        # If an answer is late on a busy machine, a second GET is sent, and denied as well.
        denied = found.gets("denied")
        assert 1 <= denied <= 1 + found.tidegate.sample("tidegate_get_hedges_total")
        assert found.left_to_broker == 1
        write_credentials(file, CREDENTIALS.access_key_id)
        assert await found.fetch(SEGMENT_RECORDS) == await found.right(SEGMENT_RECORDS)
        assert (found.gets("denied"), found.tidegate.remote_fetch_errors) == (denied, 1)


# --- objects that are spoiled or lost ---


async def test_a_wrong_byte_in_the_store_leaves_the_segment_to_the_broker(
    kafka: KafkaCluster, plain: AivenTier, tmp_path: Path
) -> None:
    async with subject(kafka, plain, tmp_path) as found:
        found.store.flip_bit(found.key("log"), position=200)
        assert await found.fetch() == await found.right()
        assert found.left_to_broker == 1
        assert len(found.store.gets(found.key("log"))) == 2
        assert found.tidegate.sample("tidegate_cache_quarantined_blocks_total") == 2
        assert found.tidegate.remote_fetch_errors == 1
        # The segment behind it is whole.
        assert await found.fetch(SEGMENT_RECORDS) == await found.right(SEGMENT_RECORDS)
        found.store.heal()
        assert await found.fetch() == await found.right()


@pytest.mark.parametrize(("age_ms", "gets"), [(OLD_MS, 1), (FRESH_MS, ATTEMPTS_MAX)], ids=["old", "fresh"])
async def test_a_lost_object_leaves_the_segment_to_the_broker_until_it_is_back(
    kafka: KafkaCluster, encrypted: AivenTier, tmp_path: Path, age_ms: int, gets: int
) -> None:
    last = len(encrypted.segments) - 1
    async with subject(kafka, encrypted, tmp_path, age_ms=age_ms) as found:
        for number, suffix in enumerate(("rsm-manifest", "log"), 1):
            segment = last - number + 1
            offset = encrypted.segments[segment].start_offset
            found.store.lose(found.key(suffix, segment))
            assert await found.fetch(offset) == await found.right(offset), suffix
            assert found.left_to_broker == number
            assert (found.gets("not_found"), found.retries) == (gets * number, (gets - 1) * number), suffix
            assert found.tidegate.remote_fetch_errors == number
            found.store.heal()
            assert await found.fetch(offset) == await found.right(offset), suffix
            assert (found.left_to_broker, found.tidegate.remote_fetch_errors) == (number, number), suffix


async def test_indexes_are_made_again_from_the_log(kafka: KafkaCluster, encrypted: AivenTier, tmp_path: Path) -> None:
    async with subject(kafka, encrypted, tmp_path) as found:
        found.store.lose(found.key("indexes"))
        found.store.flip_bit(found.key("indexes", 1), position=20)
        for number in (0, 1):
            for offset in (LAST_BATCH, 150, 0):
                at = SEGMENT_RECORDS * number + offset
                assert await found.fetch(at) == await found.right(at)
        assert found.tidegate.sample("tidegate_index_rebuilds_total", index="offset") == 2
        assert min(found.gets("not_found"), found.gets("corrupt")) > 0
        assert found.tidegate.remote_fetch_errors == 0


# --- the store's slowest answers ---


async def test_a_late_answer_gets_a_second_get_that_wins(kafka: KafkaCluster, plain: AivenTier, tmp_path: Path) -> None:
    async with subject(kafka, plain, tmp_path, tier_hedge_gets_per_minute_min="0") as found:
        late = 20
        # One GET each of so many logs: it is known what is late.
        for segment in range(late):
            assert (await found.fetch(segment * SEGMENT_RECORDS)).records
        with found.store.held(found.key("log", late), times=1) as gate:
            assert await found.fetch(late * SEGMENT_RECORDS) == await found.right(late * SEGMENT_RECORDS)
            await in_thread(lambda: gate.wait_for_callers(1))
        assert len(found.store.gets(found.key("log", late))) == 2
        assert found.tidegate.sample("tidegate_get_hedges_won_total") == 1
        assert found.tidegate.remote_fetch_errors == 0


def write_credentials(file: Path, access_key_id: str) -> None:
    """Put another file in its place, as a rotation does."""
    lines = f"aws.access.key.id={access_key_id}\naws.secret.access.key={CREDENTIALS.secret_access_key}\n"
    new = file.with_suffix(".new")
    new.write_text(lines, encoding="utf-8")
    new.replace(file)
