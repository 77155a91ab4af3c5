"""Which of upstream's topics are copied, what the tier keeps of them, and which topics of the tier are no more.

Rule 1. Topics are those that `copy.topics` names or that one of its expressions matches, as upstream has them now. An
        expression never means a topic of Kafka's own, nor the metadata topic.
Rule 2. Refused by name, and logged once: a compacted topic (KIP-405 has none), one with `remote.storage.enable=true`
        (the brokers copy it themselves), one whose configuration we may not see. The others go on.
Rule 3. A topic that the tier has and that is not copied any more is held: what deletes from it goes on. But not where
        its tier may be the brokers' by now: with `remote.storage.enable=true`, or if that is not known.
Rule 4. A topic of the catalog is gone when upstream, asked by name, says that there is none, or another one; and when
        then each broker that any broker names says so itself, since one that was cut off from its controller knows old
        metadata. They are asked by topic id, of which a missing right hides nothing; before Kafka 3.1, which has no
        such question, by name. One that does not name itself has no metadata yet, or is fenced: it says nothing. What
        one of them has, or does not tell, is kept and shown.
Rule 5. If all topics of the tier seem gone, be it one or many, the brokers may be others than those that the tier was
        copied from. They are those if the tier's metadata topic is in their cluster too. If it is elsewhere, nothing is
        taken for gone, unless this process has seen one of the topics in that cluster before.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from protocol.client.cluster_view import TopicMetadata, metadata_question, metadata_question_by_id
from protocol.client.errors import UpstreamError, UpstreamUnsupportedError
from protocol.client.leaders import code_name
from protocol.client.messages import DESCRIBE_CONFIGS, Question, uuid_bytes
from protocol.client.offset_questions import Partition
from protocol.wire.errors import ErrorCode
from proxy.upstream.cluster import TOPICS_MAX, Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from proxy.upstream.partition_questions import ask_any
from standalone.copier.config import CopyConfig, TopicNames
from standalone.copier.seams import Retention
from standalone.serving.broker_log import ROLE
from storage.model import TopicIdPartition, Uuid

_TOPIC_RESOURCE: Final = 2
_CONFIG_KEYS: Final = ("cleanup.policy", "remote.storage.enable", "retention.ms", "retention.bytes")
_NO_TOPIC_ID: Final = bytes(16)
NOT_NAMED: Final = "copy.topics does not name it"
NAMED_MAX: Final = 5
"""Topics, in one sentence."""

_log = structlog.get_logger(__name__)

Configs = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CopyTopic:
    """A topic that is meant. `refused`: why it is not copied, a sentence."""

    name: str
    topic_id: bytes
    partition_count: int
    configs: Configs
    refused: str | None = None

    @property
    def held(self) -> str | None:
        """Why nothing is deleted from its tier if it is not copied, a sentence; None: that goes on (rule 3)."""
        if not self.configs:
            return f"its configuration is not known: ACL DescribeConfigs on Topic {self.name} may be missing"
        if self.configs.get("remote.storage.enable") == "true":
            return "it has remote.storage.enable=true: the brokers delete from its tier"
        return None


@dataclass(slots=True)
class CopyTopics:
    """What was seen last; `look` looks again. Owned by the trio thread.

    `tier_cluster_id`: of the cluster that has the tier's metadata topic. `refused`: why each topic of these is not
    copied. `kept`: why topics that seem gone stay in the tier, a sentence. `left`: topics of the tier that upstream
    has, and that are not copied: each with what keeps everything of it, a sentence; None: nothing does (rule 3).
    """

    cluster: Cluster
    settings: CopyConfig
    in_tier: Callable[[], Iterable[TopicIdPartition]]
    tier_cluster_id: Callable[[], str | None]
    topics: Mapping[str, CopyTopic] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    _told: str | None = None
    kept: str | None = None
    left: Mapping[str, str | None] = field(default_factory=dict)
    _seen_in: str | None = None
    """The cluster in which a topic of the tier was seen last."""

    async def look(self) -> Sequence[TopicIdPartition]:
        """Ask upstream for everything; the partitions of the tier whose topics are gone (rules 4 and 5).

        Raises:
            UpstreamError: no answer; what was seen last stands.
        """
        assert self.settings.topics is not None, "checked before anything is copied"
        in_tier = list(self.in_tier())
        found = await find_topics(self.cluster, self.settings.topics, {each.topic for each in in_tier})
        refused = {name: topic.refused for name, topic in found.items() if topic.refused is not None}
        self._tell_refused({name: reason for name, reason in refused.items() if reason != NOT_NAMED})
        self.topics = found
        living = {
            each.topic for each in in_tier if each.topic in refused and found[each.topic].topic_id == each.topic_id
        }
        self._tell_left({name: found[name].held for name in sorted(living)})
        return await self._find_gone(in_tier)

    def copied(self) -> dict[str, Uuid]:
        """The topics to copy, with their ids."""
        return {topic.name: Uuid(topic.topic_id) for topic in self.topics.values() if topic.refused is None}

    def held(self) -> dict[str, Uuid]:
        """The topics of which the tier is deleted from, though they are not copied (rule 3), with their ids."""
        return {name: Uuid(self.topics[name].topic_id) for name, reason in self.left.items() if reason is None}

    def is_copied(self, topic: str) -> bool:
        """Return whether what is new in the topic goes to the tier."""
        known = self.topics.get(topic)
        return known is not None and known.refused is None

    def partitions(self, topics: Iterable[str]) -> set[Partition]:
        """Those of the topics."""
        return {(name, number) for name in topics for number in range(self.topics[name].partition_count)}

    def retention_of(self, topic: str) -> Retention:
        """Return what the tier keeps of the topic; everything of one that is not known, or that is compacted by now: a
        broker does not go by its retention then."""
        if self.settings.retention_from_topic:
            return self.upstream_retention(topic)
        return Retention(retention_ms=self.settings.retention_ms, retention_bytes=self.settings.retention_bytes)

    def upstream_retention(self, topic: str) -> Retention:
        """Return what upstream keeps of the topic."""
        known = self.topics.get(topic)
        is_by_age = known is not None and "delete" in known.configs.get("cleanup.policy", "delete")
        configs = known.configs if known is not None and is_by_age else {}
        return Retention(
            retention_ms=int(configs.get("retention.ms", "-1")),
            retention_bytes=int(configs.get("retention.bytes", "-1")),
        )

    def _tell_refused(self, refused: Mapping[str, str]) -> None:
        for name, reason in refused.items():
            if self.refused.get(name) != reason:
                _log.warning("copy_topic_refused", topic=name, reason=reason)
        self.refused = refused

    async def confirm_gone(self, partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
        """Whose topics there are not, as all brokers say that any of them names, each asked itself and now (rule 4).

        Asked before the first object of one goes.
        """
        gone, asked, waiting = list(partitions), set[int](), {*self.cluster.brokers}
        while gone and waiting:
            node_id = waiting.pop()
            asked.add(node_id)
            try:
                absent, named = await self._told_by(node_id, gone)
            except UpstreamError as error:
                self._keep(gone, f"{self.cluster.name_of(node_id)} does not say so: {error}")
                return []
            if node_id not in named:
                self._keep(gone, f"{self.cluster.name_of(node_id)} does not name itself among the brokers")
                return []
            waiting |= named - asked
            if present := [each for each in gone if each.topic_id not in absent]:
                self._keep(present, f"{self.cluster.name_of(node_id)} has them")
            gone = [each for each in gone if each.topic_id in absent]
        return gone if asked else []

    async def _find_gone(self, in_tier: Sequence[TopicIdPartition]) -> list[TopicIdPartition]:
        self._told, self.kept = self.kept, None
        here = self.cluster.cluster_id
        known = {name: topic.topic_id for name, topic in self.topics.items()}
        missed = [each for each in in_tier if known.get(each.topic) not in (each.topic_id, _NO_TOPIC_ID)]
        if any(known.get(each.topic) == each.topic_id for each in in_tier):
            self._seen_in = here
        elif missed and len(missed) == len(in_tier) and here not in (self.tier_cluster_id(), self._seen_in):
            self._keep(missed, "they are all that the tier has, so these brokers may be others than it was copied from")
            return []
        return await self.confirm_gone(sorted(missed, key=lambda each: (each.topic, each.topic_id, each.partition)))

    def _tell_left(self, left: Mapping[str, str | None]) -> None:
        for name, reason in left.items():
            if name not in self.left or self.left[name] != reason:
                _log.warning("copy_topic_left", topic=name, reason=reason or "what deletes from its tier goes on")
        self.left = left

    def _keep(self, partitions: Iterable[TopicIdPartition], reason: str) -> None:
        names = sorted({each.topic for each in partitions})
        shown = ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if (more := len(names) - NAMED_MAX) > 0 else "")
        kept = f"topics {shown} seem deleted, and stay in the tier: {reason}"
        if kept != self._told:
            _log.error("copy_topics_kept", topics=names[:NAMED_MAX], reason=reason)
        self.kept = self._told = kept

    async def _told_by(self, node_id: int, gone: Sequence[TopicIdPartition]) -> tuple[set[bytes], set[int]]:
        """Which topic ids this very broker does not have, and which brokers it names; nothing of it is remembered."""
        absent, named = set[bytes](), set[int]()
        topics = sorted({(each.topic, each.topic_id) for each in gone})
        for at in range(0, len(topics), TOPICS_MAX):
            some = topics[at : at + TOPICS_MAX]
            try:
                response = await self.cluster.ask(node_id, ROLE, metadata_question_by_id([each for _, each in some]))
                absent |= {
                    uuid_bytes(e.topic_id) for e in response.topics if e.error_code == ErrorCode.UNKNOWN_TOPIC_ID
                }
            except UpstreamUnsupportedError:
                response = await self.cluster.ask(node_id, ROLE, metadata_question([name for name, _ in some]))
                known = {entry.name: (int(entry.error_code), uuid_bytes(entry.topic_id)) for entry in response.topics}
                absent |= {topic_id for name, topic_id in some if _is_absent(*known[name], topic_id)}
            named |= {int(broker.node_id) for broker in response.brokers}
        return absent, named


async def find_topics(
    cluster: Cluster, wanted: TopicNames, others: Collection[str] = frozenset()
) -> dict[str, CopyTopic]:
    """The topics that are meant and that there are, by name in order, each with its verdict (rules 1 and 2).

    Args:
        others: are described as well, and not copied.

    Raises:
        UpstreamError: no answer.
    """
    names = set(wanted.names)
    if wanted.patterns:
        names |= await _matching(cluster, wanted)
    described = [topic for topic in await cluster.learn_topics(sorted(names | {*others})) if topic.name]
    configs = await topic_configs(cluster, [topic.name or "" for topic in described if topic.error_code == 0])
    found = {}
    for topic in sorted(described, key=lambda each: each.name or ""):
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue  # it may be made yet
        configs_of = configs.get(name, "")
        refused = _refusal(topic, configs_of) if name in names else NOT_NAMED
        known = {} if isinstance(configs_of, str) else configs_of
        found[name] = CopyTopic(name, topic.topic_id, len(topic.partitions), known, refused)
    return found


async def topic_configs(cluster: Cluster, names: Sequence[str]) -> dict[str, Configs | str]:
    """Return what decides about copying in each topic's configuration; a sentence in its place where upstream does not
    tell.

    Raises:
        UpstreamError: no answer.
    """
    found: dict[str, Configs | str] = {}
    for at in range(0, len(names), TOPICS_MAX):
        asked = [
            {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": list(_CONFIG_KEYS)}
            for name in names[at : at + TOPICS_MAX]
        ]
        question: Question[Any] = Question(DESCRIBE_CONFIGS, {"resources": asked})
        response = await ask_any(cluster, ROLE, question)
        for result in response.results:
            code = int(result.error_code)
            if code == 0:
                found[result.resource_name] = {entry.name: entry.value or "" for entry in result.configs}
            elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                found[result.resource_name] = f"ACL DescribeConfigs on Topic {result.resource_name} is missing"
            else:
                found[result.resource_name] = f"its configuration is not told: {code_name(code)}"
    return found


async def _matching(cluster: Cluster, wanted: TopicNames) -> set[str]:
    response = await ask_any(cluster, ROLE, metadata_question(None))
    return {
        topic.name
        for topic in response.topics
        if topic.name and not topic.is_internal and topic.name != METADATA_TOPIC and wanted.holds(topic.name)
    }


def _refusal(topic: TopicMetadata, configs: Configs | str) -> str | None:
    if topic.name == METADATA_TOPIC:
        return "it is the tier's own metadata topic"
    if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"ACL Describe on Topic {topic.name} is missing"
    if topic.error_code:
        return f"Metadata says {code_name(topic.error_code)}"
    if topic.topic_id == _NO_TOPIC_ID:
        return "it has no topic id: Kafka 2.8 or later is needed"
    if isinstance(configs, str):
        return f"{configs}; whether it may be copied is not known"
    if "compact" in configs.get("cleanup.policy", ""):
        return f"it has cleanup.policy={configs['cleanup.policy']}: compacted topics cannot be in a tier"
    if configs.get("remote.storage.enable") == "true":
        return "it has remote.storage.enable=true: the brokers copy it themselves"
    return None


def is_missed(answer: TopicMetadata | None, partition: TopicIdPartition) -> bool:
    """Return whether what a broker answers by name says that the partition's topic is gone."""
    return answer is not None and _is_absent(answer.error_code, answer.topic_id, partition.topic_id)


def _is_absent(error_code: int, found_id: bytes, topic_id: bytes) -> bool:
    """Return whether an answer by name says that there is no such topic, or another one."""
    if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return True
    return error_code == 0 and found_id not in (topic_id, _NO_TOPIC_ID)
