"""What becomes of a GET's blocks when the store, or the way to it, is bad: over real sockets, and once by decoding.

Either all blocks arrive, or the one error says what happened, and the fetch of them begins afresh. Nothing is left:
no block under way, no slot, no reserved byte, no thread.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from storage.cache.blocks import BlockGrid, SegmentBlocks
from storage.cache.segment_entries import Flight
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)
from storage.formats.plain_objects import PlainObjects
from storage.log.block import Block
from storage.object_store import bodies
from storage.object_store.azure.store import AzureStore
from storage.object_store.gcs.store import GcsStore
from storage.object_store.object_store import ObjectStore
from storage.object_store.retries import ATTEMPTS_MAX, STALLED_ATTEMPTS_MAX
from storage.object_store.s3.store import S3Store
from storage.remote_storage_manager import OpenedSegment
from tests.storage.formats.aiven.test_opened_segment import CHUNK_BYTES, LOG, write_log
from tests.support.azurite import AzureServer
from tests.support.fake_gcs import GcsServer
from tests.support.s3_server import S3Server
from tests.support.scripted_gets import GetWorld, ScriptedSegment, until
from tests.support.scripted_http import ScriptedHttp, Then, response, s3_error, scripted_http

BLOCK_BYTES = 100 * 1024
"""Large enough to be received by one system call."""

BLOCKS = 4
SEGMENT = ScriptedSegment(BLOCKS, block_bytes=BLOCK_BYTES)
BODY = b"".join(SEGMENT.block(number) for number in range(BLOCKS))
SILENCE_S = 0.5
FAR_S = 60.0
"""Nobody waits so long; the scripted server would end what stalls after 30 s."""

NO_SUCH_KEY = s3_error(404, "NoSuchKey")
NO_BUCKET = {
    "s3": s3_error(404, "NoSuchBucket"),
    "gcs": response(404, b"The specified bucket does not exist."),
    "azure": response(404, headers={"x-ms-error-code": "ContainerNotFound"}),
}
SLOW_DOWN = {
    "s3": s3_error(503, "SlowDown", {"Retry-After": "0"}),
    "gcs": response(429, b"rate limit exceeded", {"Retry-After": "0"}),
    "azure": response(503, headers={"x-ms-error-code": "ServerBusy", "Retry-After": "0"}),
}


@pytest.fixture
def http() -> Iterator[ScriptedHttp]:
    with scripted_http() as server:
        yield server


def ranged(first: int = 0, sent_bytes: int | None = None) -> bytes:
    """The answer to a GET from the block `first` on; only so many bytes of its body."""
    start = first * BLOCK_BYTES
    body = BODY[start:]
    whole = response(206, body, {"Content-Range": f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"})
    return whole if sent_bytes is None else whole[: len(whole) - len(body) + sent_bytes]


@dataclass(frozen=True, slots=True)
class World:
    gets: GetWorld
    source: SegmentBlocks
    nursery: trio.Nursery

    async def fetch(self) -> bytes:
        """All blocks, and nothing is left of what fetched them."""
        try:
            return b"".join([bytes((await flight.wait()).data) for flight in flights_of(self.gets, self.source)])
        finally:
            await until(lambda: not self.nursery.child_tasks)
            assert len(self.gets.gets) == 0
            assert self.gets.gets.slots[:] == (0, 8, 0)
            assert self.gets.budget.held == 0


def flights_of(world: GetWorld, source: SegmentBlocks) -> list[Flight[Block]]:
    """One GET of all blocks."""
    numbers = range(source.grid.count)
    world.gets.fetch(source, numbers, numbers)
    return [world.gets.wait_for(source.key(number)) for number in numbers]


@asynccontextmanager
async def world_of(opened: OpenedSegment, grid: BlockGrid) -> AsyncIterator[World]:
    # A nursery of their own: when it has no task, no thread of theirs runs either, since none is abandoned.
    async with trio.open_nursery() as nursery:
        yield World(GetWorld(nursery), SegmentBlocks(SEGMENT.metadata, opened, grid), nursery)


def open_store(http: ScriptedHttp, kind: str) -> ObjectStore:
    """A store whose answers are scripted."""
    if kind == "gcs":
        return GcsStore(GcsServer(http.endpoint_url).settings("tier", read_timeout_s=FAR_S))
    if kind == "azure":
        return AzureStore(AzureServer(http.endpoint_url).settings("tier", read_timeout_s=FAR_S))
    return S3Store(S3Server(http.endpoint_url).settings("tier", read_timeout_s=FAR_S))


@pytest.fixture(params=["s3", "gcs", "azure"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of store, by the way its GETs go."""
    return str(request.param)


@asynccontextmanager
async def over_http(http: ScriptedHttp, kind: str = "s3") -> AsyncIterator[World]:
    store = open_store(http, kind)
    await trio.to_thread.run_sync(store.warm_up)
    opened = PlainObjects({}, store=store).open_log_segment(SEGMENT.metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "SILENCE_S_MAX", SILENCE_S)
        try:
            async with world_of(opened, SEGMENT.grid) as world:
                yield world
        finally:
            store.close()


