"""The brokers of a copier's world (tests/support/copy_world.py), some of which were cut off from their controller.

    brokers = WorldBrokers(upstreams)
    brokers.cut_off(1, leads=True)      # tells the topics of this moment from now on, and answers as their leader
    brokers.cut_off(2, forgets=True)    # has just started: it knows none, and does not name itself
    brokers.heal()
    cluster = WorldCluster(brokers, node, step)     # what standalone.copy_topics asks

A broker that is cut off and leads nothing names the leaders of then: they are asked, and answer by name for the topic
that has the name now, and by id for none that is gone.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from protocol.client.cluster_view import METADATA_BY_ID, PartitionLeader, TopicMetadata
from protocol.client.errors import UpstreamConnectionError, UpstreamUnsupportedError
from protocol.client.messages import DESCRIBE_CONFIGS, Question, kio_uuid, uuid_bytes
from protocol.wire.errors import ErrorCode
from storage.errors import RetriableRemoteStorageError
from storage.model import TopicIdPartition, Uuid

if TYPE_CHECKING:
    from tests.support.copy_world import Upstream

NODES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class _View:
    """What a broker knows: ids by topic names, and the logs that it leads as it believes."""

    ids: Mapping[str, Uuid]
    logs: Mapping[TopicIdPartition, "Upstream"] = field(default_factory=dict)


class WorldBrokers:
    """All of them. `away`: those that answer nobody. `knows_ids`: whether topics can be asked for by their ids."""

    def __init__(self, upstreams: Mapping[TopicIdPartition, "Upstream"]) -> None:
        self._upstreams = upstreams
        self._cut_off: dict[int, _View] = {}
        self.away: set[int] = set()
        self.knows_ids = True

    def cut_off(self, node_id: int, *, leads: bool = False, forgets: bool = False) -> None:
        """Unless it is the last that is not: else nobody would know. What it led others lead from now on."""
        if len({*self._cut_off, node_id}) == len(NODES):
            return
        led = {each: log for each, log in self._upstreams.items() if leads and not log.is_gone}
        self._cut_off[node_id] = _View({} if forgets else self._ids(), {each: log.copy() for each, log in led.items()})
        for log in led.values():
            log.elect()

    def heal(self) -> None:
        self._cut_off.clear()
        self.away.clear()

    def view(self, node_id: int) -> _View:
        return self._cut_off.get(node_id) or _View(self._ids())

    def log_of(self, node_id: int, partition: TopicIdPartition, *, by_id: bool) -> "Upstream | None":
        """Return what answers for a partition, by the Metadata of this broker; None: nobody does, and a topic without a
        log here is another one."""
        view = self.view(node_id)
        if view.ids.get(partition.topic) is None:
            raise RetriableRemoteStorageError(f"{partition.topic}: unknown topic")
        if view.ids[partition.topic] != partition.topic_id:
            return None
        if partition in view.logs:
            return view.logs[partition]
        found: Upstream | None = self._upstreams[partition]
        if found is not None and found.is_gone:
            found = next((log for each, log in self._upstreams.items() if _is_now(each, log, partition)), None)
        if found is None or (by_id and found.partition != partition):
            raise RetriableRemoteStorageError(f"{partition}: its leader has no such topic")
        return found

    def _ids(self) -> dict[str, Uuid]:
        return {each.topic: each.topic_id for each, log in self._upstreams.items() if not log.is_gone}


def _is_now(each: TopicIdPartition, log: "Upstream", partition: TopicIdPartition) -> bool:
    return not log.is_gone and (each.topic, each.partition) == (partition.topic, partition.partition)


class WorldCluster:
    """In place of proxy.upstream.cluster. `node_id`: whom Metadata is asked of by name."""

    cluster_id = "the world's"

    def __init__(self, brokers: WorldBrokers, node_id: int, step: Callable[[], Awaitable[None]]) -> None:
        self._brokers = brokers
        self._step = step
        self.node_id = node_id
        self.brokers = dict.fromkeys(NODES)

    def name_of(self, node_id: int) -> str:
        return f"broker {node_id}"

    async def learn_topics(self, names: Sequence[str]) -> list[TopicMetadata]:
        await self._reach(self.node_id)
        ids = self._brokers.view(self.node_id).ids
        return [_described(name, ids.get(name)) for name in names]

    async def ask(self, node_id: int, _role: str, question: Question[Any]) -> Any:
        await self._reach(node_id)
        values: dict[str, Any] = {**question.values}
        if question.api is DESCRIBE_CONFIGS:
            named = [each["resource_name"] for each in values["resources"]]
            configs = [SimpleNamespace(name="cleanup.policy", value="delete")]
            return SimpleNamespace(
                results=[SimpleNamespace(error_code=0, resource_name=name, configs=configs) for name in named]
            )
        if question.api is METADATA_BY_ID and not self._brokers.knows_ids:
            raise UpstreamUnsupportedError("Metadata by id")
        asked = [(each["name"], each["topic_id"]) for each in values["topics"]]
        ids = self._brokers.view(node_id).ids
        nodes = [SimpleNamespace(node_id=each) for each in NODES if ids or each != node_id]
        return SimpleNamespace(topics=[_entry(ids, name, topic_id) for name, topic_id in asked], brokers=nodes)

    async def _reach(self, node_id: int) -> None:
        await self._step()
        if node_id in self._brokers.away:
            raise UpstreamConnectionError(f"broker {node_id} is away")


def _described(name: str, topic_id: Uuid | None) -> TopicMetadata:
    if topic_id is None:
        return TopicMetadata(bytes(16), name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
    return TopicMetadata(topic_id, name, 0, {0: PartitionLeader(NODES[0], 0)})


def _entry(ids: Mapping[str, Uuid], name: str | None, topic_id: Any) -> Any:
    if name is None:
        is_known = uuid_bytes(topic_id) in ids.values()
        return SimpleNamespace(topic_id=topic_id, error_code=0 if is_known else ErrorCode.UNKNOWN_TOPIC_ID)
    if name not in ids:
        return SimpleNamespace(name=name, topic_id=None, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return SimpleNamespace(name=name, topic_id=kio_uuid(ids[name]), error_code=0)
