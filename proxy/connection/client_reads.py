"""A client connection as a reader of the tier: who it is, what it waits for, what its answer holds until it is sent."""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from proxy.connection.accounts import Account
from proxy.connection.audit import ClientAudit
from proxy.connection.names import ClientName
from storage.bounded_map import BoundedMap
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords

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
