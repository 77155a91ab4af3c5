"""Which partitions this copier has: membership of the consumer group `copy.group.id` (docs/standalone.md).

A consumer of librdkafka's does what Kafka's group protocol asks for, in a thread of its own. It never fetches: every
partition is paused as soon as it is assigned; and it never commits offsets.

Rules:
- Partitions come with the group's generation, which is the fence of their records
  (standalone.copier.ledger), and with their topic's id. A topic that was deleted and made again has another id: its
  partitions are revoked and assigned once more, as the group itself may not even notice.
- Before partitions go back to the group `on_revoked` has returned, or LET_GO_S_MAX has passed: the fence protects them
  in any case. Those that were lost (the session expired) are reported at once, and nobody waits.
- Assignment is cooperative and sticky: who keeps a partition goes on with it, and with its older generation.
- Topics are subscribed to by name. Which names there are, and their ids, is for `subscribe`'s caller to say, since
  librdkafka's expressions are others than Python's, and not every topic may be copied.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition, libversion

from standalone.copier.librdkafka import LibrdkafkaLog, Properties
from storage.model import TopicIdPartition, Uuid

LET_GO_S_MAX: Final = 60.0
"""A copy that is under way may take so long. Far less than the five minutes after which the group gives a member up
that does not answer (`max.poll.interval.ms`)."""

SESSION_TIMEOUT_MS: Final = 45_000
"""Kafka's own default: after it a copier that died has lost its partitions."""

REFRESH_MS_MAX: Final = 300_000
"""librdkafka's own: so long it does not ask by itself which partitions a topic has."""

POLL_S: Final = 0.2

_METADATA_MAGIC: Final = b"CGMDv2:"
"""How librdkafka writes a consumer's group metadata: this, the generation as the machine writes an int32, names."""
_GENERATION_BYTES: Final = 4

_AUTHORIZATION: Final = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "ACL Read on Group {group} is missing",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ACL Read or Describe on a topic of copy.topics is missing",
}

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class MembershipError(Exception):
    """The group cannot be joined with this librdkafka, whatever is tried; the message says why."""


