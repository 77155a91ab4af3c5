"""Offsets that are kept for a consumer group by who is no member of it: a conversation, one attempt.

- FindCoordinator names the broker that keeps the group; OffsetCommit goes there, with generation -1 and no member, as
  `kafka-consumer-groups.sh --reset-offsets` sends it. The coordinator takes such a commit of a group without members
  only (GroupInUseError), of both protocols of groups, so that no consumer's place is written over.
- It needs Read on the group and Read on each topic. A group that there is not is made by its first commit.
- OffsetCommit goes by topic names (versions up to 9).
- Offsets stay for `offsets.retention.minutes` after the last commit.
"""

import random
from collections.abc import Mapping
from typing import Any

from protocol.client.connection import ClientSettings
from protocol.client.errors import (
    GroupAuthorizationError,
    GroupInUseError,
    TopicAuthorizationError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefusedError,
)
from protocol.client.leaders import AskMetadata, AskNode, ClusterView, Steps, code_name
from protocol.client.messages import Api, Partition, Question
from protocol.wire.errors import PASSING_CODES, ErrorCode

OFFSET_COMMIT = Api(8, "offset_commit", 5, 9)
FIND_COORDINATOR = Api(10, "find_coordinator", 1, 6)

_GROUP_KEY = 0
_NO_GENERATION = -1
_NO_EPOCH = -1
_COMMITTED_BY = "tidegate"
"""Kept beside each offset, for who asks where they are from."""

_GROUP_AUTHORIZATION_FAILED = 30
_IN_USE_CODES = frozenset({22, 25, 27, 110, 113})
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH."""
_COORDINATOR_CODES = frozenset({14, 15, 16})
"""It is loading, not known just now, or another: COORDINATOR_LOAD_IN_PROGRESS, …_NOT_AVAILABLE, NOT_COORDINATOR."""


def commit_group_offsets(
    view: ClusterView, settings: ClientSettings, group: str, offsets: Mapping[Partition, int]
) -> Steps[None]:
    """Keep these offsets for the group.

    Raises:
        GroupInUseError: the group has members.
        GroupAuthorizationError, TopicAuthorizationError: Read is missing.
        UpstreamError: nobody answers, or the commit is refused for another reason.
    """
    yield AskMetadata([])  # of no topic: who there is now
    node_id = yield from _coordinator(view, settings, group)
    topics: dict[str, list[dict[str, object]]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": _NO_EPOCH,
                "committed_metadata": _COMMITTED_BY,
            }
        )
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": _NO_GENERATION,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    body = yield from _ask(node_id, Question(OFFSET_COMMIT, values))
    answered = {
        (topic.name, int(entry.partition_index)): int(entry.error_code)
        for topic in body.topics
        for entry in topic.partitions
    }
    name = view.name_of(node_id)
    if answered.keys() != offsets.keys():
        raise UpstreamProtocolError(f"{name}: the OffsetCommit response is of other partitions than were committed")
    for (topic, _), code in answered.items():
        if code:
            raise _refusal(f"{name}: OffsetCommit for group {group}", settings, group, topic, code)


def _coordinator(view: ClusterView, settings: ClientSettings, group: str) -> Steps[int]:
    # Of one that just failed another one may know better.
    asked = random.choice([*view.brokers])
    values = {"key": group, "key_type": _GROUP_KEY, "coordinator_keys": [group]}
    body = yield from _ask(asked, Question(FIND_COORDINATOR, values))
    # From version 4 on it is asked for several groups.
    found = getattr(body, "coordinators", (body,))
    if len(found) != 1:
        raise UpstreamProtocolError(f"{view.name_of(asked)}: the FindCoordinator response names {len(found)} brokers")
    if code := int(found[0].error_code):
        raise _refusal(f"{view.name_of(asked)}: FindCoordinator for group {group}", settings, group, None, code)
    return int(found[0].node_id)


def _ask(node_id: int, question: Question[Any]) -> Steps[Any]:
    (body,) = yield [AskNode(node_id, question)]
    if isinstance(body, UpstreamError):
        raise body
    return body


def _refusal(what: str, settings: ClientSettings, group: str, topic: str | None, code: int) -> UpstreamRefusedError:
    if code == _GROUP_AUTHORIZATION_FAILED:
        said = f"{what} is denied to {settings.principal}: ACL Read on Group {group} is missing"
        return GroupAuthorizationError(said, code)
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        said = f"{what} is denied to {settings.principal}: ACL Read on Topic {topic} is missing"
        return TopicAuthorizationError(said, code)
    if code in _IN_USE_CODES:
        return GroupInUseError(f"{what} is refused: the group has members, whose offsets these would replace", code)
    return UpstreamRefusedError(
        f"{what} failed with {code_name(code)}", code, code in PASSING_CODES | _COORDINATOR_CODES
    )
