"""The crowd's clients notice what they are there for: other bytes than the broker's, and being closed."""

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.support.crowd_clients import ClosedError, CrowdClient, KnownLog, WrongBytesError

KNOWN = KnownLog("orders", bytes(16), 0, b"aaaabbbbcc", [(0, 0), (5, 4), (9, 8), (11, 10)])
"""Three batches, at offsets 0, 5 and 9."""


@pytest.mark.parametrize(
    ("number", "records", "follows"),
    [(0, b"", 0), (0, b"aaaa", 1), (0, b"aaaabb", 1), (1, b"bbbb", 2), (1, b"bbbbcc", 0), (2, b"c", 2)],
)
def test_a_reader_goes_on_behind_the_last_whole_batch(number: int, records: bytes, follows: int) -> None:
    assert KNOWN.follows(number, records) == follows


@pytest.mark.parametrize(("number", "records"), [(0, b"aaab"), (1, b"aaaa"), (2, b"cca")])
def test_records_that_are_not_the_brokers_are_refused(number: int, records: bytes) -> None:
    with pytest.raises(WrongBytesError):
        KNOWN.follows(number, records)


async def test_a_connection_that_ends_within_an_answer_was_closed() -> None:
    ours, theirs = memory_stream_pair()
    client = CrowdClient(ours)

    async def broker() -> None:
        await theirs.receive_some()
        await theirs.send_all(b"\0\0\0\x10half")
        await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker)
        with pytest.raises(ClosedError, match="after 8 bytes"):
            await client.question()


async def test_a_connection_that_is_reset_was_closed() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    with pytest.raises(ClosedError):
        await CrowdClient(ours).question()
