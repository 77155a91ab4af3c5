"""What a client connection needs of what answers its requests (`tidegate.answering`)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from protocol.fetch.walker import PartitionEditor
from protocol.wire.endpoints import NodeAddress
from proxy.connection.accounts import Account
from proxy.connection.audit import ClientAudit
from proxy.connection.names import ClientName
from proxy.upstream.transport import Bytes
from storage.bounded_map import BoundedMap
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords

# What an exchange may do with the client's own upstream connection: send a frame, await its answer.
#
# Requests of our own stand in the stream of the client's requests, so the broker answers them in their place, as
# the client's principal (docs/protocol.md#l1). Their correlation ids are ours and never reach the client.


class PendingAnswer:
    """The answer to a request of our own.

    Args:
        held_bytes_max: of a Fetch, so much of it may be held; None: `expert.proxy.response.held.bytes.max`.
    """

    __slots__ = ("_arrived", "_frame", "dropped", "held_bytes_max")

    def __init__(self, held_bytes_max: int | None = None) -> None:
        self.held_bytes_max = held_bytes_max
        self.dropped: Sequence[int] = ()
        """For each partition in the frame: bytes of records that were dropped as they arrived; (): none of any."""
        self._arrived = trio.Event()
        self._frame = memoryview(b"")

    def deliver(self, frame: memoryview, dropped: Sequence[int] = ()) -> None:
        """The whole response frame has arrived."""
        self._frame, self.dropped = frame, dropped
        self._arrived.set()

    async def frame(self) -> memoryview:
        """The whole response frame, length field included.

        When the upstream connection ends first, the connection's own scope cancels this.
        """
        await self._arrived.wait()
        return self._frame


class UpstreamWire(Protocol):
    """The client's upstream connection as an exchange sees it."""

    @property
    def node_id(self) -> int | None:
        """The broker at the other end; None where that is not known (a bootstrap connection)."""
        ...

    def next_correlation_id(self) -> int:
        """An id for a request of our own."""
        ...

    async def ask(
        self, api_key: int, api_version: int, correlation_id: int, frame: bytes, held_bytes_max: int | None = None
    ) -> PendingAnswer:
        """Send a request of our own; its answer is awaited on what is returned.

        Args:
            held_bytes_max: as PendingAnswer.
        """
        ...

    async def advertise(self, nodes: Sequence[NodeAddress]) -> Mapping[int, tuple[str, int]]:
        """Return what clients get for these brokers, whose listeners are bound when this returns; clients do not hear
        of one that is left out."""
        ...


@dataclass(frozen=True, slots=True)
class Relay:
    """The frame is relayed, which may have been patched in place.

    `on_response_head` is handed the first `head_bytes` of the response (length field included; all of it, when it is
    shorter), before they go to the client; it may patch them in place. `editor`: changes what a Fetch response says of
    its partitions, as it passes.
    """

    head_bytes: int = 0
    on_response_head: Callable[[memoryview], None] | None = None
    editor: PartitionEditor | None = None


RELAY = Relay()
"""Relay it, and never mind the response."""

Answer = Sequence[Bytes]
"""A whole response frame, in buffers. If it is a list, it belongs to its sender."""


