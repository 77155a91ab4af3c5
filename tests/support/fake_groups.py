"""A group at a broker of `tests.support.fake_kafka`: FindCoordinator, OffsetCommit, OffsetFetch, DescribeGroups.

    group = FakeGroup(kafka, node_id=1)
    group.offsets["orders", 0] = (500, "metadata")

Everything may change while a test runs; each of `codes` is the next answer's, for all that it names.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from protocol.client.groups import DESCRIBE_GROUPS, FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from protocol.client.messages import Values
from protocol.client.offset_questions import Partition
from tests.support.fake_kafka import FakeKafka


@dataclass
class FakeGroup:
    """Kept by broker `node_id`; the brokers that there are when it is made answer for it."""

    kafka: FakeKafka
    node_id: int = 1
    offsets: dict[Partition, tuple[int, str | None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """In order: "find", "commit", "fetch"."""
    fetched: list[list[Partition]] = field(default_factory=list)
    committed: list[dict[Partition, tuple[int, str | None]]] = field(default_factory=list)
    codes: list[ErrorCode] = field(default_factory=list)
    """For the next commits and fetches."""
    denied: set[str] = field(default_factory=set)
    """Topics that are not told of."""
    state: str = "Stable"
    assignments: list[bytes] = field(default_factory=list)
    """By member."""
    client_ids: dict[int, str] = field(default_factory=dict)
    """By the member's number."""
    hang_s: float = 0.0
    """Before a fetch is answered."""

    def __post_init__(self) -> None:
        for node_id, broker in self.kafka.brokers.items():
            apis = (FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_GROUPS)
            broker.versions |= {api.key: (api.version_min, api.version_max) for api in apis}
            broker.on(FIND_COORDINATOR, self.find)
            broker.on(OFFSET_COMMIT, partial(self.commit, node_id))
            broker.on(OFFSET_FETCH, partial(self.fetch, node_id))
            broker.on(DESCRIBE_GROUPS, partial(self.describe, node_id))

    def find(self, _request: Any) -> Values:
        self.asked.append("find")
        found = {"node_id": self.node_id, "host": "a", "port": 1, "error_code": ErrorCode.none, "error_message": ""}
        return {**found, "coordinators": [{"key": "a-group", **found}]}

    def commit(self, node_id: int, request: Any) -> Values:
        self.asked.append("commit")
        code = self._code(node_id)
        given = {
            (topic.name, int(each.partition_index)): (int(each.committed_offset), each.committed_metadata)
            for topic in request.topics
            for each in topic.partitions
        }
        if not code:
            self.committed.append(given)
            self.offsets |= given
        topics: dict[str, list[Values]] = {}
        for topic, partition in given:
            topics.setdefault(topic, []).append({"partition_index": partition, "error_code": code})
        return {"topics": [{"name": topic, "partitions": answers} for topic, answers in topics.items()]}

    async def fetch(self, node_id: int, request: Any) -> Values:
        self.asked.append("fetch")
        await trio.sleep(self.hang_s)
        code = self._code(node_id)
        (group,) = getattr(request, "groups", (request,))
        self.fetched.append([(topic.name, int(number)) for topic in group.topics for number in topic.partition_indexes])
        topics = [
            {"name": topic.name, "partitions": [self._kept(topic.name, number) for number in topic.partition_indexes]}
            for topic in group.topics
        ]
        body = {"topics": [] if code else topics, "error_code": code}
        return {**body, "groups": [{"group_id": group.group_id, **body}]}

    def describe(self, node_id: int, request: Any) -> Values:
        self.asked.append("describe")
        members = [
            {
                "member_id": f"m{number}",
                "client_id": self.client_ids.get(number, "c"),
                "client_host": "h",
                "member_metadata": b"",
                "member_assignment": each,
            }
            for number, each in enumerate(self.assignments)
        ]
        [group] = request.groups
        named = {"group_id": group, "group_state": self.state, "protocol_type": "consumer", "protocol_data": "x"}
        return {"groups": [{**named, "error_code": self._code(node_id), "members": members}]}

    def _kept(self, topic: str, number: int) -> Values:
        offset, metadata = self.offsets.get((topic, number), (-1, ""))
        code = ErrorCode.topic_authorization_failed if topic in self.denied else ErrorCode.none
        offset = -1 if code else offset
        return {"partition_index": number, "committed_offset": offset, "metadata": metadata, "error_code": code}

    def _code(self, node_id: int) -> ErrorCode:
        if node_id != self.node_id:
            return ErrorCode.not_coordinator
        return self.codes.pop(0) if self.codes else ErrorCode.none
