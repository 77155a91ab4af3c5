"""What is held in memory for each client connection, and which gives way when that is too much (docs/protocol.md#l6).

Two budgets, each for all connections: `held` for requests that are decoded, responses that are rewritten or merged;
`answers` for the tier's blocks of answers that are not sent yet (`storage.cache.held_blocks`). A request
without room waits in line, and then a client gives way:

Rule 1. A wait for a client that takes bytes counts again whenever PROGRESS_BYTES have passed: one that takes a byte now
        and then is as slow as one that takes nothing. A wait for the rest of a frame counts from its beginning.
Rule 2. The tier's blocks of the longest wait are given up first: after `expert.proxy.send.stall.ms`; or after
        SHARE_WAIT_S, if the connection holds its share (what all would have alike) or more. Nothing is lost by that:
        the answer reads them again when its client takes bytes (`proxy.connection.slow_answer`).
Rule 3. For held bytes, the connection with the longest wait ends: after `expert.proxy.send.stall.ms`, or with its share
        or more after SHARE_WAIT_HELD_S. They cannot be had again. So the Fetches of our own ask for no more than half
        of the room that is left (`Account.granted`).
Rule 4. While nobody waits in line, everybody may wait as long as it likes.
Rule 5. What is relayed stays in its socket, but for some KiB (`proxy.connection.frame_stream`). Where the system has no
        memory for it and it is held here all the same, it waits for no room and ends no connection.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import trio

from metrics.meters import RelayMeter
from storage.cache.byte_budget import LARGE_BYTES, ByteBudget

if TYPE_CHECKING:
    from protocol.wire.framing import FrameBuffer

PROGRESS_BYTES = 64 * 1024

SHARE_WAIT_S = 0.1
"""For the tier's blocks. A client over a slow line takes bytes at each of its round trips."""

SHARE_WAIT_HELD_S = 1.0
"""For held bytes: to be closed costs more than to read again."""

RELIEF_INTERVAL_S = 0.05
"""While somebody waits in line, so often is looked for who gives way."""

GRANT_BYTES_MIN = 64 * 1024
"""A Fetch of our own may always ask for that much: a client must get on, and one batch comes in any case."""

AT_ONCE_BYTES_MAX = 2 * GRANT_BYTES_MIN
"""So much waits for nobody: what most responses to questions of our own take, and the least that a client gets on by.
Should it become too much all the same, rule 3 holds."""

OVERDRAWN_TIMES = 2


@dataclass(slots=True)
class AccountSettings:
    """`send_stall_s`: `expert.proxy.send.stall.ms`, in seconds. One for all connections; a reload changes it."""

    send_stall_s: float


