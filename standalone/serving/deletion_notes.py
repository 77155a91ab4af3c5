"""What is noted of deletions that wait, for all copiers: texts beside offsets of the group `tidegate.deletions`.

- A text is a note (standalone.copier.waits); its offset means nothing.
- A note that cannot be read was written by a newer version: then nothing is deleted.
- Offsets of groups without members expire: the owner of partitions commits them again when a day has passed.
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
from standalone.serving.topic_texts import TopicTexts
from storage.errors import RemoteStorageError
from storage.model import TopicIdPartition

DELETIONS_GROUP: Final = "tidegate.deletions"


class DeletionNotes:
    """Implements `standalone.copier.kept.KeptStore`. Owned by the trio thread."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._texts = TopicTexts(offsets)
        self._committed_at_s: dict[TopicIdPartition, float] = {}

    async def get(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, Noted]:
        """Return what is noted, kept from expiring. Raises as `read` and `commit`."""
        notes = await self.read(partitions)
        now_s = trio.current_time()
        due = {
            partition: noted
            for partition, noted in notes.items()
            if noted != Noted() and now_s - self._committed_at_s.get(partition, -math.inf) >= COMMIT_AGAIN_S
        }
        if due:
            await self.commit(due)
        return notes

    async def read(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, Noted]:
        """Return what is noted.

        Raises:
            RemoteStorageError: no answer, a missing right, or a note that cannot be read.
        """
        try:
            return {each: noted_from(text) for each, text in (await self._texts.read(partitions)).items()}
        except UpstreamError as error:
            raise as_storage_error("notes of deletions", error) from error
        except ValueError as error:
            raise RemoteStorageError(f"{error}: nothing is deleted") from error

    async def commit(self, values: Mapping[TopicIdPartition, Noted]) -> None:
        """Note these.

        Raises:
            RemoteStorageError: no answer, or a missing right.
        """
        try:
            await self._texts.change(values, lambda each, _: GroupOffset(0, values[each].as_text()))
        except UpstreamError as error:
            raise as_storage_error("notes of deletions", error) from error
        self._committed_at_s |= dict.fromkeys(values, trio.current_time())
