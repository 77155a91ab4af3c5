"""A client connection as a reader of the tier: who it is, what it waits for, what its answer holds until it is sent."""

import itertools

from proxy.fallback import Patience
from storage.reader import TierRecords

_identities = itertools.count(1)


class ClientReads:
    """One for each client connection. `identity` tells its sequential reads from others'."""

    def __init__(self) -> None:
        self.identity = next(_identities)
        self.patience = Patience()
        self._held: list[TierRecords] = []

    def hold(self, records: TierRecords) -> None:
        """Records of the answer in the making; also those that will not be in it after all."""
        self._held.append(records)

    def release(self) -> None:
        """The answer was sent, or will not be: its blocks count no longer."""
        held, self._held = self._held, []
        for records in held:
            records.release()
