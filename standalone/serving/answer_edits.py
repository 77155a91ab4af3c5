"""What clients hear of partitions whose tier is ours, where the broker speaks of its own log only
(docs/protocol.md#standalone).

- OFFSET_OUT_OF_RANGE at or above the tier's log start says that the broker has just deleted what was believed to be
  local. The client gets a retriable error instead, and what was known of the broker's log is forgotten: the next
  request finds the offset in the tier.
- The broker's log start is not the partition's: that is the tier's.

The same for answers that are decoded (`AnswerEdits.answer`), and for those that stream by
(`protocol.fetch.walker.PartitionEditor`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from protocol.fetch.messages import FetchPartition, FetchRequest, PartitionAnswer, PartitionKey, key_of
from protocol.fetch.sessions import FetchSession
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import Relay
from proxy.fetch.fallback import COME_AGAIN
from proxy.fetch.tier import Tier
from proxy.tier_owner import Edits
from standalone.serving.log_starts import TierLogStarts
from storage.model import TopicIdPartition


def _nothing() -> None:
    pass


class AnswerEdits:
    """Edits one answer of one broker; implements PartitionEditor.

    Args:
        asked_of: what was asked of a partition; None: not known, so that no OFFSET_OUT_OF_RANGE can be believed.
        on_stale: is called when an offset was not where it was believed to be.
    """

    __slots__ = ("_asked_of", "_began_s", "_log_starts", "_node_id", "_on_stale", "_tier", "_topic", "_topic_id")

    def __init__(
        self,
        edits: "OwnEdits",
        asked_of: Callable[[PartitionKey], FetchPartition | None],
        on_stale: Callable[[], None] = _nothing,
    ) -> None:
        self._tier, self._log_starts, self._node_id = edits.tier, edits.log_starts, edits.node_id
        self._began_s = edits.began_s
        self._asked_of = asked_of
        self._on_stale = on_stale
        self._topic: str | None = None
        self._topic_id: bytes | None = None

    def answer(self, answer: PartitionAnswer) -> None:
        """Edit an answer in place."""
        self.begin_topic(answer.topic if answer.topic_id is None else answer.topic_id)
        edited = self.edited(answer.partition, answer.error_code, answer.log_start_offset)
        answer.error_code, answer.log_start_offset = edited

    def answers(self, answers: Sequence[PartitionAnswer]) -> None:
        """Edit these answers in place."""
        for answer in answers:
            self.answer(answer)

    def begin_topic(self, topic: bytes | str | None) -> bool:
        """The partitions that follow are of this topic; whether all of them are to be edited. In others only those with
        OFFSET_OUT_OF_RANGE are."""
        self._topic, self._topic_id = None, None
        if isinstance(topic, bytes):
            self._topic_id = topic
        elif topic is not None:
            self._topic, self._topic_id = topic, self._tier.topic_id(topic)
        return topic is not None and self._tier.knows(topic)

    def edited(self, partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
        """Error code and log start offset as the client is to hear them."""
        is_out_of_range = error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        if error_code and not is_out_of_range:
            return error_code, log_start_offset
        found = None if self._topic_id is None else self._tier.partition(self._topic_id, partition)
        start = None if found is None else self._log_starts.get(found)
        if not is_out_of_range:
            is_lower = start is not None and start < log_start_offset
            return error_code, start if is_lower and start is not None else log_start_offset
        if found is None or start is None:
            return COME_AGAIN if self._may_be_in_tier(partition) else error_code, log_start_offset
        return self._judged(found, start, error_code), log_start_offset

    def _judged(self, partition: TopicIdPartition, start: int, error_code: int) -> int:
        """An OFFSET_OUT_OF_RANGE of a partition whose tier starts there."""
        key = (self._topic, None if self._topic is not None else self._topic_id, partition.partition)
        asked = self._asked_of(key)
        if asked is not None and (asked.fetch_offset < start or self._is_beyond_end(partition, asked)):
            return error_code
        if asked is not None and 0 <= asked.current_leader_epoch < asked.last_fetched_epoch:
            return error_code  # the broker leads in the current one, or would have said so
        if self._node_id is not None:
            self._tier.forget(self._node_id, partition)
        self._on_stale()
        return COME_AGAIN

    def _may_be_in_tier(self, partition: int) -> bool:
        """Return whether nobody can say yet what the tier has of it: the metadata is not read, or the name's id not
        known."""
        if self._topic_id is not None:
            return self._tier.is_loading(self._topic_id, partition)
        return self._topic is not None and (self._tier.knows(self._topic) or not self._tier.is_loaded())

    def _is_beyond_end(self, partition: TopicIdPartition, asked: FetchPartition) -> bool:
        """Return whether it lies above the log's end, which must be a recent one: else the log may have grown past it.
        Or was read in an epoch that nobody has led in yet, which a broker calls out of range, too."""
        frontiers = self._tier.frontiers
        frontier = None if self._node_id is None else frontiers.get(self._node_id, partition)
        if frontier is None or not frontiers.is_fresh(frontier, trio.current_time()):
            return False
        if asked.last_fetched_epoch > frontier.leader_epoch and frontier.learned_at_s >= self._began_s:
            return True
        return asked.fetch_offset > max(frontier.log_end_offset, frontier.high_watermark)


@dataclass(frozen=True, slots=True)
class OwnEdits(Edits):
    """`node_id`: the broker; None where that is not known. `began_s`: when the request began, by trio's clock."""

    tier: Tier
    log_starts: TierLogStarts
    node_id: int | None
    began_s: float

    def relay(self, request: FetchRequest) -> Relay:
        """With an editor."""
        return Relay(editor=self.of_request(request))

    def of_request(self, request: FetchRequest, on_stale: Callable[[], None] = _nothing) -> AnswerEdits:
        """For the answer to all that a request names."""
        by_key: dict[PartitionKey, FetchPartition] = {}

        def asked_of(key: PartitionKey) -> FetchPartition | None:
            if not by_key:
                by_key.update((key_of(asked), asked) for asked in request.partitions)
            return by_key.get(key)

        return AnswerEdits(self, asked_of, on_stale)

    def of_session(self, session: FetchSession) -> AnswerEdits:
        """For the answer to a request of a relayed session, which may tell of any partition of it."""
        return AnswerEdits(self, session.asked_of, session.doubt)

    def of_answers(
        self, request: FetchRequest, on_stale: Callable[[], None] = _nothing
    ) -> Callable[[Sequence[PartitionAnswer]], None]:
        """The same for decoded answers."""
        return self.of_request(request, on_stale).answers