class Membership:
    """One member. `run` is for a thread of its own, which calls the others' functions; everything else may be called
    from any.

    Args:
        on_assigned: these partitions are ours from now on, in this generation.
        on_revoked: returns once nobody works on them, after LET_GO_S_MAX at most.
        on_lost: somebody else may have them already; returns at once.
        properties: librdkafka's, as `client_properties` makes them.
        refresh_ms: how soon the group hears of partitions that a topic has got since.
        session_timeout_ms: after which the group gives up a member that says nothing.
    """

    def __init__(
        self,
        properties: Properties,
        group: str,
        *,
        on_assigned: Callable[[Sequence[TopicIdPartition], int], None],
        on_revoked: Callable[[Sequence[TopicIdPartition]], None],
        on_lost: Callable[[Sequence[TopicIdPartition]], None],
        refresh_ms: int = REFRESH_MS_MAX,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self._properties: Properties = {
            **properties,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": session_timeout_ms // 15,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
            "allow.auto.create.topics": False,
            "log.connection.close": False,
            "topic.metadata.refresh.interval.ms": min(refresh_ms, REFRESH_MS_MAX),
        }
        self._group = group
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._stopping = threading.Event()
        self._wanted: Mapping[str, Uuid] = {}
        """Replaced as a whole, from any thread."""
        self._subscribed: frozenset[str] = frozenset()
        self._generations: dict[tuple[str, int], int] = {}
        """By the partitions that the group has assigned to us."""
        self._owned: dict[tuple[str, int], TopicIdPartition] = {}
        self.trouble: str | None = None
        """Why partitions may not be assigned as they should be, a sentence; None: nothing was heard."""

    def subscribe(self, topics: Mapping[str, Uuid]) -> None:
        """Take part for these topics, by the ids that they have now, and no other, from the next moment on."""
        self._wanted = dict(topics)

    def owned(self) -> list[TopicIdPartition]:
        """Return the partitions that were assigned to us."""
        return [*self._owned.copy().values()]

    def stop(self) -> None:
        """Make `run` give back all partitions, leave the group, and return."""
        self._stopping.set()

    def run(self) -> None:
        """Take part until `stop`.

        Raises:
            MembershipError: librdkafka does not tell the generation.
        """
        consumer = Consumer(self._properties, logger=LibrdkafkaLog())
        try:
            generation_of(consumer.consumer_group_metadata())  # before there is anything to lose
            while not self._stopping.is_set():
                self._follow_topics(consumer)
                message = consumer.poll(POLL_S)
                if message is not None:
                    self._heard(message)
                self._hand_on()
        finally:
            consumer.close()  # which calls _revoked

    def _follow_topics(self, consumer: Consumer) -> None:
        wanted = frozenset(self._wanted)
        if wanted == self._subscribed:
            return
        self._subscribed = wanted
        if wanted:
            consumer.subscribe(
                sorted(wanted), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost_them
            )
        else:
            consumer.unsubscribe()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        generation = generation_of(consumer.consumer_group_metadata())
        for each in partitions:
            self._generations[each.topic, each.partition] = generation
        self._note_trouble(None)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        owned = self._taken(partitions)
        if owned:
            self._on_revoked(owned)
        consumer.incremental_unassign(partitions)

    def _lost_them(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        owned = self._taken(partitions)
        _log.warning("copy_partitions_lost", group=self._group, partitions=len(partitions))
        if owned:
            self._on_lost(owned)
        consumer.incremental_unassign(partitions)

    def _taken(self, partitions: Iterable[TopicPartition]) -> list[TopicIdPartition]:
        """Those that were told of, which they are not any more."""
        keys = [(each.topic, each.partition) for each in partitions]
        for key in keys:
            self._generations.pop(key, None)
        return [self._owned.pop(key) for key in keys if key in self._owned]

    def _hand_on(self) -> None:
        """Tell of partitions that are new to us, or of another topic than before under the same name."""
        ids = self._wanted
        replaced = [key for key, known in self._owned.items() if ids.get(key[0], known.topic_id) != known.topic_id]
        if replaced:
            _log.warning("copy_topics_made_again", topics=sorted({topic for topic, _ in replaced}))
            self._on_revoked([self._owned.pop(key) for key in replaced])
        by_generation: dict[int, list[TopicIdPartition]] = {}
        for key, generation in self._generations.items():
            topic, number = key
            if key not in self._owned and topic in ids:
                self._owned[key] = TopicIdPartition(ids[topic], number, topic)
                by_generation.setdefault(generation, []).append(self._owned[key])
        for generation, partitions in sorted(by_generation.items()):
            self._on_assigned(partitions, generation)

    def _heard(self, message: Message) -> None:
        """Handle what is no record, since nothing is fetched: an error that the group, or a topic, has met with."""
        error = message.error()
        if error is None:
            return  # fetched between assignment and pause, which librdkafka does not do
        hint = _AUTHORIZATION.get(error.code(), "").format(group=self._group)
        self._note_trouble(f"{error.str()}{f': {hint}' if hint else ''}")

    def _note_trouble(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self.trouble:
            _log.warning("copy_group_trouble", group=self._group, reason=trouble)
        self.trouble = trouble


def generation_of(metadata: object) -> int:
    """The generation in a consumer's group metadata; -1 while it has joined no group.

    Raises:
        MembershipError: it is written in another way than librdkafka wrote it when this was made.
    """
    end = len(_METADATA_MAGIC) + _GENERATION_BYTES
    if not isinstance(metadata, bytes) or not metadata.startswith(_METADATA_MAGIC) or len(metadata) < end:
        raise MembershipError(
            f"librdkafka {libversion()[0]} does not tell the group's generation as we know it: install a release of "
            "confluent-kafka that this release of Tidegate was locked with"
        )
    return int.from_bytes(metadata[len(_METADATA_MAGIC) : end], sys.byteorder, signed=True)
