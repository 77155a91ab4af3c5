"""Who owns the tier: the one thing about it that the way of a request asks.

Brokers with remote storage own theirs (`BrokersOwnIt`): they read every offset of it, and know where it begins. A tier
of our own is known to nobody else (`standalone.serving.owner`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from protocol.fetch.messages import FetchRequest, PartitionAnswer
from protocol.fetch.sessions import FetchSession
from protocol.fetch.walker import PartitionEditor
from protocol.list_offsets import OffsetTimestamp
from proxy.connection.request_handlers import RELAY, Exchange, Relay
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition
from storage.reading.segment_finder import SegmentFinder
from storage.reading.timestamp_search import TimestampSearch

if TYPE_CHECKING:
    from proxy.fetch.authorities import LogStartGeneration
    from proxy.fetch.frontiers import Frontier
    from proxy.fetch.lineages import Lineages
    from proxy.fetch.plan import Instead, TierPart
    from proxy.fetch.tier import CatalogTail, Tier
    from storage.steps import Steps


def _leave(_answers: Sequence[PartitionAnswer]) -> None:
    pass


class Edits:
    """What becomes of a broker's answers to one request of a client, relayed or decoded; here they stand.

    `on_stale`: is called when an offset was not where it was believed to be.
    """

    def relay(self, request: FetchRequest) -> Relay:
        """Return how a request without a session is relayed."""
        return RELAY

    def of_request(self, request: FetchRequest, on_stale: Callable[[], None]) -> PartitionEditor | None:
        """Return what changes the relayed answer to all that a request names."""
        return None

    def of_session(self, session: FetchSession) -> PartitionEditor | None:
        """Return what changes the relayed answer to a request of a session, which may tell of any partition of it."""
        return None

    def of_answers(
        self, request: FetchRequest, on_stale: Callable[[], None] = lambda: None
    ) -> Callable[[Sequence[PartitionAnswer]], None]:
        """Return what changes decoded answers in place."""
        return _leave


_NO_EDITS = Edits()

MakeExchanges = Callable[[float], Mapping[int, Exchange]]
"""Gives those of one connection, by API key; takes what a look-up may take at most, in seconds."""


class TierOwner(Protocol):
    """Says what depends on whose the tier is."""

    local_earliest: int
    """The timestamp for which ListOffsets tells where a broker's own log begins."""
    tells_all_aborts: bool
    """The tier tells of all aborted transactions, so that no broker need be asked."""
    is_alone: bool
    """Nobody else serves what is in the tier."""
    left_to: str
    """What becomes of reads that the tier fails, for people."""

    def with_log_start(self, partition: TopicIdPartition, frontier: "Frontier") -> "Frontier":
        """Return what a broker said, with where the log starts now."""
        ...

    def saw(self, partition: TopicIdPartition, frontier: "Frontier") -> "Frontier":
        """Return the frontier, whose offsets are as an answer to a Fetch has them."""
        ...

    def epoch_starts(self, partition: TopicIdPartition) -> Mapping[int, int] | None:
        """Return where leader epochs begin that brokers may have forgotten; None: they have not."""
        ...

    def can_broker_read(self, offset: int, local_log_start_offset: int) -> bool:
        """Return whether the broker can read an offset in the tier's stead, as far as is known."""
        ...

    def judge(self, part: "TierPart", lineages: "Lineages") -> "Steps[Instead | bool]":
        """Return whether it is known that the client's log is the leader's up to the offset of a part, or what it is
        answered with; False: the broker is to say. In steps.

        Raises:
            UpstreamError: the lineage cannot be learned.
        """
        ...

    def finder(self, catalog: Catalog, local_start: int, *, is_caught_up: bool) -> SegmentFinder:
        """Return what finds segments below a broker's log.

        Args:
            is_caught_up: the partition's metadata was just read to its end.
        """
        ...

    def tail(self, tail: "CatalogTail") -> "CatalogTail":
        """Return what tells which partitions may be served, given how far the catalog is."""
        ...

    def missing(self) -> str | None:
        """Return why the tier cannot be served yet although the catalog is read; None: it can."""
        ...

    def edits(self, tier: "Tier", node_id: int | None) -> Edits:
        """Return what becomes of a broker's answers to a Fetch that begins now; `node_id` None: of an unknown one."""
        ...

    def exchanges(self, tier: "Tier", search: TimestampSearch, generation: "LogStartGeneration") -> MakeExchanges:
        """Return what makes exchanges beside those that there always are."""
        ...


class BrokersOwnIt:
    """What brokers say stands."""

    local_earliest: int = OffsetTimestamp.EARLIEST_LOCAL
    tells_all_aborts = False
    is_alone = False
    left_to = "left to the brokers"

    def with_log_start(self, partition: TopicIdPartition, frontier: "Frontier") -> "Frontier":
        return frontier

    def saw(self, partition: TopicIdPartition, frontier: "Frontier") -> "Frontier":
        return frontier

    def epoch_starts(self, partition: TopicIdPartition) -> None:
        return None

    def can_broker_read(self, offset: int, local_log_start_offset: int) -> bool:
        return True

    def judge(self, part: "TierPart", lineages: "Lineages") -> "Steps[Instead | bool]":
        return (yield from lineages.agree(part.partition, part.frontier, part.asked))

    def finder(self, catalog: Catalog, local_start: int, *, is_caught_up: bool) -> SegmentFinder:
        return SegmentFinder(catalog, local_start)

    def tail(self, tail: "CatalogTail") -> "CatalogTail":
        return tail

    def missing(self) -> None:
        return None

    def edits(self, tier: "Tier", node_id: int | None) -> Edits:
        return _NO_EDITS

    def exchanges(self, tier: "Tier", search: TimestampSearch, generation: "LogStartGeneration") -> MakeExchanges:
        return lambda _timeout_s: {}


BROKERS_OWN_IT = BrokersOwnIt()
