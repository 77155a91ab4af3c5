"""Good probes: what the broker has vouched for on this connection, and for how long it may be taken as said.

docs/protocol.md#l1: no tier byte leaves without a good probe. A probe is good for one topic id, partition, isolation
level and current leader epoch, as one authenticated client, for `authority.max.age.ms`. Any error on the partition,
another sign-in on the connection, or a DeleteRecords or DeleteTopics on any connection ends it.

What outlives a good probe is the right to have reads of its partition started beside the next one: by topic id and
partition, whatever the request's version. A client that asks by name has it for the id that the probe was asked with;
if the name is another topic's by now, that one's id has yet to be vouched for. Errors on the partition and another
sign-in take the right away; age and moved log starts do not.
"""

from dataclasses import dataclass
from typing import NamedTuple

from proxy.fetch.aborted_tails import AbortedTail
from storage.bounded_map import BoundedMap
from storage.model import TopicIdPartition

AUTHORITIES_MAX = 10_000
"""Partitions remembered per connection; a full table is dropped whole: its entries live a second, and to learn a right
again takes one probe that goes first."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A good probe's answer, and the leader epoch and local log start of which it was asked.

    `aborted_tail`: for READ_COMMITTED, the aborted transactions that reach from below that local log start into the
    local log; None if that could not be learned.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int
    local_log_start_offset: int
    given_at_s: float
    aborted_tail: AbortedTail | None = None


class AuthorityKey(NamedTuple):
    """What a probe was good for."""

    partition: TopicIdPartition
    isolation_level: int
    current_leader_epoch: int


class LogStartGeneration:
    """Grows when any client moves a log start; shared by all connections."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def move(self) -> None:
        """Every connection's good probes are void."""
        self.value += 1


class Authorities:
    """Good probes of one connection. `age_s_max` may change: it counts when a probe is asked for."""

    __slots__ = ("_by_key", "_generation", "_generation_seen", "_rights", "age_s_max")

    def __init__(self, age_s_max: float, generation: LogStartGeneration) -> None:
        self.age_s_max = age_s_max
        self._by_key: BoundedMap[AuthorityKey, Authority] = BoundedMap(AUTHORITIES_MAX)
        self._rights: BoundedMap[TopicIdPartition, None] = BoundedMap(AUTHORITIES_MAX)
        self._generation = generation
        self._generation_seen = generation.value

    def get(self, key: AuthorityKey, now_s: float) -> Authority | None:
        """A probe that still counts, by trio's clock."""
        if self._generation_seen != self._generation.value:
            self._by_key.clear()
            self._generation_seen = self._generation.value
        authority = self._by_key.get(key)
        if authority is None or now_s - authority.given_at_s >= self.age_s_max:
            return None
        return authority

    def has_right(self, partition: TopicIdPartition) -> bool:
        """Return whether a probe of the partition was good in this sign-in, however long ago, and none was refused
        since."""
        return partition in self._rights

    def put(self, key: AuthorityKey, authority: Authority) -> None:
        """A probe was good. With an age of 0 it counts for its own exchange only; the right remains."""
        self._rights[key.partition] = None
        if self.age_s_max > 0:
            self._by_key[key] = authority

    def end(self, key: AuthorityKey) -> None:
        """The broker said no."""
        self._by_key.pop(key, None)
        self._rights.pop(key.partition, None)

    def end_all(self) -> None:
        """Another principal, or other rights."""
        self._by_key.clear()
        self._rights.clear()
