"""What the audit counts: bytes that clients have taken, by minute, under the name that the broker accepted."""

import itertools
import random
import struct
from collections.abc import Sequence
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.client.errors import TransportError
from protocol.sign_in import SignIn
from protocol.sign_in_name import SignInName
from protocol.wire.identifiers import ApiKey
from proxy.connection.accounts import Wait
from proxy.connection.audit import ROWS_MAX, Audit, ClientAudit, Reader, Row, Rows
from proxy.connection.client_reads import ClientReads
from proxy.connection.names import GROUPS_MAX, ClientName, Groups, group_rows, join_groups
from proxy.connection.request_handlers import Answer, UpstreamWire
from proxy.connection.slow_answer import AnswerSending
from storage.errors import RemoteResourceNotFoundError
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords
from tests.proxy.connection.test_answer_sending import HEAD, TAIL, Taker
from tests.proxy.connection.test_before_sign_in import DEMANDING, authenticated, handshake
from tests.proxy.connection.test_connection import fetch
from tests.proxy.connection.test_raw_sign_in import handshake_response
from tests.support.cases import case
from tests.support.fake_wire import BATCH_BYTES
from tests.support.memory_transport import HEARTBEAT, Conversation, conversation, framed, request, response
from tests.support.segments import filled_segment, topic_partition
from tests.support.tier import Tier
from tests.support.tier_world import TierWorld, ask

MINUTE = 29_000_000
PARTITION = topic_partition("orders", 3)
SECRET = "pencil-4711"


def signed(name: str | None = None) -> SignIn:
    return SignIn(is_demanded=False, certified_as=None if name is None else SignInName("PLAIN", name))


