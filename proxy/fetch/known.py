"""What is known of a partition: frontier, good probes, lineage and aborted tail. One part of this file each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import trio

from protocol.client.errors import (
    UpstreamConnectionError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnsupportedError,
)
from protocol.client.messages import EpochEndOffset, OffsetAnswer, Partition
from protocol.fetch.messages import FetchPartition, PartitionAnswer
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import ErrorCode
from proxy.tier_owner import BROKERS_OWN_IT, TierOwner
from proxy.upstream.cluster import Cluster, FrontierClient, leader_id
from proxy.upstream.gathered import Gathered
from storage.bounded_map import BoundedMap
from storage.metadata.catalog import Catalog
from storage.metadata.partition_catalog import LeaderEpochLineage
from storage.model import TopicIdPartition
from storage.tasks import TaskNursery

# The frontier: the offsets of a partition as last seen, broker by broker (ARCHITECTURE.md#vocabulary,
# docs/protocol.md#l1).
#
# Offsets below the local log start are the tier's. A broker says where that is only to ListOffsets −4, on
# Tidegate's own connection, where it is asked for the log start too; the high watermark is taken from probe answers as
# they pass, and so is a log start.
#
# Rule 1. A frontier belongs to one broker: followers hold other local logs than their leader.
# Rule 2. Questions to one broker are gathered (proxy.upstream.gathered).
# Rule 3. A question goes on when those who asked for it have left; failures are counted, logged once a spell,
#         and leave what was known.
# Rule 4. Where the log starts is for the tier's owner to say (`proxy.tier_owner`), as it is at the moment of asking.


FRONTIERS_MAX = 200_000
"""Partitions times brokers that are remembered, least recently used first out: 200 bytes each."""

QUESTIONS_MAX = 250
"""Partitions in one request. For frontiers: three questions each, which take some 4 ms to encode together. For
lineages: few have more than a handful of epochs."""

LARGE_BATCH_BYTES = 1024 * 1024
"""A probe that brings more is worth a question before the next."""

LARGE_PARTITIONS_MAX = 10_000
"""Partitions with such batches that are remembered; a full table is dropped whole."""

LEARN_WAIT_S_MAX = 1.0
"""How long a Fetch waits for a question of our own before it goes on without the answer."""

UNSUPPORTED_AGE_S_MAX = 60.0
"""How long a broker that cannot answer is left alone; it may come back upgraded."""

UNKNOWN_OFFSET = -1

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Frontier:
    """What one broker last said of one partition; −1 where it has not said yet. `learned_at_s` is trio's clock."""

    local_log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    learned_at_s: float
    log_start_offset: int = UNKNOWN_OFFSET
    high_watermark: int = UNKNOWN_OFFSET
    last_stable_offset: int = UNKNOWN_OFFSET

    @property
    def probe_offset(self) -> int:
        """Return where a probe neither reads the tier nor finds much: the high watermark, or the log's end, as last
        told (docs/protocol.md#l1)."""
        return max(self.high_watermark, self.log_end_offset, self.local_log_start_offset)


