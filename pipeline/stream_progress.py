"""How far a streaming read is, as Spark keeps it in its checkpoint: JSON of next offsets by topic and partition.

    {"orders": {"0": 1200, "1": 1180}, "topic ids": {"orders": "tEsT-Uuid…"}}

The first part is what the Kafka source has. The second (no topic's name has a blank) says which topic an offset is
of: a topic that was recreated under its name begins at 0 again, and old offsets would be those of other
records. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from storage.model import uuid_to_text
from table.planning.offset_bounds import GOES_ON, OffsetBoundsError
from table.planning.partition_view import PartitionView
from table.planning.request import TopicPartition

StreamOffset: TypeAlias = dict[str, dict[str, int | str]]
"""The JSON, as Spark hands it over."""

TOPIC_IDS = "topic ids"


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Next offsets, and the ids of the topics that they are of (as text)."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]

    def to_json(self) -> StreamOffset:
        """As Spark is to keep it."""
        found: StreamOffset = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        found[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        return found


def progress_of(views: Sequence[PartitionView], offsets: Mapping[TopicPartition, int]) -> StreamProgress:
    """These offsets, of these partitions."""
    return StreamProgress(offsets, {view.partition.topic: uuid_to_text(view.partition.topic_id) for view in views})


def parse_progress(offset: StreamOffset) -> StreamProgress:
    """Return what `to_json` has made."""
    offsets = {
        (topic, int(number)): int(next_offset)
        for topic, by_number in offset.items()
        if topic != TOPIC_IDS
        for number, next_offset in by_number.items()
    }
    return StreamProgress(offsets, {topic: str(text) for topic, text in offset.get(TOPIC_IDS, {}).items()})


def check_same_topics(progress: StreamProgress, views: Iterable[PartitionView], *, fails_on_data_loss: bool) -> None:
    """That these offsets are of the topics that there are now.

    Raises:
        OffsetBoundsError: a topic was created again; or partitions are gone, if `fails_on_data_loss`.
    """
    views = list(views)
    now = progress_of(views, {}).topic_ids
    problems = [
        f"{topic} was deleted and created again (its id was {known} and is {now[topic]}): "
        "the query's offsets are not of these records; a query with a new checkpoint reads them"
        for topic, known in progress.topic_ids.items()
        if now.get(topic, known) != known
    ]
    gone = sorted(progress.offsets.keys() - {view.key for view in views})
    if fails_on_data_loss:
        problems += [f"{topic}-{partition} is not there any more; {GOES_ON}" for topic, partition in gone]
    if problems:
        raise OffsetBoundsError(problems)
