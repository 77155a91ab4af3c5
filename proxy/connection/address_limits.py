"""How many connections a client address has, and how often it connects.

- Both limits are off unless they are set: behind NAT or a balancer many clients have one address.
- The rate is a token bucket: `rate` connections a second, and BURST_S seconds' worth at once, as an application with
  many clients starts them together.
- Addresses with connections are as many as slots. Buckets are kept for the last ADDRESSES_MAX addresses that
  connected; one that is forgotten begins again with a full bucket.
- Kafka's model: `max.connections.per.ip`, and the quota `connection_creation_rate` of an address (KIP-612).
"""

from collections.abc import Callable
from dataclasses import dataclass

from metrics.meters import RefusalReason
from storage.bounded_map import BoundedMap

BURST_S = 5.0

ADDRESSES_MAX = 20_000
"""Some 250 bytes each."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class AddressLimits:
    """The table of addresses.

    Args:
        now_s: a clock that does not go back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.connections: dict[str, int] = {}
        self._buckets: BoundedMap[str, _Bucket] = BoundedMap(ADDRESSES_MAX)

    def refusal(self, address: str, *, connections_max: int | None, rate_max: int | None) -> RefusalReason | None:
        """Why this address may not have one more connection now, if it may not; the attempt counts towards its rate.

        Args:
            rate_max: connections a second.
        """
        if connections_max is not None and self.connections.get(address, 0) >= connections_max:
            return RefusalReason.ADDRESS_CONNECTIONS
        if rate_max is None:
            self._buckets.clear()
            return None
        return None if self._has_token(address, rate_max) else RefusalReason.ADDRESS_RATE

    def entered(self, address: str) -> None:
        """The address has one more connection."""
        self.connections[address] = self.connections.get(address, 0) + 1

    def left(self, address: str) -> None:
        """It has one less."""
        left = self.connections.pop(address) - 1
        if left:
            self.connections[address] = left

    def _has_token(self, address: str, rate_max: int) -> bool:
        now_s = self._now_s()
        burst = rate_max * BURST_S
        bucket = self._buckets[address] = self._buckets.get(address) or _Bucket(burst, now_s)
        bucket.tokens = min(burst, bucket.tokens + (now_s - bucket.at_s) * rate_max)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
