"""The simulated store: its logs are what Kafka would have written, and its GETs take their time."""

from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import RetriableRemoteStorageError
from storage.model import IndexType
from tests.support.segments import build_segment, data_batch
from tests.support.simulated_link import STALLED, LinkProfile, Manner, SimulatedLink
from tests.support.simulated_store import KIB, MANIFEST_BYTES, MIB, SimulatedStore, SimulatedTopic, log_bytes
from tests.support.simulated_time import Simulation, simulate

BATCH_BYTES = 4 * KIB
TOPIC = SimulatedTopic(partitions=2, partition_bytes=32 * MIB, segment_bytes=8 * MIB, batch_bytes=BATCH_BYTES)
PROFILE = LinkProfile(first_byte_s=1.0, connection_bytes_per_s=1.0 * MIB, link_bytes_per_s=2.0 * MIB)


def whole_log(start_offset: int, batches: int) -> bytes:
    """Batches as they are made elsewhere: one record each, of this size and these times."""
    value_bytes = BATCH_BYTES - (len(data_batch(0, value_bytes=1000)) - 1000)
    template = next(
        batch for less in range(10) if len(batch := data_batch(0, value_bytes=value_bytes - less)) == BATCH_BYTES
    )
    return b"".join((start_offset + number).to_bytes(8, "big") + template[8:] for number in range(batches))


@given(st.integers(0, 2**40), st.integers(0, 5 * BATCH_BYTES), st.integers(0, 5 * BATCH_BYTES))
def test_any_range_of_a_log_is_that_of_the_whole(start_offset: int, one: int, other: int) -> None:
    start, end = sorted((one, other))
    if start < end:
        assert log_bytes(BATCH_BYTES, start_offset, start, end) == whole_log(start_offset, 5)[start:end]


def run(
    work: Callable[[SimulatedStore], None], *, topic: SimulatedTopic = TOPIC, manners: dict[int, Manner] | None = None
) -> SimulatedStore:
    """Run that in a worker thread."""
    link = SimulatedLink(PROFILE)

    async def main(simulation: Simulation) -> SimulatedStore:
        store = SimulatedStore(topic, link, simulation.threads, manners)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, work, store)
            await trio.sleep(100)
            store.shut()
        return store

    return simulate(main, link)


def test_a_get_takes_its_first_byte_and_its_body() -> None:
    times_s = []

    def work(store: SimulatedStore) -> None:
        segment = store.topic.segments()[1]
        stream = store.open_log_segment(segment).open_stream(MIB, 4 * MIB)
        times_s.append(store.link.now_s)
        assert stream.read(MIB) == log_bytes(BATCH_BYTES, 2048, MIB, 2 * MIB)
        times_s.append(store.link.now_s)
        assert stream.read(KIB) == log_bytes(BATCH_BYTES, 2048, 2 * MIB, 2 * MIB + KIB)
        stream.close()
        times_s.append(store.link.now_s)

    (get,) = run(work).gets
    assert times_s == pytest.approx([1.0, 2.0, 2.0 + 1 / 1024])
    assert (get.start, get.end, get.is_log) == (MIB, 4 * MIB, True)
    assert get.closed_s == pytest.approx(times_s[-1])
    assert MIB + KIB <= get.received_bytes < 2 * MIB


def test_a_format_with_chunks_has_manifests_and_gives_whole_chunks() -> None:
    """Given chunks of 4 MiB, when 1 MiB of the first is read, then all of it has come; what is behind, has not."""
    times_s = []

    def work(store: SimulatedStore) -> None:
        opened = store.open_log_segment(store.topic.segments()[0])
        times_s.append(store.link.now_s)
        assert (opened.chunk_bytes, opened.stored_bytes(5 * MIB, 6 * MIB)) == (4 * MIB, 4 * MIB)
        stream = opened.open_stream(MIB, 6 * MIB)
        assert stream.read(MIB) == log_bytes(BATCH_BYTES, 0, MIB, 2 * MIB)
        times_s.append(store.link.now_s)
        stream.close()

    topic = SimulatedTopic(
        partitions=1, partition_bytes=8 * MIB, segment_bytes=8 * MIB, batch_bytes=BATCH_BYTES, chunk_bytes=4 * MIB
    )
    manifest, log = run(work, topic=topic).gets
    assert (manifest.is_manifest, manifest.received_bytes) == (True, MANIFEST_BYTES)
    assert (log.start, log.end) == (0, 8 * MIB)
    assert times_s == pytest.approx([1 + 1 / 256, 1 + 1 / 256 + 1 + 4])


def test_the_offset_index_is_kafkas_and_costs_a_get() -> None:
    got = []

    def work(store: SimulatedStore) -> None:
        got.append(store.open_log_segment(store.topic.segments()[1]).fetch_index(IndexType.OFFSET))

    (get,) = run(work).gets
    log = whole_log(0, 2048)
    batches = [log[at : at + BATCH_BYTES] for at in range(0, 8 * MIB, BATCH_BYTES)]
    assert got == [build_segment(batches).offset_index]
    assert (get.index_type, get.received_bytes) == (IndexType.OFFSET, len(got[0]))


def test_a_stalled_body_fails_after_the_silence_allowed() -> None:
    times_s = []

    def work(store: SimulatedStore) -> None:
        stream = store.open_log_segment(store.topic.segments()[0]).open_stream(0, 8 * MIB)
        with pytest.raises(RetriableRemoteStorageError, match="stalled"):
            stream.read(8 * MIB)
        times_s.append(store.link.now_s)
        stream.close()

    run(work, manners={0: STALLED})
    assert times_s == pytest.approx([1 + 1.5e6 / MIB + 3])
