"""The tier is ours (mode standalone): brokers know nothing of it, and only what they have not deleted yet is theirs to
read (docs/protocol.md#standalone)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import structlog
import trio

from metrics.meters import TierMeter
from protocol.fetch.messages import diverging_epoch_tags
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey
from proxy.fetch.authorities import LogStartGeneration
from proxy.fetch.frontiers import Frontier
from proxy.fetch.lineages import Lineages
from proxy.fetch.plan import Instead, TierPart
from proxy.fetch.tier import CatalogTail, Tier
from proxy.offsets.timestamp_lookup import TimestampLookup
from proxy.tier_owner import MakeExchanges
from standalone.serving.answer_edits import OwnEdits
from standalone.serving.delete_records import DeleteRecordsService
from standalone.serving.holes import Holes, OwnSegments
from standalone.serving.leader_epochs import LeaderEpochsService
from standalone.serving.log_starts import OwnTierTail, TierLogStarts
from standalone.serving.own_list_offsets import OwnListOffsetsService
from standalone.serving.tier_offsets import TierOffsets
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition
from storage.reading.timestamp_search import TimestampSearch
from storage.steps import Steps, waited

_log = structlog.get_logger(__name__)


class WeOwnIt:
    """Implements `proxy.tier_owner.TierOwner`. Owned by the trio thread.

    Args:
        segment_s_max: how long records may take to come into the tier, in seconds (standalone.serving.holes).
    """

    local_earliest: int = OffsetTimestamp.EARLIEST
    """EARLIEST_LOCAL takes Kafka 3.6, which a tier of our own does without."""
    tells_all_aborts = True
    is_alone = True
    left_to = "put off"

    def __init__(
        self, catalog: Catalog, log_starts: TierLogStarts, meter: TierMeter, *, segment_s_max: float = 0.0
    ) -> None:
        self.log_starts = log_starts
        self.held_back: set[TopicIdPartition] = set()
        """Partitions whose last stable offset is where the broker's log starts, although there is more. A transaction
        is open that begins there, or began in what the broker has deleted."""
        self._catalog = catalog
        self._meter = meter
        self._holes = Holes(self._on_hole, segment_s_max)

    def with_log_start(self, partition: TopicIdPartition, frontier: Frontier) -> Frontier:
        """A DeleteRecords or retention moves the tier's start without a question to the broker."""
        tier_start = self.log_starts.get(partition)
        start = frontier.local_log_start_offset
        if tier_start is not None:
            start = min(tier_start, start)
        return frontier if start == frontier.log_start_offset else replace(frontier, log_start_offset=start)

    def saw(self, partition: TopicIdPartition, frontier: Frontier) -> Frontier:
        """The log start in a broker's answer is where its own log begins."""
        told, last_stable = frontier.log_start_offset, frontier.last_stable_offset
        is_held_back = last_stable <= told and last_stable < frontier.high_watermark
        (self.held_back.add if is_held_back else self.held_back.discard)(partition)
        local_start = max(frontier.local_log_start_offset, told)
        return self.with_log_start(partition, replace(frontier, local_log_start_offset=local_start))

    def epoch_starts(self, partition: TopicIdPartition) -> Mapping[int, int]:
        """By the tier's segments."""
        return self._catalog.epoch_starts(partition.topic_id, partition.partition)

    def can_broker_read(self, offset: int, local_log_start_offset: int) -> bool:
        """From where its log begins."""
        return offset >= local_log_start_offset

    def judge(self, part: TierPart, lineages: Lineages) -> Steps[Instead | bool]:
        """Below the broker's log the tier tells where the client's log parts from the leader's, as the broker would."""
        if self.can_broker_read(part.asked.fetch_offset, part.frontier.local_log_start_offset):
            return (yield from lineages.agree(part.partition, part.frontier, part.asked))
        return (yield from _parted(part, lineages)) or True

    def finder(self, catalog: Catalog, local_start: int, *, is_caught_up: bool) -> OwnSegments:
        """One that steps over holes."""
        return OwnSegments(catalog, self._holes, local_start, is_caught_up=is_caught_up)

    def tail(self, tail: CatalogTail) -> OwnTierTail:
        """A partition is not ready either before it is known where its log starts."""
        return OwnTierTail(tail, self.log_starts)

    def missing(self) -> str | None:
        """Why not all log starts are known."""
        return self.log_starts.missing()

    def edits(self, tier: Tier, node_id: int | None) -> OwnEdits:
        """See `standalone.serving.answer_edits`."""
        return OwnEdits(tier, self.log_starts, node_id, trio.current_time())

    def exchanges(self, tier: Tier, search: TimestampSearch, generation: LogStartGeneration) -> MakeExchanges:
        """Requests that move the borders of the tier, or are answered with them."""
        offsets = TierOffsets(tier, TimestampLookup(tier, search), self.log_starts, self._holes)
        return lambda timeout_s: {
            ApiKey.LIST_OFFSETS: OwnListOffsetsService(offsets, timeout_s=timeout_s).handle,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: LeaderEpochsService(offsets).handle,
            ApiKey.DELETE_RECORDS: DeleteRecordsService(offsets, generation).handle,
        }

    def _on_hole(self, partition: TopicIdPartition, start: int, end: int) -> None:
        self._meter.on_hole()
        _log.warning("tier_hole_stepped_over", partition=str(partition), from_offset=start, to_offset=end)


def _parted(part: TierPart, lineages: Lineages) -> Steps[Instead | None]:
    """Return how the client hears that the log that it has read has parted from the leader's: the highest epoch that
    they share and its end, or OFFSET_OUT_OF_RANGE where no epoch is so high. None: it has not parted.

    Same rule as Partition.readRecords: the logs part if the leader's epoch is lower than the client's, or ends below
    what it asks for.
    """
    epoch, offset = part.asked.last_fetched_epoch, part.asked.fetch_offset
    lineage = yield from lineages.in_steps(part.partition, part.frontier.leader_epoch)
    kept = lineage.told(epoch, part.frontier.log_start_offset)
    if lineage.knows([epoch]) and kept[0] == epoch and kept[1] >= offset:
        return None
    # Nobody is sent back by what was heard before: no segment may have the epoch, and that of the leader grows.
    told = yield from waited(partial(lineages.epoch_end, part.partition, epoch))
    if told.end_offset < 0:
        return Instead(ErrorCode.OFFSET_OUT_OF_RANGE)
    shared = told.leader_epoch, told.end_offset
    if shared[0] == epoch < lineage.leader_epoch and shared[1] <= part.frontier.local_log_start_offset:
        shared = kept  # the broker has forgotten it
    return None if shared[0] == epoch and shared[1] >= offset else Instead(tags=diverging_epoch_tags(*shared))