def ranges(http: ScriptedHttp) -> list[int]:
    """The first block that each request asked for."""
    lines = [line for head in http.heads for line in head.split("\r\n") if line.lower().startswith("range:")]
    return [int(line.partition("=")[2].partition("-")[0]) // BLOCK_BYTES for line in lines]


REFUSALS: list[tuple[bytes | dict[str, bytes], type[Exception], int]] = [
    (s3_error(403, "AccessDenied"), RemoteAccessDeniedError, 1),
    (NO_BUCKET, RemoteStoreNotFoundError, 1),
    (NO_SUCH_KEY, RemoteResourceNotFoundError, 1),
    (SLOW_DOWN, ThrottledError, ATTEMPTS_MAX),
    (response(503), RetriableRemoteStorageError, ATTEMPTS_MAX),
    (s3_error(500, "InternalError"), RetriableRemoteStorageError, ATTEMPTS_MAX),
]


async def test_a_refusal_is_its_own_error(kind: str) -> None:
    for answer, error, attempts in REFUSALS:
        with scripted_http() as http:
            for _ in range(attempts):
                http.answer(answer if isinstance(answer, bytes) else answer[kind])
            http.answer(ranged())
            async with over_http(http, kind) as world:
                with pytest.raises(error) as raised:
                    await world.fetch()
                assert type(raised.value) is error
                assert ranges(http) == [0] * attempts, error
                assert await world.fetch() == BODY, "nothing is remembered"


BAD_BODIES: list[tuple[Then, int, int]] = [
    ("stall", 0, 0),
    ("stall", BLOCK_BYTES + 5000, 1),
    ("stall", 2 * BLOCK_BYTES, 2),
    # A reset may overtake what was sent before it, whole blocks too.
    ("reset", 5000, 0),
    ("close", BLOCK_BYTES + 5000, 1),
]
"""What comes after so many bytes, and how many blocks have arrived by then."""


async def test_a_body_that_breaks_is_gone_on_with_at_the_first_missing_block(kind: str) -> None:
    """A silent one was waited for, while the store was healthy; its reader had empty answers meanwhile."""
    for then, sent_bytes, arrived in BAD_BODIES:
        with scripted_http() as http:
            http.answer(ranged(0, sent_bytes), then=then)
            http.answer(ranged(arrived))
            async with over_http(http, kind) as world:
                assert await world.fetch() == BODY
                assert ranges(http) == [0, arrived], f"{then} after {sent_bytes}"
                assert world.gets.sample("get_retries_total") == 1


async def test_a_body_that_breaks_each_time_is_an_error_that_says_how() -> None:
    for then, sent_bytes, arrived in BAD_BODIES:
        with scripted_http() as http:
            http.answer(ranged(0, sent_bytes), then=then)
            http.answer(ranged(arrived, 5000), then=then)
            async with over_http(http) as world:
                with pytest.raises(RetriableRemoteStorageError) as raised:
                    await world.fetch()
                assert isinstance(raised.value, StalledTransferError) == (then == "stall")
                # A block that came gives the GET its attempts back, but the one that failed after it counts.
                attempts = STALLED_ATTEMPTS_MAX if then == "stall" else ATTEMPTS_MAX
                assert ranges(http) == [0] + [arrived] * (attempts - 1), f"{then} after {sent_bytes}"


async def test_bad_answers_for_a_while_are_not_seen(http: ScriptedHttp, kind: str) -> None:
    http.answer(SLOW_DOWN[kind])
    http.answer(SLOW_DOWN[kind])
    http.answer(ranged())
    async with over_http(http, kind) as world:
        assert await world.fetch() == BODY
        assert world.gets.sample("gets_total", outcome="throttled") == 2


@pytest.mark.parametrize(("times", "error"), [(1, None), (2, CorruptObjectError)])
async def test_wrong_bytes_are_fetched_afresh_once(tmp_path: Path, times: int, error: type[Exception] | None) -> None:
    written = write_log(tmp_path, "encrypted")
    written.store.flip_bit("*.log", position=3 * CHUNK_BYTES, times=times)
    async with world_of(written.segment, BlockGrid(CHUNK_BYTES, len(LOG))) as world:
        if error is not None:
            with pytest.raises(error):
                await world.fetch()
        assert await world.fetch() == LOG
        assert len(written.store.gets("*.log")) == times + 1


async def test_the_end_does_not_wait_for_a_body_that_is_silent(http: ScriptedHttp, kind: str) -> None:
    """Stopping waited until the connection's time-out: threads are not left behind."""
    http.answer(ranged(0, BLOCK_BYTES + 5000), then="stall")
    store = open_store(http, kind)
    opened = PlainObjects({}, store=store).open_log_segment(SEGMENT.metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "SILENCE_S_MAX", FAR_S)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            world = GetWorld(nursery)
            flights = flights_of(world, SegmentBlocks(SEGMENT.metadata, opened, SEGMENT.grid))
            await flights[0].wait()
            nursery.cancel_scope.cancel()
            store.close()
    assert trio.current_time() - began_s < 20, "the server gives up after 30 s"
    with pytest.raises(trio.ClosedResourceError):
        await flights[1].wait()
    assert world.budget.held == 0