Exchange = Callable[[memoryview, UpstreamWire], Awaitable[Answer | Relay]]
"""Decides about one request, a frame, and answers it if it is not to be relayed."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class RequestHandlers:
    """What decides about a connection's requests and answers them, by API key; other requests are relayed.

    Args:
        on_answered: the last answer was sent, or cannot be.
        close: the connection has ended.
        forget_authority: the client may be somebody else from now on, or have other rights.
        on_log_start_moved: a DeleteRecords or DeleteTopics passed here: every connection's good probes are void.
    """

    exchanges: Mapping[int, Exchange]
    on_answered: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing
    forget_authority: Callable[[], None] = _nothing
    on_log_start_moved: Callable[[], None] = _nothing


# A client connection as a reader of the tier: who it is, what it waits for, what its answer holds until it is sent.


ASKS_MIN = 3
"""So often an offset is asked for before the tier counts as failing it (`proxy.fetch.fallback`, rule 1)."""

PATIENCE_PARTITIONS_MAX = 10_000
"""Partitions of one connection that wait for their bytes."""


@dataclass(slots=True)
class _Wait:
    offset: int
    since_s: float
    asks: int = 0


class Patience:
    """What one client asked for and has no byte of: which offset of a partition, how often, since when."""

    def __init__(self) -> None:
        self._waits: BoundedMap[TopicIdPartition, _Wait] = BoundedMap(PATIENCE_PARTITIONS_MAX)

    def is_over(self, partition: TopicIdPartition, offset: int, started_s: float, after_s: float) -> bool:
        """Return whether a request that began at `started_s` and got no byte of the offset was one too many."""
        wait = self._waits.get(partition)
        if wait is None or wait.offset != offset:
            wait = self._waits[partition] = _Wait(offset, started_s)
        wait.asks += 1
        return wait.asks >= ASKS_MIN and trio.current_time() - wait.since_s >= after_s

    def end(self, partition: TopicIdPartition) -> None:
        """Its bytes came, from wherever."""
        self._waits.pop(partition, None)


class ClientReads:
    """One for each client connection. `identity` tells its sequential reads from others'.

    Args:
        account: bounds what Fetches of our own ask for; None: nothing does.
        name: the connection's, for people.
        audit: hears what of the tier the client takes; None: nobody wants to know.
    """

    def __init__(
        self, account: Account | None = None, name: ClientName | None = None, audit: ClientAudit | None = None
    ) -> None:
        self.audit = audit
        self.identity = ClientName() if name is None else name
        self.patience = Patience()
        self._account = account
        self._held: list[TierRecords] = []

    @property
    def held(self) -> Sequence[TierRecords]:
        """Return what was held and not released."""
        return self._held

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks that are held."""
        return sum(records.blocks_bytes for records in self._held)

    def granted(self, wanted_bytes: int) -> int:
        """Return how much of `wanted_bytes` a Fetch of our own may ask for."""
        return wanted_bytes if self._account is None else self._account.granted(wanted_bytes)

    def hold(self, records: TierRecords) -> None:
        """Records of the answer in the making; also those that will not be in it after all."""
        self._held.append(records)

    def give_up(self) -> None:
        """The answer is not sent yet, and does without its blocks."""
        if self._account is not None:
            self._account.prefer(self.identity, is_preferred=False)
        for records in self._held:
            records.buffers.clear()
            records.release()

    def takes(self) -> None:
        """Its connection has taken a whole answer, or takes bytes after what it was to get has been given up: it is not
        to wait for those who take none."""
        if self._account is not None:
            self._account.prefer(self.identity, is_preferred=True)

    def drop(self, records: TierRecords) -> None:
        """These will not be in the answer: their blocks count no longer."""
        records.release()
        self._held = [held for held in self._held if held is not records]

    def release(self) -> None:
        """The answer was sent, or will not be: its blocks count no longer."""
        held, self._held = self._held, []
        for records in held:
            records.release()
        if held:
            self.takes()
        if self.audit is not None:
            self.audit.forget()

    def close(self) -> None:
        """The client has gone."""
        self.release()
        self.identity.close()
        if self._account is not None:
            self._account.prefer(self.identity, is_preferred=False)


# Requests of thousands of partitions, which the event loop must not stand still for: others go meanwhile, and one such
# work is under way at a time. Without the turn a hundred clients with large requests would have a hundred of them
# between two looks at the network.


T = TypeVar("T")
R = TypeVar("R")

ITEMS_AT_ONCE = 1000
"""Partitions that are handled without a look at the network: 1 to 3 µs each."""

BYTES_AT_ONCE = 16 * 1024
"""Bytes that are decoded so, whatever is in them: 0.1 to 0.3 µs each in the smallest items."""

_turns: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("turns of long work")


async def off_loop(is_large: bool, work: Callable[[], T]) -> T:
    """Return what `work` makes of messages alone: in a thread if it is large, else here, without a checkpoint.

    Cancellation: before it begins; what has begun is waited for.
    """
    if not is_large:
        return work()
    async with _turn():
        return await trio.to_thread.run_sync(work)


async def each_slice(items: Sequence[T], handle: Callable[[Sequence[T]], R]) -> list[R]:
    """Return what `handle` makes of the items, ITEMS_AT_ONCE by ITEMS_AT_ONCE; so many are handled without a
    checkpoint."""
    if len(items) <= ITEMS_AT_ONCE:
        return [handle(items)]
    results = []
    async with _turn():
        for at in range(0, len(items), ITEMS_AT_ONCE):
            results.append(handle(items[at : at + ITEMS_AT_ONCE]))
            await trio.lowlevel.checkpoint()
    return results


def _turn() -> trio.Lock:
    try:
        return _turns.get()
    except LookupError:
        lock = trio.Lock()
        _turns.set(lock)
        return lock
