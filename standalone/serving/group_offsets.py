"""Offsets kept for one consumer group, and which partitions its members have, over the cluster's pooled connections
(protocol.client.groups).

Rule 1. The group's coordinator is asked for once and kept until it fails; a failure that may pass is met by asking for
        it again, once. Further retries are the caller's.
Rule 2. PARTITIONS_MAX partitions go in one request, one request after another.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from protocol.client.conversation import drive_async
from protocol.client.errors import UpstreamError, UpstreamRefusedError
from protocol.client.groups import (
    GroupMember,
    GroupOffset,
    commit_group_offsets,
    fetch_group_offsets,
    find_coordinator,
    group_members,
)
from protocol.client.leaders import AskMetadata, Step, Steps
from protocol.client.offset_questions import Partition
from proxy.upstream.cluster import Cluster

ROLE = "group-offsets"

PARTITIONS_MAX = 500
"""In one request: its answer keeps the event loop for some 4 ms."""

T = TypeVar("T")


class GroupOffsets:
    """Owned by the trio thread."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.group = group
        self._cluster = cluster
        self._coordinator: int | None = None

    async def fetch(
        self, partitions: Iterable[Partition], refused: dict[Partition, UpstreamRefusedError] | None = None
    ) -> dict[Partition, GroupOffset]:
        """Return what is kept of these partitions; those of which nothing is are left out.

        Args:
            refused: is given the partitions of which the coordinator does not tell, and why; None: the first of them is
                raised.

        Raises:
            UpstreamError: no answer, or a right is missing.
        """
        found: dict[Partition, GroupOffset] = {}
        not_told: dict[Partition, UpstreamRefusedError] = {} if refused is None else refused
        for some in _slices(partitions):
            found |= await self._run(self._fetching(some, not_told))
        if refused is None and not_told:
            raise next(iter(not_told.values()))
        return found

    async def commit(self, offsets: Mapping[Partition, GroupOffset]) -> None:
        """Keep these; the coordinator has them when this returns.

        Raises:
            GroupInUseError: the group has members.
            UpstreamError: no answer, or a right is missing; some of the offsets may be kept all the same.
        """
        for some in _slices(offsets):
            await self._run(self._committing({key: offsets[key] for key in some}))

    async def members(self) -> list[GroupMember] | None:
        """The group's members, with the partitions that each has; None while these are being dealt out.

        Raises:
            UpstreamError: no answer, or a right is missing.
        """
        return await self._run(partial(group_members, self._cluster, self._cluster.settings, self.group))

    def _fetching(
        self, some: list[Partition], refused: dict[Partition, UpstreamRefusedError]
    ) -> Callable[[int], Steps[dict[Partition, GroupOffset]]]:
        cluster = self._cluster
        return partial(fetch_group_offsets, cluster, cluster.settings, self.group, some, refused)

    def _committing(self, some: Mapping[Partition, GroupOffset]) -> Callable[[int], Steps[None]]:
        return partial(commit_group_offsets, self._cluster, self._cluster.settings, self.group, some)

    async def _run(self, attempt: Callable[[int], Steps[T]]) -> T:
        known, self._coordinator = self._coordinator, None
        if known is not None:
            try:
                result = await drive_async(attempt(known), self._answer)
            except UpstreamError as error:
                if not error.retriable:
                    raise
            else:
                self._coordinator = known
                return result
        found = await drive_async(find_coordinator(self._cluster, self._cluster.settings, self.group), self._answer)
        result = await drive_async(attempt(found), self._answer)
        self._coordinator = found
        return result

    async def _answer(self, step: Step) -> list[Any]:
        if isinstance(step, AskMetadata):
            # No topic's metadata: who there is now, which a question about no topic's name would not ask.
            await self._cluster.refresh()
            return []
        return await self._cluster.ask_all(ROLE, step)


def _slices(partitions: Iterable[Partition]) -> list[list[Partition]]:
    ordered = sorted(partitions)
    return [ordered[at : at + PARTITIONS_MAX] for at in range(0, len(ordered), PARTITIONS_MAX)]
