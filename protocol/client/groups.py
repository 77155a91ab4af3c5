"""A consumer group as who is no member of it sees it: offsets kept for it, and which partitions its members have.
Conversations, one attempt each.

- FindCoordinator names the broker that keeps the group; OffsetCommit goes there, with generation -1 and no member, as
  `kafka-consumer-groups.sh --reset-offsets` sends it. The coordinator takes such a commit of a group without members
  only (GroupInUseError), of both protocols of groups, so that no consumer's place is written over.
- To commit needs Read on the group and Read on each topic, to fetch Describe on both. A group that there is not is made
  by its first commit, and has no offsets before.
- OffsetCommit and OffsetFetch go by topic names (versions up to 9).
- Offsets stay for `offsets.retention.minutes` after the last commit.
- DescribeGroups needs Describe on the group. A member's assignment is the group protocol's own bytes
  (ConsumerProtocolAssignment).
"""

import random
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from protocol.client.cluster_view import ClusterView
from protocol.client.errors import (
    GroupAuthorizationError,
    GroupInUseError,
    TopicAuthorizationError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefusedError,
)
from protocol.client.leaders import AskMetadata, AskNode, Steps, code_name
from protocol.client.messages import Api, Question
from protocol.client.offset_questions import Partition
from protocol.client.settings import ClientSettings
from protocol.wire.errors import PASSING_CODES, ErrorCode

OFFSET_COMMIT = Api(8, "offset_commit", 5, 9)
OFFSET_FETCH = Api(9, "offset_fetch", 5, 9)
FIND_COORDINATOR = Api(10, "find_coordinator", 1, 6)
DESCRIBE_GROUPS = Api(15, "describe_groups", 3, 5)
"""Rights begin at 3, and 6 does not tell of a group to come."""

_GROUP_KEY = 0
_NO_GENERATION = -1
_NO_EPOCH = -1
_NO_OFFSET = -1
LOG_START_GROUP = "tidegate.log-start"
"""Keeps the log starts of a tier of our own, by topic id (docs/standalone.md#log-starts)."""

COMMITTED_BY = "tidegate"
"""Kept beside an offset, to say where it is from."""

_GROUP_AUTHORIZATION_FAILED = 30
_SETTLED_STATES = frozenset({"Stable", "Empty", "Dead"})
_IN_USE_CODES = frozenset({22, 25, 27, 110, 113})
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH."""
_COORDINATOR_CODES = frozenset({14, 15, 16})
"""It is loading, not known just now, or another: COORDINATOR_LOAD_IN_PROGRESS, …_NOT_AVAILABLE, NOT_COORDINATOR."""


class GroupMember(NamedTuple):
    """A member as the coordinator describes it."""

    client_id: str
    partitions: frozenset[Partition]


class GroupOffset(NamedTuple):
    """One partition's offset, and the text that is kept beside it."""

    offset: int
    metadata: str = COMMITTED_BY


def texts_by_topic_id(kept: GroupOffset) -> dict[str, str]:
    """Return what is kept beside an offset for topics that share a name: "id text id text …", oldest first; of an id
    alone the offset is the text."""
    words = kept.metadata.split(" ")
    return dict(zip(words[::2], words[1::2], strict=False)) if len(words) > 1 else {words[0]: str(kept.offset)}


def commit_group_offsets(
    view: ClusterView,
    settings: ClientSettings,
    group: str,
    offsets: Mapping[Partition, GroupOffset],
    coordinator: int | None = None,
) -> Steps[None]:
    """Keep these offsets for the group.

    Args:
        coordinator: the broker that keeps the group; None: it is asked for.

    Raises:
        GroupInUseError: the group has members.
        GroupAuthorizationError, TopicAuthorizationError: Read is missing.
        UpstreamError: nobody answers, or the commit is refused for another reason.
    """
    node_id = (yield from find_coordinator(view, settings, group)) if coordinator is None else coordinator
    topics: dict[str, list[dict[str, object]]] = {}
    for (topic, partition), kept in sorted(offsets.items()):
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": kept.offset,
                "committed_leader_epoch": _NO_EPOCH,
                "committed_metadata": kept.metadata,
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


