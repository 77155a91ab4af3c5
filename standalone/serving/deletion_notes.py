"""What is noted of deletions that wait, for all copiers: beside committed offsets of the group `tidegate.deletions`.

- A commit's text is the topic's id and the note (standalone.copier.waits), and those of up to OTHERS_MAX topics that
  had or have its name: a broker that is cut off may still know an older one, whose owner must not forget what is noted
  of the newer. Its offset means nothing.
- A note that cannot be read was written by a newer version: then nothing is deleted.
- Offsets of groups without members expire: who has partitions commits them again when a day has passed.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import trio

from protocol.client.errors import UpstreamError
from protocol.client.groups import GroupOffset
from standalone.copier.waits import Noted, noted_from
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import COMMIT_AGAIN_S, as_storage_error
from storage.errors import RemoteStorageError
from storage.model import TopicIdPartition, uuid_to_text

DELETIONS_GROUP: Final = "tidegate.deletions"

OTHERS_MAX: Final = 2
"""A text may have 4096 bytes (`offset.metadata.max.bytes`), a note some hundred."""


class DeletionNotes:
    """Implements `standalone.copier.kept.KeptStore`. Owned by the trio thread."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets
        self._committed_at_s: dict[TopicIdPartition, float] = {}

    async def get(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, Noted]:
        """What is noted, kept from expiring. Raises as `read` and `commit`."""
        notes = await self.read(partitions)
        await self._commit_again(notes)
        return notes

    async def read(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, Noted]:
        """What is noted.

        Raises:
            RemoteStorageError: no answer, a missing right, or a note that cannot be read.
        """
        wanted = [*partitions]
        found = await self._texts(wanted)
        notes: dict[TopicIdPartition, Noted] = {}
        for partition in wanted:
            text = found.get((partition.topic, partition.partition), {}).get(uuid_to_text(partition.topic_id))
            if text is None:
                continue
            try:
                notes[partition] = noted_from(text)
            except ValueError as error:
                raise RemoteStorageError(f"{partition}: {error}: nothing is deleted") from error
        return notes

    async def commit(self, values: Mapping[TopicIdPartition, Noted]) -> None:
        """Have these noted.

        Raises:
            RemoteStorageError: no answer, or a missing right.
        """
        offsets: dict[tuple[str, int], GroupOffset] = {}
        texts = await self._texts(values)
        for each, noted in values.items():
            key, own_id = (each.topic, each.partition), uuid_to_text(each.topic_id)
            others = [pair for pair in texts.get(key, {}).items() if pair[0] != own_id][-OTHERS_MAX:]
            texts[key] = dict([*others, (own_id, noted.as_text())])
            offsets[key] = GroupOffset(0, " ".join(word for pair in texts[key].items() for word in pair))
        try:
            await self._offsets.commit(offsets)
        except UpstreamError as error:
            raise as_storage_error("notes of deletions", error) from error
        self._committed_at_s |= dict.fromkeys(values, trio.current_time())

    async def _texts(self, partitions: Iterable[TopicIdPartition]) -> dict[tuple[str, int], dict[str, str]]:
        """By topic and partition: what is noted, by the ids of topics that had or have the name."""
        try:
            found = await self._offsets.fetch({(each.topic, each.partition) for each in partitions})
        except UpstreamError as error:
            raise as_storage_error("notes of deletions", error) from error
        words = {key: kept.metadata.split(" ") for key, kept in found.items()}
        return {key: dict(zip(each[::2], each[1::2], strict=False)) for key, each in words.items()}

    async def _commit_again(self, notes: Mapping[TopicIdPartition, Noted]) -> None:
        now_s = trio.current_time()
        due = {
            partition: noted
            for partition, noted in notes.items()
            if noted != Noted() and now_s - self._committed_at_s.get(partition, -math.inf) >= COMMIT_AGAIN_S
        }
        if due:
            await self.commit(due)
