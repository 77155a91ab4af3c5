"""A text for each partition, kept beside a consumer group's offsets: by topic id, since topics may share a name.

A broker that is cut off may still know an older topic, and the tier may still have its segments. Who writes for one of
them leaves what is kept for others of the name as it is, as far as there is room: the oldest texts go first.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from protocol.client.errors import UpstreamRefusedError
from protocol.client.groups import GroupOffset, texts_by_topic_id
from protocol.client.offset_questions import Partition
from standalone.serving.group_offsets import GroupOffsets
from storage.model import TopicIdPartition, uuid_to_text

TEXT_CHARACTERS_MAX: Final = 4000
"""Beside one offset; brokers take 4096 (`offset.metadata.max.bytes`)."""


class TopicTexts:
    """Owned by the trio thread. Both methods raise UpstreamError: no answer, or a right is missing."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets

    async def read(
        self, partitions: Iterable[TopicIdPartition], refused: dict[Partition, UpstreamRefusedError] | None = None
    ) -> dict[TopicIdPartition, str]:
        """Return what is kept; partitions of which nothing is are left out. `refused`: as `GroupOffsets.fetch`."""
        wanted = [*partitions]
        found = await self._offsets.fetch({_named(each) for each in wanted}, refused)
        kept = {named: texts_by_topic_id(each) for named, each in found.items()}
        told = ((each, kept.get(_named(each), {}).get(uuid_to_text(each.topic_id))) for each in wanted)
        return {each: text for each, text in told if text is not None}

    async def change(
        self, partitions: Collection[TopicIdPartition], changed: Callable[[TopicIdPartition, str | None], GroupOffset]
    ) -> None:
        """Keep for each partition what `changed` makes of what is kept for it; some may be kept even if it fails."""
        found = await self._offsets.fetch({_named(each) for each in partitions})
        kept = {named: texts_by_topic_id(each) for named, each in found.items()}
        offsets: dict[Partition, GroupOffset] = {}
        for each in partitions:
            texts, own_id = kept.setdefault(_named(each), {}), uuid_to_text(each.topic_id)
            new = changed(each, texts.pop(own_id, None))
            texts[own_id] = new.metadata
            while len(texts) > 1 and len(_joined(texts)) > TEXT_CHARACTERS_MAX:
                del texts[next(iter(texts))]
            is_offset_alone = len(texts) == 1 and new.metadata == str(new.offset)
            offsets[_named(each)] = GroupOffset(new.offset, own_id if is_offset_alone else _joined(texts))
        await self._offsets.commit(offsets)


def _named(partition: TopicIdPartition) -> Partition:
    return partition.topic, partition.partition


def _joined(texts: dict[str, str]) -> str:
    return " ".join(word for pair in texts.items() for word in pair)