def fetch_group_offsets(
    view: ClusterView,
    settings: ClientSettings,
    group: str,
    partitions: Iterable[Partition],
    refused: dict[Partition, UpstreamRefusedError],
    coordinator: int | None = None,
) -> Steps[dict[Partition, GroupOffset]]:
    """Return what is kept for the group of these partitions; those of which nothing is are left out.

    Args:
        refused: is given the partitions of which the coordinator does not tell, and why
            (TopicAuthorizationError: Describe is missing).
        coordinator: the broker that keeps the group; None: it is asked for.

    Raises:
        GroupAuthorizationError: Describe is missing on the group.
        UpstreamError: nobody answers, or the whole question is refused for another reason.
    """
    node_id = (yield from find_coordinator(view, settings, group)) if coordinator is None else coordinator
    asked = set(partitions)
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(asked):
        numbers.setdefault(topic, []).append(partition)
    topics = [{"name": topic, "partition_indexes": indexes} for topic, indexes in numbers.items()]
    # From version 8 on several groups are asked for in one request.
    values = {"group_id": group, "topics": topics, "groups": [{"group_id": group, "topics": topics}]}
    body = yield from _ask(node_id, Question(OFFSET_FETCH, values))
    name = view.name_of(node_id)
    found = getattr(body, "groups", (body,))
    if len(found) != 1:
        raise UpstreamProtocolError(f"{name}: the OffsetFetch response is of {len(found)} groups")
    what = f"{name}: OffsetFetch for group {group}"
    if code := int(found[0].error_code):
        raise _refusal(what, settings, group, None, code, right="Describe")
    answered = {
        (topic.name, int(entry.partition_index)): entry for topic in found[0].topics for entry in topic.partitions
    }
    if answered.keys() != asked:
        raise UpstreamProtocolError(f"{name}: the OffsetFetch response is of other partitions than were asked for")
    offsets: dict[Partition, GroupOffset] = {}
    for partition_key, entry in answered.items():
        if code := int(entry.error_code):
            refused[partition_key] = _refusal(what, settings, group, partition_key[0], code, right="Describe")
        elif int(entry.committed_offset) != _NO_OFFSET:
            offsets[partition_key] = GroupOffset(int(entry.committed_offset), entry.metadata or "")
    return offsets


def group_members(
    view: ClusterView, settings: ClientSettings, group: str, coordinator: int | None = None
) -> Steps[list[GroupMember] | None]:
    """The group's members, with the partitions that each has; None while these are being dealt out.

    Args:
        coordinator: the broker that keeps the group; None: it is asked for.

    Raises:
        GroupAuthorizationError: Describe is missing on the group.
        UpstreamError: nobody answers, or the question is refused for another reason.
    """
    node_id = (yield from find_coordinator(view, settings, group)) if coordinator is None else coordinator
    body = yield from _ask(
        node_id, Question(DESCRIBE_GROUPS, {"groups": [group], "include_authorized_operations": False})
    )
    name = view.name_of(node_id)
    if len(body.groups) != 1:
        raise UpstreamProtocolError(f"{name}: the DescribeGroups response is of {len(body.groups)} groups")
    [described] = body.groups
    if code := int(described.error_code):
        raise _refusal(f"{name}: DescribeGroups for {group}", settings, group, None, code, right="Describe")
    if described.group_state not in _SETTLED_STATES:
        return None
    try:
        return [
            GroupMember(member.client_id, frozenset(_assignment(member.member_assignment)))
            for member in described.members
        ]
    except (struct.error, UnicodeDecodeError) as error:
        raise UpstreamProtocolError(f"{name}: an assignment in group {group} cannot be read: {error}") from error


def _assignment(data: bytes) -> Iterator[Partition]:
    """ConsumerProtocolAssignment: a version, then topics with their partitions; what follows is the assignor's own."""
    if not data:
        return
    _, count = struct.unpack_from(">hi", data)
    at = 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, at)
        topic = struct.unpack_from(f">{size}s", data, at + 2)[0].decode()
        (partitions,) = struct.unpack_from(">i", data, at + 2 + size)
        at += 6 + size
        for number in struct.unpack_from(f">{partitions}i", data, at):
            yield topic, number
        at += 4 * partitions


def find_coordinator(view: ClusterView, settings: ClientSettings, group: str) -> Steps[int]:
    """The broker that keeps the group.

    Raises:
        GroupAuthorizationError: Describe is missing on the group.
        UpstreamError: nobody answers, or there is none just now (retriable).
    """
    yield AskMetadata([])  # of no topic: who there is now
    # If a broker just failed, another one may know better.
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


def _refusal(
    what: str, settings: ClientSettings, group: str, topic: str | None, code: int, *, right: str = "Read"
) -> UpstreamRefusedError:
    if code == _GROUP_AUTHORIZATION_FAILED:
        said = f"{what} is denied to {settings.principal}: ACL {right} on Group {group} is missing"
        return GroupAuthorizationError(said, code)
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        said = f"{what} is denied to {settings.principal}: ACL {right} on Topic {topic} is missing"
        return TopicAuthorizationError(said, code)
    if code in _IN_USE_CODES:
        return GroupInUseError(f"{what} is refused: the group has members, whose offsets these would replace", code)
    return UpstreamRefusedError(
        f"{what} failed with {code_name(code)}", code, code in PASSING_CODES | _COORDINATOR_CODES
    )
