"""A client connection as a reader of the tier: who it is, what it waits for, what its answer holds until it is sent."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from proxy.accounts import Account
from proxy.fallback import Patience
from storage.reader import TierRecords

_numbers = itertools.count(1)


class ReaderName(NamedTuple):
    """Whose reads they are. `number` is another one for each connection; `client` is for people."""

    number: int
    client: str

    def __str__(self) -> str:
        return self.client


class ClientReads:
    """One for each client connection. `identity` tells its sequential reads from others'.

    Args:
        account: bounds what Fetches of our own ask for; None: nothing does.
        client: the connection's address, for people.
    """

    def __init__(self, account: Account | None = None, client: str = "") -> None:
        self.identity = ReaderName(next(_numbers), client)
        self.patience = Patience()
        self._account = account
        self._held: list[TierRecords] = []

    @property
    def held(self) -> Sequence[TierRecords]:
        """What was held and not released."""
        return self._held

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks that are held."""
        return sum(records.blocks_bytes for records in self._held)

    def granted(self, wanted_bytes: int) -> int:
        """How much of `wanted_bytes` a Fetch of our own may ask for."""
        return wanted_bytes if self._account is None else self._account.granted(wanted_bytes)

    def hold(self, records: TierRecords) -> None:
        """Records of the answer in the making; also those that will not be in it after all."""
        self._held.append(records)

    def give_up(self) -> None:
        """The answer is not sent yet, and does without its blocks."""
        for records in self._held:
            records.buffers.clear()
            records.release()

    def drop(self, records: TierRecords) -> None:
        """These will not be in the answer: their blocks count no longer."""
        records.release()
        self._held = [held for held in self._held if held is not records]

    def release(self) -> None:
        """The answer was sent, or will not be: its blocks count no longer."""
        held, self._held = self._held, []
        for records in held:
            records.release()
