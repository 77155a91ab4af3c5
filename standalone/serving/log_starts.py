"""Where the tier's log of each partition starts, when the tier is our own (mode standalone).

T is the larger of the first offset of the tier's first FINISHED segment and what a DeleteRecords, or the copier's
retention, has committed for group `tidegate.log-start`. All processes that serve or write the tier share that group.

Rule 1. What is kept beside an offset is the topic's id. If topics share a name, each has its own
        (standalone.serving.topic_texts): one of which nothing is kept counts as absent.
Rule 2. An offset that is absent, or older than the first segment's, counts as the first segment's. Offsets of groups
        without members expire (`offsets.retention.minutes`), so each is committed again when a process first hears of
        it, when a day has passed, and when it is gone or lower than it was.
Rule 3. A log start that was committed never goes back (docs/decisions.md: what clients get does, when the tier gains
        older records than the broker has). Before a commit the coordinator is asked what it has, and the larger one
        stays. Two processes that commit for one partition within the same few milliseconds may still leave the lower of
        the two there; the one that knows the higher one sees it with its next question (rule 2).
Rule 4. A partition counts as one whose metadata is not read yet until the coordinator was asked about it: else
        deleted records would be served. While it answers nobody that ends after UNANSWERED_S_MAX: then what was heard
        last counts, and the first segment before that.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
import trio

from protocol.client.errors import UpstreamError, UpstreamRefusedError
from protocol.client.groups import LOG_START_GROUP as LOG_START_GROUP
from protocol.client.groups import GroupOffset
from protocol.client.offset_questions import Partition
from proxy.fetch.tier import CatalogTail
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.topic_texts import TopicTexts
from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition

POLL_S = 1.0
"""Between two questions: what another process deleted is heard of that much later."""

START_POLL_S = 0.1
"""Between two looks whether there is anything to ask about."""

UNANSWERED_S_MAX = 5.0
"""How long the coordinator is waited for with a partition that it was not asked about yet."""

POLL_SHARE_MAX = 0.1
"""At most this part of the time goes into questions: those of many partitions come less often."""

COMMIT_AGAIN_S = 24 * 60 * 60.0
"""Less than any `offsets.retention.minutes` that is in use; a shorter one is met by rule 2 too."""

_log = structlog.get_logger(__name__)


class CommittedLogStarts:
    """What the group has, by partitions with their topic ids (rules 1 and 3). Owned by the trio thread."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._texts = TopicTexts(offsets)
        self._committing = trio.Lock()

    async def fetch(
        self, partitions: Iterable[TopicIdPartition], refused: dict[Partition, UpstreamRefusedError] | None = None
    ) -> dict[TopicIdPartition, int]:
        """Return what is committed; partitions of which nothing is, or of another topic id, are left out.

        Args:
            refused: as `GroupOffsets.fetch`.

        Raises:
            UpstreamError: no answer, or a right is missing.
        """
        return {each: int(text) for each, text in (await self._texts.read(partitions, refused)).items()}

    async def raise_to(self, offsets: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        """Commit at least these; return what is committed then.

        Raises:
            UpstreamError: no answer, or a right is missing; some may be committed all the same.
        """
        raised: dict[TopicIdPartition, int] = {}

        def raise_one(partition: TopicIdPartition, known: str | None) -> GroupOffset:
            offset = raised[partition] = max(offsets[partition], int(known or 0))
            return GroupOffset(offset, str(offset))

        async with self._committing:
            await self._texts.change(offsets, raise_one)
        return raised


class CopierLogStarts:
    """Implements `standalone.copier.kept.KeptStore`: the same with the copier's errors."""

    def __init__(self, committed: CommittedLogStarts) -> None:
        self._committed = committed

    async def get(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, int]:
        """Return what was committed."""
        try:
            return await self._committed.fetch(partitions)
        except UpstreamError as error:
            raise as_storage_error("log starts", error) from error

    async def commit(self, values: Mapping[TopicIdPartition, int]) -> None:
        """Commit at least these."""
        try:
            await self._committed.raise_to(values)
        except UpstreamError as error:
            raise as_storage_error("log starts", error) from error


class TierLogStarts:
    """Owned by the trio thread."""

    def __init__(self, committed: CommittedLogStarts, catalog: Catalog) -> None:
        self.committed = committed
        self._catalog = catalog
        self._asked: frozenset[TopicIdPartition] = frozenset()
        """About which the coordinator was asked."""
        self._unanswered_since_s = math.inf
        self._is_given_up = False
        self._heard: dict[TopicIdPartition, int] = {}
        self._committed_at_s: dict[TopicIdPartition, float] = {}
        """When this process committed it last."""
        self._first_offsets: dict[TopicIdPartition, tuple[int, int | None]] = {}
        """By the catalog's generation: `get` is asked for every partition of every Fetch."""
        self._trouble: str | None = None
        self._refused: dict[str, str] = {}
        """By topic, why its log starts are not known."""

    def get(self, partition: TopicIdPartition) -> int | None:
        """T where the tier has segments of the partition; None where it has none."""
        first_offset = self._first_offset(partition)
        return None if first_offset is None else max(first_offset, self._heard.get(partition, first_offset))

    def is_known(self, partition: TopicIdPartition) -> bool:
        """Return whether `get` is what counts (rule 4). Where the tier has nothing, there is nothing to know."""
        if partition in self._asked or self._first_offset(partition) is None:
            return True
        waited_s = trio.current_time() - self._unanswered_since_s
        if waited_s < UNANSWERED_S_MAX:
            return False
        if not self._is_given_up:
            _log.warning("log_starts_not_waited_for", group=LOG_START_GROUP, waited_s=round(waited_s, 1))
            self._is_given_up = True
        return True

    def are_known(self) -> bool:
        """Return whether all of the catalog's are."""
        return all(map(self.is_known, self._catalog.partitions()))

    def missing(self) -> str | None:
        """Why not all of the catalog's are known; None: they are."""
        if self.are_known():
            return None
        said = f"the coordinator of {LOG_START_GROUP} has not said yet where logs start"
        return said if self._trouble is None else f"{said}: {self._trouble}"

    async def raise_all(self, offsets: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        """Raise the log starts to these, unless they are higher. Return the log starts, which are committed then.

        Raises:
            UpstreamError: not all could be committed; as far as this process knows they stay.
        """
        wanted = {partition: max(offset, self._heard.get(partition, offset)) for partition, offset in offsets.items()}
        raised = await self.committed.raise_to(wanted)
        self._take(raised, committed_at_s=trio.current_time())
        return {partition: max(offset, self.get(partition) or 0) for partition, offset in raised.items()}

    async def run(self, tell: Callable[[Sequence[str]], None] = lambda _: None) -> None:
        """Ask the coordinator again and again, for ever.

        Args:
            tell: hears after each question what an operator is to know.
        """
        while True:
            started_s = trio.current_time()
            await self.poll()
            tell(self.complaints())
            pause_s = POLL_S if self._asked or self._trouble else START_POLL_S
            await trio.sleep(max(pause_s, (trio.current_time() - started_s) * (1 / POLL_SHARE_MAX - 1)))

    async def poll(self) -> None:
        """Hear what is committed for all partitions of the catalog, and commit again what must be (rule 2)."""
        partitions = self._catalog.partitions()
        self._forget_all_but(partitions)
        refused: dict[Partition, UpstreamRefusedError] = {}
        self._unanswered_since_s = min(self._unanswered_since_s, trio.current_time())
        try:
            found = await self.committed.fetch(partitions, refused)
            self._note_refused(refused)
            self._take(found)
            self._asked, self._unanswered_since_s, self._is_given_up = frozenset(partitions), math.inf, False
            if due := self._due(found):
                self._take(await self.committed.raise_to(due), committed_at_s=trio.current_time())
        except UpstreamError as error:
            self._fails(str(error))
        except Exception as error:  # a fault of ours must end neither the application nor the questions after it
            _log.exception("log_starts_fault", partitions=len(partitions))
            self._trouble = f"{type(error).__name__}: {error}"
        else:
            if self._trouble is not None:
                _log.info("log_starts_known", partitions=len(partitions))
            self._trouble = None

    def complaints(self) -> list[str]:
        """Return what an operator is to know."""
        said = [
            f"log starts of topic {topic} are not known, records that were deleted may be served: {reason}"
            for topic, reason in self._refused.items()
        ]
        if self._trouble is not None:
            said.append(f"committed log starts are as they were heard last: {self._trouble}")
        return said

    def _first_offset(self, partition: TopicIdPartition) -> int | None:
        generation = self._catalog.generation(partition.topic_id, partition.partition)
        known = self._first_offsets.get(partition)
        if known is None or known[0] != generation:
            starts = self._catalog.epoch_starts(partition.topic_id, partition.partition)
            first_offset = min(starts.values(), default=None)
            if not generation:
                return first_offset
            known = self._first_offsets[partition] = (generation, first_offset)
        return known[1]

    def _take(self, offsets: Mapping[TopicIdPartition, int], *, committed_at_s: float | None = None) -> None:
        for partition, offset in offsets.items():
            self._heard[partition] = max(offset, self._heard.get(partition, offset))
            if committed_at_s is not None:
                self._committed_at_s[partition] = committed_at_s

    def _due(self, found: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        now_s = trio.current_time()
        due: dict[TopicIdPartition, int] = {}
        for partition, offset in self._heard.items():
            first_offset = self._first_offset(partition)
            if first_offset is None or offset <= first_offset:
                continue  # counts for nothing any more
            is_old = now_s - self._committed_at_s.get(partition, -math.inf) >= COMMIT_AGAIN_S
            if (is_old or found.get(partition, -1) < offset) and partition.topic not in self._refused:
                due[partition] = offset
        return due

    def _forget_all_but(self, partitions: Iterable[TopicIdPartition]) -> None:
        kept = set(partitions)
        for known in (self._heard, self._committed_at_s, self._first_offsets):
            for partition in known.keys() - kept:
                del known[partition]

    def _fails(self, reason: str) -> None:
        if self._trouble is None:
            _log.warning("log_starts_unknown", group=LOG_START_GROUP, reason=f"{reason}; what was heard last counts")
        self._trouble = reason

    def _note_refused(self, refused: Mapping[Partition, UpstreamRefusedError]) -> None:
        reasons = {topic: str(error) for (topic, _), error in refused.items()}
        for topic in reasons.keys() - self._refused.keys():
            _log.warning("log_starts_refused", topic=topic, reason=reasons[topic])
        self._refused = reasons


class OwnTierTail:
    """A partition is not ready either before it is known where its log starts."""

    def __init__(self, tail: CatalogTail, log_starts: TierLogStarts) -> None:
        self._tail = tail
        self._log_starts = log_starts

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Return whether it can be said what the tier has of the partition."""
        return self._tail.is_ready(partition) and self._log_starts.is_known(partition)

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """As the tail's."""
        await self._tail.catch_up(partition)


def as_storage_error(what: str, error: UpstreamError) -> RemoteStorageError:
    """The copier's error for one of a coordinator."""
    kind = RetriableRemoteStorageError if error.retriable else RemoteStorageError
    return kind(f"{what}: {error}")