class Written:
    """An audit, whose clock is trio's from the beginning of a minute on, and what it has written."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Rows]] = []
        self.start_s = trio.current_time()
        self.groups = Groups(trio.current_time)
        self.audit = Audit(lambda minute, rows: self.batches.append((minute, rows)), self.groups, self.clock)
        self.audit.flush()

    def named(self, address: str, sign_in: SignIn) -> ClientName:
        return ClientName(self.groups, address, sign_in)

    def clock(self) -> float:
        return MINUTE * 60 + trio.current_time() - self.start_s

    def count(self, client_id: str, first: int = 0, end: int = 1, size: int = 1) -> None:
        self.audit.count(Reader("10.0.0.1:5", None, client_id, PARTITION), first, end, size)


@pytest.fixture
async def written() -> Written:
    return Written()


# --- minutes, and floods ---


@pytest.mark.autojump
async def test_reads_of_a_minute_are_added_up() -> None:
    written = Written()
    written.count("a", 70, 80, 1000)
    await trio.sleep(59)
    written.count("a", 10, 20, 500)
    written.count("b", 5, 6, 7)
    assert written.audit.flush() == 1
    ((minute, rows),) = written.batches
    assert (minute, [*rows.values()]) == (MINUTE, [Row(10, 80, 1500, 2), Row(5, 6, 7, 1)])


@pytest.mark.autojump
async def test_no_line_is_of_two_minutes_however_late_it_is_written() -> None:
    written = Written()
    written.count("a")
    await trio.sleep(179)
    written.count("a")
    written.audit.flush()
    assert [(minute, len(rows)) for minute, rows in written.batches] == [(MINUTE, 1), (MINUTE + 2, 1)]
    await trio.sleep(60)
    written.audit.flush()
    assert len(written.batches) == 2


async def test_a_flood_of_client_ids_makes_early_lines(written: Written) -> None:
    for number in range(3 * ROWS_MAX + 1):
        written.count(f"client-{number}")
    assert [len(rows) for _, rows in written.batches] == [ROWS_MAX] * 3
    written.audit.flush()
    assert len({reader for _, rows in written.batches for reader in rows}) == 3 * ROWS_MAX + 1


# --- groups ---


def group_frame(client_id: bytes, group: bytes) -> bytes:
    """A Heartbeat that is not flexible: the group comes first."""
    header = struct.pack(">hhi", HEARTBEAT, 3, 5)
    return framed(header + framed(client_id)[2:] + framed(group)[2:])


def tells(client: ClientName, client_id: bytes, group: bytes) -> None:
    client.on_group_request(memoryview(group_frame(client_id, group)))


@pytest.mark.autojump
async def test_a_group_is_told_on_another_connection_of_the_same_application() -> None:
    written, alice = Written(), signed("alice")
    coordinator = written.named("10.0.0.1:1", alice)
    tells(coordinator, b"c", b"billing")
    reader = Reader("10.0.0.1:2", alice.signed_in_as, "c", PARTITION)
    assert written.audit.group_of(reader) == "billing"
    for other in (
        reader._replace(address="10.0.0.2:2"),
        reader._replace(client_id="d"),
        reader._replace(signed_in_as=None),
    ):
        assert written.audit.group_of(other) is None
    tells(second := written.named("10.0.0.1:3", alice), b"c", b"shipping")
    assert written.audit.group_of(reader) is None  # one of the two; nobody knows which
    second.close()
    coordinator.close()
    coordinator.close()
    assert written.groups.all()  # reads of the minute in which it closed are written after that
    await trio.sleep(120)
    assert written.groups.all() == []
    assert written.audit.group_of(reader) is None
    tells(written.named("10.0.0.1:4", alice), b"c", b"shipping")
    assert written.audit.group_of(reader) == "shipping"


async def test_no_more_groups_are_remembered_than_there_is_room_for(written: Written) -> None:
    clients = [written.named(f"10.0.0.1:{port}", signed()) for port in range(GROUPS_MAX + 1)]
    for number, client in enumerate(clients):
        tells(client, b"c%d" % number, b"group")
    assert [client.wants_group for client in clients] == [False] * GROUPS_MAX + [True]


async def test_what_a_reader_is_called_is_shown_with_every_group_of_any_worker(written: Written) -> None:
    other, alice = Groups(trio.current_time), signed("alice")
    reader = written.named("10.0.0.1:2", alice)
    reader.calls_itself("c")
    assert reader.row() == {"client": "10.0.0.1:2", "client_id": "c", "sign_in_name": "alice", "groups": []}
    tells(written.named("10.0.0.1:1", alice), b"c", b"billing")
    for client_id, group in ((b"c", b"shipping"), (b"d", b"audit")):
        tells(ClientName(other, "10.0.0.1:3", alice), client_id, group)
    rows = [reader.row()]
    join_groups(rows, [*group_rows(written.groups), *group_rows(other)])
    assert rows[0]["groups"] == ["billing", "shipping"]


async def test_a_client_whose_name_nobody_wants_is_known_by_its_address() -> None:
    name = ClientName(None, "10.0.0.1:2")
    name.calls_itself("c")
    tells(name, b"c", b"billing")
    assert name.row() == {"client": "10.0.0.1:2", "client_id": None, "sign_in_name": None, "groups": []}


# --- what has left ---


class Sent:
    """One answer on its way to a client that takes as much of it as it is let."""

    def __init__(self, written: Written, tier: Tier, records: Sequence[TierRecords]) -> None:
        self.audit = written.audit.client(written.named("10.0.0.1:2", signed("alice")))
        self.reads = ClientReads(audit=self.audit)
        for records_of_one in records:
            self.reads.hold(records_of_one)
            self.audit.serves("c", PARTITION, records_of_one)
        buffers: list[bytes | memoryview] = [HEAD, b"", *(view for each in records for view in each.buffers), TAIL]
        self.size = sum(map(len, buffers))
        self.sending = AnswerSending(buffers, self.reads)


def rows_of(written: Written) -> list[Row]:
    written.audit.flush()
    return [row for _, rows in written.batches for row in rows.values()]


async def test_a_whole_answer_counts_with_its_offsets(written: Written, tier: Tier, nursery: trio.Nursery) -> None:
    segment = filled_segment(0)
    records = await tier.read(0, max_bytes=len(segment.log))
    sent, taker = Sent(written, tier, [records]), Taker()
    nursery.start_soon(sent.sending.send, taker, Wait(sent.sending))
    await taker.take(sent.size)
    assert rows_of(written) == [Row(0, segment.end_offset + 1, len(segment.log), 1)]


async def test_of_an_answer_that_breaks_off_only_what_left_counts(tier: Tier, nursery: trio.Nursery) -> None:
    """Also when blocks are given up meanwhile, and read again."""
    for seed in range(12):
        with case(seed):
            await check_broken_off(tier, nursery, random.Random(seed), Taker(is_plain=seed % 2 == 0))


async def check_broken_off(tier: Tier, nursery: trio.Nursery, rand: random.Random, taker: Taker) -> None:
    records = [await tier.read(0, max_bytes=3300), await tier.read(60, max_bytes=2500)]
    sizes = [each.size_bytes for each in records]
    written, broke = Written(), list[TransportError]()
    sent = Sent(written, tier, records)

    async def send() -> None:
        try:
            await sent.sending.send(taker, Wait(sent.sending))
        except TransportError as error:
            broke.append(error)

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    for _ in range(rand.randrange(9)):
        await taker.take(rand.randrange(1, 900))
        if rand.random() < 0.5:
            sent.sending.release()
            await wait_all_tasks_blocked()
    if len(taker.taken) < sent.size:
        await taker.take(-1)
        assert broke
    left = max(0, len(taker.taken) - len(HEAD))
    expected = [min(left, sizes[0]), min(max(0, left - sizes[0]), sizes[1])]
    (row,) = rows_of(written) or [Row(0, 0, 0, 0)]
    assert (row.size_bytes, row.answers) == (sum(expected), sum(size > 0 for size in expected))


class Noting:
    """Stands for a ClientAudit: what it hears of answers."""

    def __init__(self) -> None:
        self.served: list[tuple[str | None, TopicIdPartition, int]] = []

    def serves(self, client_id: str | None, partition: TopicIdPartition, records: TierRecords) -> None:
        self.served.append((client_id, partition, records.size_bytes))

    def forget(self) -> None:
        """Nothing is kept."""


@pytest.mark.autojump
async def test_only_records_of_the_tier_are_told(nursery: trio.Nursery) -> None:
    world = TierWorld(nursery)
    cold, bad, hot = (world.add_partition("orders", number, high_watermark=1500) for number in range(3))
    refused = world.add_partition("orders", 3, high_watermark=1500, error_code=29)
    world.reader.failures[bad] = RemoteResourceNotFoundError("gone")
    noting = Noting()
    client = world.client(audit=cast(ClientAudit, noting))
    await client.fetch([ask(cold, 17, max_bytes=300), ask(bad, 17), ask(hot, 1490), ask(refused, 17)])
    assert noting.served == [("a-client", cold, 300 // BATCH_BYTES * BATCH_BYTES)]


# --- names, on a connection ---


async def read(talk: Conversation, tier: Tier) -> None:
    """One Fetch, answered with some of the tier."""
    records = await tier.read(0, max_bytes=900)

    async def answer(frame: memoryview, wire: UpstreamWire) -> Answer:
        talk.handlers.reads.hold(records)
        audit = talk.handlers.reads.audit
        assert audit is not None
        audit.serves("c", PARTITION, records)
        await trio.lowlevel.checkpoint()
        return [framed(b"".join(records.buffers))]

    talk.handlers.handle_fetch = answer
    await talk.client.send(fetch(90))
    await talk.client.expect(framed(b"".join(records.buffers)))


def authenticate(token: bytes) -> bytes:
    return request(ApiKey.SASL_AUTHENTICATE, 1, 3, framed(token))


def readers_of(written: Written) -> list[Reader]:
    written.audit.flush()
    return [reader for _, rows in written.batches for reader in rows]


async def test_a_client_is_named_once_the_broker_has_let_it_in(tier: Tier) -> None:
    token = b"\0alice\0" + SECRET.encode()
    for api_version, piece_bytes in itertools.product((0, 1), (1, None)):
        written = Written()
        with case(api_version, piece_bytes):
            async with conversation(
                limits=DEMANDING, piece_bytes=piece_bytes, audit=written.audit, groups=written.groups
            ) as talk:
                await talk.exchange(group_frame(b"c", b"not-yet"), response(5))
                await talk.exchange(handshake(2, "PLAIN", api_version), handshake_response(2))
                if api_version:
                    await talk.exchange(authenticate(token), authenticated(3, b""))
                else:
                    await talk.exchange(framed(token), framed(b""))
                await talk.exchange(group_frame(b"c", b"billing"), response(5))
                await read(talk, tier)
            (reader,) = readers_of(written)
            assert reader == Reader("client", SignInName("PLAIN", "alice"), "c", PARTITION)
            assert written.audit.group_of(reader) == "billing"
            assert SECRET not in repr(written.batches)


async def test_a_refused_second_sign_in_names_nobody_else(written: Written, tier: Tier) -> None:
    async with conversation(limits=DEMANDING, audit=written.audit, groups=written.groups) as talk:
        for name, error_code in (("alice", 0), ("admin", 58)):
            await talk.exchange(handshake(2, "PLAIN"), handshake_response(2))
            await talk.exchange(authenticate(f"\0{name}\0x".encode()), authenticated(3, b"", error_code))
        await read(talk, tier)
    assert [reader.signed_in_as for reader in readers_of(written)] == [("PLAIN", "alice")]