class Frontiers:
    """Frontiers by (broker, partition). Owned by the trio thread.

    Args:
        nursery: the application's; questions live in it.
        age_s_max: `expert.frontier.max.age.ms`; may be set again.
        owner: the tier's.
    """

    def __init__(
        self, client: FrontierClient, nursery: TaskNursery, *, age_s_max: float, owner: TierOwner = BROKERS_OWN_IT
    ) -> None:
        self.client = client
        self._nursery = nursery
        self.age_s_max = age_s_max
        self.owner = owner
        self.with_large_batches: BoundedMap[TopicIdPartition, None] = BoundedMap(LARGE_PARTITIONS_MAX)
        """Partitions of which a probe brought more than LARGE_BATCH_BYTES: before the next one their log end is asked
        for, so that it finds nothing."""
        self._frontiers: BoundedMap[tuple[int, TopicIdPartition], Frontier] = BoundedMap(FRONTIERS_MAX)
        self._askers: dict[int, _Asker] = {}

    def get(self, node_id: int, partition: TopicIdPartition) -> Frontier | None:
        """The frontier as last seen, of whatever age."""
        key = (node_id, partition)
        frontier = self._frontiers.get(key)
        if frontier is not None:
            frontier = self._frontiers[key] = self.owner.with_log_start(partition, frontier)
        return frontier

    def is_fresh(self, frontier: Frontier, now_s: float) -> bool:
        """Return whether it is young enough to decide by, by trio's clock."""
        return now_s - frontier.learned_at_s <= self.age_s_max

    def forget(self, node_id: int, partition: TopicIdPartition) -> None:
        """Something said that it is wrong: learn it again before the next use."""
        self._frontiers.pop((node_id, partition), None)

    def saw_batch(self, partition: TopicIdPartition, size_bytes: int) -> None:
        """A probe brought so much, for nothing."""
        if size_bytes > LARGE_BATCH_BYTES:
            self.with_large_batches[partition] = None

    def saw(self, node_id: int, partition: TopicIdPartition, planned_by: Frontier, answer: PartitionAnswer) -> Frontier:
        """A probe's answer passed. Return the frontier by it.

        Args:
            planned_by: has a leader epoch that the broker is in at least; stands for one that was forgotten since, and
                stays forgotten.
        """
        known = self._frontiers.get((node_id, partition))
        before = known or planned_by
        seen = replace(
            before,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            leader_epoch=max(before.leader_epoch, planned_by.leader_epoch),
        )
        seen = self.owner.saw(partition, seen)
        if known is not None:
            self._frontiers[node_id, partition] = seen
        return seen

    async def refresh(self, node_id: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Ask the broker now and wait for its answer; afterwards `get` has what there is.

        Cancellation: the question goes on.
        """
        event = self.refresh_soon(node_id, partitions)
        await event.wait()

    def refresh_soon(self, node_id: int, partitions: Iterable[TopicIdPartition]) -> trio.Event:
        """Ask the broker; the event is set when the answer has been taken in."""
        asker = self._askers.get(node_id)
        if asker is None:
            asker = self._askers[node_id] = _Asker(node_id, self, self._nursery)
        return asker.add(partitions)

    async def ask(self, node_id: int, partitions: Sequence[TopicIdPartition]) -> None:
        """One request's worth of questions.

        Raises:
            UpstreamError: no answer.
        """
        local_earliest = self.owner.local_earliest
        timestamps = dict.fromkeys((local_earliest, OffsetTimestamp.LATEST, OffsetTimestamp.EARLIEST))
        queries = [
            (partition.topic, partition.partition, timestamp) for partition in partitions for timestamp in timestamps
        ]
        answers = await self.client.list_offsets(node_id, queries)
        now = trio.current_time()
        for partition in partitions:
            local_start = answers[partition.topic, partition.partition, local_earliest]
            end = answers[partition.topic, partition.partition, OffsetTimestamp.LATEST]
            start = answers[partition.topic, partition.partition, OffsetTimestamp.EARLIEST]
            self._take(node_id, partition, start, local_start, end, now)

    def _take(
        self,
        node_id: int,
        partition: TopicIdPartition,
        start: OffsetAnswer,
        local_start: OffsetAnswer,
        end: OffsetAnswer,
        now: float,
    ) -> None:
        key = (node_id, partition)
        error_code = local_start.error_code or end.error_code or start.error_code
        if error_code:
            self._frontiers.pop(key, None)
            _log.debug("frontier_refused", node=node_id, partition=str(partition), error_code=error_code)
            return
        known = self._frontiers.get(key)
        if known is None or end.leader_epoch > known.leader_epoch:
            # A new leader epoch may have cut the log: a high watermark of the old one is worth nothing.
            self._frontiers[key] = Frontier(local_start.offset, end.offset, end.leader_epoch, now, start.offset)
        else:
            self._frontiers[key] = replace(
                known,
                local_log_start_offset=local_start.offset,
                log_end_offset=end.offset,
                log_start_offset=start.offset,
                learned_at_s=now,
            )


class _Asker:
    """The questions to one broker (rule 2)."""

    def __init__(self, node_id: int, frontiers: Frontiers, nursery: TaskNursery) -> None:
        self._node_id = node_id
        self._frontiers = frontiers
        self._questions = Gathered(nursery, self._ask, name=f"frontiers of broker {node_id}")
        self._failing = False
        self._unsupported_until_s = 0.0

    def add(self, partitions: Iterable[TopicIdPartition]) -> trio.Event:
        is_answering = trio.current_time() >= self._unsupported_until_s
        return self._questions.add(partitions if is_answering else ()).done

    async def _ask(self, partitions: Sequence[TopicIdPartition]) -> Mapping[TopicIdPartition, None]:
        try:
            # The names of a topic created again under its old name are distinguished by the probe, which goes by id.
            for at in range(0, len(partitions), QUESTIONS_MAX):
                await self._frontiers.ask(self._node_id, partitions[at : at + QUESTIONS_MAX])
        except UpstreamUnsupportedError as error:
            self._unsupported_until_s = trio.current_time() + UNSUPPORTED_AGE_S_MAX
            if not self._failing:
                _log.warning("frontier_unsupported", node=self._node_id, reason=f"{error}; all reads are relayed to it")
            self._failing = True
        except UpstreamError as error:
            if not self._failing:
                _log.warning("frontier_unknown", node=self._node_id, partitions=len(partitions), reason=str(error))
            self._failing = True
        except Exception:
            # A fault of ours in one question must end neither the application nor the questions after it.
            _log.exception("frontier_fault", node=self._node_id, partitions=len(partitions))
            self._failing = True
        else:
            self._failing = False
        return {}


# Aborted tails: transactions that begin below a local log start and are aborted at or beyond it.
#
# The tier's transaction indexes do not tell of them (storage.reading.aborted_transactions), the broker does: in the
# list of aborted transactions of a READ_COMMITTED fetch at that very offset. It gives the list only with records.
#
# Rule 1. A tail is known from an answer with records only, for the offset is below the last stable offset then: every
#         transaction that began below it has ended, and its marker is in that broker's index.
# Rule 2. With nothing in the local log (its start is the high watermark and the last stable offset) the tail is empty:
#         were a marker to come yet, the last stable offset would be lower.
# Rule 3. Any other answer leaves it unknown: an open transaction that begins right there hides the markers behind it.
# Rule 4. For the same reason a tail does not change as the last stable offset rises; it is kept until that falls (the
#         log was cut), another local log start or leader epoch shows, or the broker refuses a question.


AbortedTail = Sequence[tuple[int, int]]
"""(Producer id, first offset)."""

TAILS_MAX = 20_000
"""Partitions times brokers that are remembered, least recently used first out: 500 bytes each."""

TAIL_ENTRIES_MAX = 1000
"""A longer tail is used and not kept: it takes as many producers with a transaction open at one offset."""


@dataclass(frozen=True, slots=True)
class _Known:
    local_log_start_offset: int
    leader_epoch: int
    last_stable_offset: int
    tail: AbortedTail


class AbortedTails:
    """Tails by (broker, partition), each at one local log start. Owned by the trio thread."""

    def __init__(self) -> None:
        self._tails: BoundedMap[tuple[int, TopicIdPartition], _Known] = BoundedMap(TAILS_MAX)

    def __len__(self) -> int:
        return len(self._tails)

    def get(
        self, node_id: int, partition: TopicIdPartition, local_log_start_offset: int, leader_epoch: int
    ) -> AbortedTail | None:
        """The tail at that offset, if it is known."""
        known = self._tails.use((node_id, partition))
        if known is None or (known.local_log_start_offset, known.leader_epoch) != (
            local_log_start_offset,
            leader_epoch,
        ):
            return None
        return known.tail

    def learn(
        self,
        node_id: int,
        partition: TopicIdPartition,
        local_log_start_offset: int,
        leader_epoch: int,
        answer: PartitionAnswer | None,
    ) -> AbortedTail | None:
        """Take the broker's answer to a READ_COMMITTED fetch at that offset; what it says, or None."""
        tail = None if answer is None else _tail_of(answer, local_log_start_offset)
        self.forget(node_id, partition)
        if answer is not None and tail is not None and len(tail) <= TAIL_ENTRIES_MAX:
            self._tails[node_id, partition] = _Known(
                local_log_start_offset, leader_epoch, answer.last_stable_offset, tail
            )
        return tail

    def saw(self, node_id: int, partition: TopicIdPartition, last_stable_offset: int) -> None:
        """An answer passed with the partition's last stable offset."""
        known = self._tails.get((node_id, partition))
        if known is not None and last_stable_offset < known.last_stable_offset:
            self.forget(node_id, partition)

    def forget(self, node_id: int, partition: TopicIdPartition) -> None:
        """Something said that it is out of date."""
        self._tails.pop((node_id, partition), None)


def _tail_of(answer: PartitionAnswer, local_log_start_offset: int) -> AbortedTail | None:
    if answer.error_code or answer.preferred_read_replica >= 0:
        return None
    if local_log_start_offset == answer.high_watermark == answer.last_stable_offset:
        return ()
    aborted = answer.aborted_transactions
    has_records = answer.records_bytes or answer.dropped_bytes
    if not has_records or aborted is None or answer.last_stable_offset <= local_log_start_offset:
        return None
    return tuple(entry for entry in aborted if entry[1] < local_log_start_offset)


# Good probes: what the broker has vouched for on this connection, and for how long it may be taken as said.
#
# docs/protocol.md#l1: no tier byte leaves without a good probe. A probe is good for one topic id, partition, isolation
# level and current leader epoch, as one authenticated client, for `authority.max.age.ms`. Any error on the partition,
# another sign-in on the connection, or a DeleteRecords or DeleteTopics on any connection ends it.
#
# What outlives a good probe is the right to have reads of its partition started beside the next one: by topic id and
# partition, whatever the request's version. A client that asks by name has it for the id that the probe was asked with;
# if the name is another topic's by now, that one's id has yet to be vouched for. Errors on the partition and another
# sign-in take the right away; age and moved log starts do not.


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


@dataclass(frozen=True, slots=True)
class AuthorityKey:
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


# Leader-epoch lineages by partition, built from the leader's own answers (storage.metadata.partition_catalog).
#
# Rule 1. A lineage is bound to the leader epoch under which it was built; a newer one has it built again
#         (docs/protocol.md#l2).
# Rule 2. So has an epoch that only appeared in the catalog afterwards, and `forget`.
# Rule 3. Questions to one leader are gathered (proxy.upstream.gathered), and so are topics whose leader is looked for.
#         A question goes on when those who asked have left, and its answer is kept, unless it was forgotten meanwhile.


LINEAGES_MAX = 100_000
"""Partitions remembered, least recently used first out: about 500 bytes each."""

_Question = tuple[TopicIdPartition, int]
"""A partition, and the leader epoch that its lineage is for."""


class Lineages:
    """Lineages of the partitions that are read. Owned by the trio thread.

    Args:
        nursery: the application's; questions live in it.
        owner: the tier's.
    """

    def __init__(
        self,
        client: FrontierClient,
        cluster: Cluster,
        catalog: Catalog,
        nursery: TaskNursery,
        owner: TierOwner = BROKERS_OWN_IT,
    ) -> None:
        self._owner = owner
        self._client = client
        self._cluster = cluster
        self._catalog = catalog
        self._nursery = nursery
        self._lineages: BoundedMap[TopicIdPartition, LeaderEpochLineage] = BoundedMap(LINEAGES_MAX)
        self._questions: dict[int, Gathered[_Question, LeaderEpochLineage | UpstreamRefusedError]] = {}
        self._under_way: list[set[TopicIdPartition]] = []
        """For each request: partitions that were not forgotten since."""

    def known(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage | None:
        """The lineage that `get` would give without a question."""
        known = self._lineages.use(partition)
        if known is None or known.leader_epoch < leader_epoch:
            return None
        if not known.knows(self._catalog.epochs(partition.topic_id, partition.partition)):
            return None
        return known

    async def get(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage:
        """The lineage, valid for this leader epoch or a later one.

        Raises:
            UpstreamError: the leader is not known or does not answer.
        """
        known = self.known(partition, leader_epoch)
        if known is not None:
            return known
        try:
            return await self._ask_leader(partition, leader_epoch)
        except (UpstreamConnectionError, UpstreamRefusedError) as error:
            # A leader that cannot be reached may have gone, and another one taken its place.
            if isinstance(error, UpstreamRefusedError) and error.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
        await self._cluster.learn_names([partition.topic])
        return await self._ask_leader(partition, leader_epoch)

    async def agree(self, partition: TopicIdPartition, frontier: Frontier, asked: FetchPartition) -> bool:
        """Return whether a client that read up to an offset in its last fetched epoch read what the leader has.

        Raises:
            UpstreamError: the lineage cannot be learned.
        """
        lineage = await self.get(partition, frontier.leader_epoch)
        end = lineage.end_offset(asked.last_fetched_epoch)
        return end is not None and end >= asked.fetch_offset

    async def learn(self, wanted: Iterable[tuple[TopicIdPartition, int]]) -> None:
        """Ask together what `get` would ask for. Failures are kept by nobody: `get` meets them again."""

        async def learn_one(partition: TopicIdPartition, leader_epoch: int) -> None:
            try:
                await self.get(partition, leader_epoch)
            except UpstreamError as error:
                _log.debug("lineage_not_learned", partition=str(partition), reason=str(error))

        async with trio.open_nursery() as asking:
            for partition, leader_epoch in wanted:
                if self.known(partition, leader_epoch) is None:
                    asking.start_soon(learn_one, partition, leader_epoch)

    def forget(self, partition: TopicIdPartition) -> None:
        """Something said that it is out of date."""
        self._lineages.pop(partition, None)
        for partitions in self._under_way:
            partitions.discard(partition)

    async def epoch_end(self, partition: TopicIdPartition, epoch: int) -> EpochEndOffset:
        """Return what the leader says now of an epoch that the catalog may not have; -1 in both if that is yet to come.

        Raises:
            UpstreamError: the leader is not known, does not answer, or refuses.
        """
        named = (partition.topic, partition.partition)
        answers = await self._client.epoch_end_offsets(await leader_id(self._cluster, partition), {named: [epoch]})
        answer = answers[named][epoch]
        if answer.error_code:
            said = f"{partition}: leader epoch {epoch} is not told, error code {answer.error_code}"
            raise UpstreamRefusedError(said, answer.error_code)
        return answer

    async def _ask_leader(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage:
        answer = await self._questions_to(await leader_id(self._cluster, partition)).get((partition, leader_epoch))
        if isinstance(answer, UpstreamRefusedError):
            raise answer.with_traceback(None)
        return answer

    def _questions_to(self, node_id: int) -> Gathered[_Question, LeaderEpochLineage | UpstreamRefusedError]:
        questions = self._questions.get(node_id)
        if questions is None:

            async def ask(asked: Sequence[_Question]) -> dict[_Question, LeaderEpochLineage | UpstreamRefusedError]:
                answers: dict[_Question, LeaderEpochLineage | UpstreamRefusedError] = {}
                for at in range(0, len(asked), QUESTIONS_MAX):
                    answers |= await self._ask_broker(node_id, asked[at : at + QUESTIONS_MAX])
                return answers

            questions = self._questions[node_id] = Gathered(self._nursery, ask, name=f"lineages of broker {node_id}")
        return questions

    async def _ask_broker(
        self, node_id: int, asked: Sequence[_Question]
    ) -> dict[_Question, LeaderEpochLineage | UpstreamRefusedError]:
        epochs_of = {partition: self._catalog.epochs(partition.topic_id, partition.partition) for partition, _ in asked}
        # Two topics may have had one name: what each is asked about is kept apart, the question is one.
        epochs_by_name: dict[Partition, dict[int, None]] = {}
        for partition, epochs in epochs_of.items():
            named = (partition.topic, partition.partition)
            epochs_by_name.setdefault(named, {}).update(dict.fromkeys(epochs))
        valid = set(epochs_of)
        self._under_way.append(valid)
        try:
            ends = await self._client.epoch_end_offsets(
                node_id, {named: list(epochs) for named, epochs in epochs_by_name.items()}
            )
        finally:
            self._under_way = [partitions for partitions in self._under_way if partitions is not valid]
        answers: dict[_Question, LeaderEpochLineage | UpstreamRefusedError] = {}
        for partition, leader_epoch in asked:
            found = ends[partition.topic, partition.partition]
            told = {epoch: found[epoch] for epoch in epochs_of[partition]}
            lineage = _lineage(partition, leader_epoch, told, self._owner.epoch_starts(partition))
            answers[partition, leader_epoch] = lineage
            if isinstance(lineage, LeaderEpochLineage) and partition in valid:
                self._keep(partition, lineage)
        return answers

    def _keep(self, partition: TopicIdPartition, lineage: LeaderEpochLineage) -> None:
        known = self._lineages.get(partition)
        if known is None or known.leader_epoch <= lineage.leader_epoch:
            self._lineages[partition] = lineage


def _lineage(
    partition: TopicIdPartition,
    leader_epoch: int,
    answers: Mapping[int, EpochEndOffset],
    tier_starts: Mapping[int, int] | None,
) -> LeaderEpochLineage | UpstreamRefusedError:
    for epoch, answer in answers.items():
        if answer.error_code:
            return UpstreamRefusedError(
                f"{partition}: leader epoch {epoch} is not told, error code {answer.error_code}", answer.error_code
            )
    ends = {epoch: (answer.leader_epoch, answer.end_offset) for epoch, answer in answers.items()}
    return LeaderEpochLineage(leader_epoch, ends, tier_starts)