class Releasable(Protocol):
    """What holds the tier's blocks and can do without them."""

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks that it holds."""
        ...

    def release(self) -> None:
        """Hold none of them any more."""
        ...


class Wait:
    """While it is entered a peer is waited for: it takes or sends bytes, slowly perhaps. Owned by the task that waits.

    Args:
        blocks: what could be given up meanwhile.
        waits: those of its account that are entered.
    """

    __slots__ = ("_passed_bytes", "_waits", "blocks", "since_s")

    def __init__(self, blocks: Releasable | None, waits: "list[Wait] | None" = None) -> None:
        self.since_s = trio.current_time()
        self.blocks = blocks
        self._waits = [] if waits is None else waits
        self._passed_bytes = 0

    def __enter__(self) -> Self:
        self._waits.append(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self._waits.remove(self)

    def passed(self, size_bytes: int) -> None:
        """Note how many bytes more went through."""
        self._passed_bytes += size_bytes
        if self._passed_bytes >= PROGRESS_BYTES:
            self._passed_bytes = 0
            self.since_s = trio.current_time()


class Account:
    """One connection's. `close` must follow.

    Args:
        end: ends the connection, with the reason for its log line; may be called more than once.
        client: its address, for people.
    """

    def __init__(self, accounts: "Accounts", end: Callable[[str], None], client: str = "") -> None:
        self.client = client
        self.held_bytes = 0
        self.buffers: list[FrameBuffer] = []
        """What was received and not handled yet, in both directions."""
        self.end = end
        self._accounts = accounts
        self._waits: list[Wait] = []
        self._relayed_bytes = 0

    @property
    def relayed_bytes(self) -> int:
        """Return how many bytes of what is relayed are in memory."""
        return self._relayed_bytes + sum(map(len, self.buffers))

    @property
    def endable_bytes(self) -> int:
        """Return how many held bytes the end of its connection would free (rule 5)."""
        return self.held_bytes - self._relayed_bytes

    @property
    def waits_since_s(self) -> float | None:
        """When the longest of its waits began, by trio's clock; None if it waits for no peer."""
        return min((wait.since_s for wait in self._waits), default=None)

    @property
    def waits_with_blocks(self) -> list[Wait]:
        """Those in which blocks are held."""
        return [wait for wait in self._waits if wait.blocks is not None and wait.blocks.blocks_bytes]

    @property
    def kept_bytes(self) -> int:
        """Return what memory is held for it: bytes of its own, and of the blocks that it waits with."""
        blocks_bytes = sum(wait.blocks.blocks_bytes for wait in self._waits if wait.blocks is not None)
        return self.held_bytes + blocks_bytes

    def waiting(self, blocks: Releasable | None = None) -> Wait:
        """To enter: while that lasts a peer is waited for.

        Args:
            blocks: what could be given up meanwhile.
        """
        return Wait(blocks, self._waits)

    async def hold(self, size_bytes: int, *, at_once_bytes_max: int = AT_ONCE_BYTES_MAX) -> None:
        """Hold that much more: up to `at_once_bytes_max` at once, unless OVERDRAWN_TIMES of what there is room for is
        held already; what is larger once there is room for it.

        Cancellation: nothing is held.
        """
        held = self._accounts.held
        if size_bytes <= at_once_bytes_max and held.held < OVERDRAWN_TIMES * held.bytes_max:
            self._accounts.overdraw(size_bytes)
        elif not held.try_acquire(size_bytes):
            await held.acquire(size_bytes, self)
        self.held_bytes += size_bytes

    async def hold_answer(self, size_bytes: int) -> int:
        """The same for an answer to a question of our own; what is to be let go of it. One of those beyond LARGE_BYTES
        is held at a time, and what its connection gets beside it waits for nobody: it would wait for itself."""
        if self.held_bytes > LARGE_BYTES:
            self._accounts.overdraw(size_bytes)
            self.held_bytes += size_bytes
            return size_bytes
        size_bytes = self._accounts.held.charged(size_bytes)
        await self.hold(size_bytes)
        return size_bytes

    def let_go(self, size_bytes: int) -> None:
        """Hold that much less."""
        if size_bytes:
            self.held_bytes -= size_bytes
            self._accounts.held.release(size_bytes)

    def hold_relayed(self, size_bytes: int) -> None:
        """Hold that much of what is relayed (rule 5)."""
        self._accounts.overdraw(size_bytes)
        self.held_bytes += size_bytes
        self._relayed_bytes += size_bytes

    def let_go_relayed(self, size_bytes: int) -> None:
        """Hold that much less of it."""
        self._relayed_bytes -= size_bytes
        self.let_go(size_bytes)

    def granted(self, wanted_bytes: int) -> int:
        """Return how much of `wanted_bytes` a Fetch of our own may ask for (rule 3)."""
        return min(wanted_bytes, max(GRANT_BYTES_MIN, self._accounts.held.room // 2))

    def prefer(self, reader: Hashable, *, is_preferred: bool) -> None:
        """Say whether its reads of the tier wait for room in the line of those who take at once what they get."""
        self._accounts.answers.prefer(reader, is_preferred=is_preferred)

    def close(self) -> None:
        """The connection has ended: all it held is free."""
        self._accounts.closed(self)
        self.let_go(self.held_bytes)


class Accounts:
    """All of them. Owned by the trio thread; `run` must be running.

    Args:
        answers: the budget of the tier's blocks that answers hold.
    """

    def __init__(self, held: ByteBudget, answers: ByteBudget, settings: AccountSettings, meter: RelayMeter) -> None:
        self.held = held
        self.answers = answers
        self._settings = settings
        self._meter = meter
        self._open: dict[Account, None] = {}
        self._short = trio.Event()
        for budget in (held, answers):
            budget.when_short(lambda: self._short.set())

    def __len__(self) -> int:
        """Open accounts."""
        return len(self._open)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._open)

    @property
    def relayed_bytes(self) -> int:
        """Return how many bytes of what is relayed are in memory."""
        return sum(account.relayed_bytes for account in self._open)

    def open(self, end: Callable[[str], None], client: str = "") -> Account:
        """The account of a new connection."""
        account = Account(self, end, client)
        self._open[account] = None
        return account

    def closed(self, account: Account) -> None:
        """Its connection has ended."""
        self._open.pop(account, None)

    def overdraw(self, size_bytes: int) -> None:
        """Hold that much more for somebody at once."""
        self.held.overdraw(size_bytes)
        if self._is_held_short:
            self._short.set()

    @property
    def _is_held_short(self) -> bool:
        return self.held.is_short or self.held.held > self.held.bytes_max

    async def run(self) -> None:
        """Find who gives way, whenever somebody waits in line or more is held than there is room for."""
        while True:
            await self._short.wait()
            while self.answers.is_short or self._is_held_short:
                self._relieve_answers()
                self._relieve_held()
                await trio.sleep(RELIEF_INTERVAL_S)
            self._short = trio.Event()

    def _relieve_answers(self) -> None:
        waits = sorted((wait for account in self._open for wait in account.waits_with_blocks), key=lambda w: w.since_s)
        share_bytes = self.answers.bytes_max // (len(waits) + 1)
        for wait in waits:
            if not self.answers.is_short:
                return
            assert wait.blocks is not None
            if self._is_to_give_way(wait.since_s, wait.blocks.blocks_bytes >= share_bytes, SHARE_WAIT_S):
                released_bytes = wait.blocks.blocks_bytes
                wait.blocks.release()
                self._meter.on_answer_released(released_bytes)

    def _relieve_held(self) -> None:
        if not self._is_held_short:
            return
        holders = [account for account in self._open if account.endable_bytes]
        share_bytes = self.held.bytes_max // (len(holders) + 1)
        waiting = [(since_s, account) for account in holders if (since_s := account.waits_since_s) is not None]
        wanted_bytes = self.held.wanted + self.held.held - self.held.bytes_max
        for since_s, account in sorted(waiting, key=lambda pair: pair[0]):
            if wanted_bytes <= 0:
                return
            if self._is_to_give_way(since_s, account.endable_bytes >= share_bytes, SHARE_WAIT_HELD_S):
                waited_s = trio.current_time() - since_s
                wanted_bytes -= account.endable_bytes  # free in a moment
                account.end(
                    f"waited {waited_s:.1f} s for its peer and held {account.endable_bytes} bytes, "
                    "which others wait for (expert.proxy.held.bytes.max)"
                )

    def _is_to_give_way(self, since_s: float, has_share: bool, share_wait_s: float) -> bool:
        waited_s = trio.current_time() - since_s
        return waited_s >= self._settings.send_stall_s or (has_share and waited_s >= share_wait_s)
