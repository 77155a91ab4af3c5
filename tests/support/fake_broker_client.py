"""A BrokerClient without a wire: partitions as the test sets them, and which questions came in which order.

client = FakeBrokerClient()
orders = client.add(named_partition(), end_offset=500)
orders.epoch_ends = {0: (0, 500)}
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.brokers.client import BrokerClient
from protocol.client.leaders import LeaderEpochAnswers, PartitionLeader, TopicMetadata
from protocol.client.messages import OffsetAnswer
from storage.model import TopicIdPartition, Uuid

NO_OFFSET = OffsetAnswer(0, -1, -1, -1)


@dataclass(slots=True)
class FakePartition:
    """What the leader says. `epoch_ends` are epoch asked → (epoch answered, end offset)."""

    partition: TopicIdPartition
    log_start_offset: int = 0
    end_offset: int = 0
    last_stable_offset: int | None = None
    leader_epoch: int = 0
    epoch_ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    """Offsets by the time asked for; for others there is none."""


class FakeBrokerClient(BrokerClient):
    """Answers from memory. `asked` are the questions, in order; `hooks` are called before the answer to one."""

    def __init__(self) -> None:
        # Not the parent's: it would open connections.
        self.partitions: dict[tuple[str, int], FakePartition] = {}
        self.asked: list[str] = []
        self.hooks: dict[str, Callable[[], object]] = {}

    def add(self, partition: TopicIdPartition, *, log_start_offset: int = 0, end_offset: int = 0) -> FakePartition:
        """One partition, with epoch 0 up to its end."""
        added = FakePartition(partition, log_start_offset, end_offset, epoch_ends={0: (0, end_offset)})
        self.partitions[partition.topic, partition.partition] = added
        return added

    def close(self) -> None:
        """Nothing is open."""

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicMetadata]:
        self._question("topics")
        found: dict[str, tuple[Uuid, list[int]]] = {}
        for (topic, number), said in self.partitions.items():
            if names is None or topic in names:
                found.setdefault(topic, (said.partition.topic_id, []))[1].append(number)
        return {
            name: TopicMetadata(topic_id, name, 0, dict.fromkeys(sorted(of), PartitionLeader(1, 0)))
            for name, (topic_id, of) in found.items()
        }

    def list_offsets(
        self, timestamps: Mapping[tuple[str, int], int], *, read_committed: bool = False
    ) -> Mapping[tuple[str, int], OffsetAnswer]:
        kinds = {-1: "latest", -2: "earliest"}
        self._question("+".join(sorted({kinds.get(timestamp, "time") for timestamp in timestamps.values()})))
        return {
            key: self._offset(self.partitions[key], timestamp, read_committed) for key, timestamp in timestamps.items()
        }

    def leader_epoch_ends(self, topic: str, partition: int, epochs: Sequence[int]) -> LeaderEpochAnswers:
        self._question("epochs")
        said = self.partitions[topic, partition]
        return LeaderEpochAnswers(said.leader_epoch, {epoch: said.epoch_ends.get(epoch, (-1, -1)) for epoch in epochs})

    def _question(self, name: str) -> None:
        self.asked.append(name)
        if name in self.hooks:
            self.hooks.pop(name)()

    def _offset(self, said: FakePartition, timestamp: int, read_committed: bool) -> OffsetAnswer:
        if timestamp == -2:
            return OffsetAnswer(0, said.log_start_offset, 0, -1)
        if timestamp == -1:
            stable = said.end_offset if said.last_stable_offset is None else said.last_stable_offset
            return OffsetAnswer(0, stable if read_committed else said.end_offset, 0, -1)
        return OffsetAnswer(0, said.times[timestamp], 0, timestamp) if timestamp in said.times else NO_OFFSET
