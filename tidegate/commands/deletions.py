"""`tidegate deletions list|hold|approve|release FILE [TOPIC[:PARTITION]]`: what waits to be deleted from a tier of
mode=standalone, and an operator's word on it (docs/tools.md#deletions).

- For a topic that there is, waits and words are notes beside the offsets of the group `tidegate.deletions`
  (standalone.copier.waits). A copier may write a note at the same moment: it is read again after SETTLE_S, and written
  again if the word does not stand.
- For a topic that is gone, the wait is the time of its DELETE_PARTITION_MARKED: a word is another such record
  (standalone.copier.gone_topics). Each broker is asked whether the topic is gone before that.
- What others have superseded is not noted: the copier's status page shows its wait, and a word is good for it, too.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TextIO

import trio

from standalone.copier.gone_topics import HELD_MS
from standalone.copier.waits import Noted
from standalone.copy_topics import CopyTopics, is_missed
from storage.config.model import Mode
from storage.errors import MetadataRecordError, RetriableRemoteStorageError, TierError
from storage.metadata.event_log import metadata_partition
from storage.metadata.reading import MetadataEvent
from storage.metadata.serde import decode
from storage.model import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
    uuid_to_text,
)
from storage.sizes import shown_size
from storage.wall_clock import wall_clock_ms
from tidegate import exit_codes
from tidegate.commands.deletion_waits import Waits, names_of, notes_of, waits_of
from tidegate.commands.metadata import publish_marks, read_records
from tidegate.commands.output import iso_time, print_json, print_table
from tidegate.commands.selection import Place, matching
from tidegate.commands.tier import OpenTier, run_on_tier
from tidegate.config.model import Config

SETTLE_S = 1.0
"""A copier that has read a note before ours was written has written its own by then."""

TRIES_MAX: Final = 5

_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED

Marks = Mapping[TopicIdPartition, RemotePartitionDeleteMetadata]
"""Each partition's last record of its deletion as a whole."""


class Word(enum.StrEnum):
    """What an operator says, as it is confirmed."""

    HOLD = "held"
    APPROVE = "approved"
    RELEASE = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionOptions:
    place: Place | None
    topic_id: Uuid | None = None
    as_json: bool = False


# --- list ---


def list_deletions(config: Config, options: DeletionOptions, out: TextIO) -> int:
    """Show what waits."""

    async def work(tier: OpenTier) -> int:
        _check_mode(config)
        partitions = matching(tier.catalog, options.place, options.topic_id)
        gone = await _missed(tier, partitions)
        found = await waits_of(tier, [each for each in partitions if each not in gone])
        marks = await _marks(tier, gone)
        found += [_waits_of_gone(tier, partition, marks.get(partition)) for partition in gone]
        if options.as_json:
            print_json(out, {**tier.identity(), "deletions": [each.as_json() for each in found]})
        else:
            rows = [
                (
                    f"{each.partition.topic}:{each.partition.partition}",
                    uuid_to_text(each.partition.topic_id),
                    each.segments,
                    shown_size(each.size_bytes),
                    None if each.until_ms is None else iso_time(each.until_ms),
                    each.why,
                )
                for each in found
            ]
            print_table(out, ("partition", "topic id", "segments", "size", "until", "waits for"), rows)
        return tier.tell_problems()

    return run_on_tier(config, work)


def _waits_of_gone(tier: OpenTier, partition: TopicIdPartition, mark: RemotePartitionDeleteMetadata | None) -> Waits:
    segments, until_ms = tier.segments(partition), None
    if mark is None:
        why = "its topic is gone: a copier that sees it"
    elif mark.state is not _MARKED or mark.event_timestamp_ms == 0:
        why = "its topic is gone: the copier, which deletes it now"
    elif mark.event_timestamp_ms > HELD_MS:
        why = "its topic is gone: an operator holds it"
    else:
        why = "its topic is gone: copy.delete.grace.ms"
        until_ms = mark.event_timestamp_ms + tier.config.copy.delete_grace_ms
    return Waits(
        partition=partition,
        segments=len(segments),
        size_bytes=sum(segment.segment_size_bytes for segment in segments),
        until_ms=until_ms,
        why=why,
    )


# --- hold, approve, release ---


def say(config: Config, word: Word, options: DeletionOptions, out: TextIO) -> int:
    """Give the word for all partitions of the place."""

    async def work(tier: OpenTier) -> int:
        _check_mode(config)
        partitions = matching(tier.catalog, options.place, options.topic_id)
        missed = await _missed(tier, partitions)
        await _confirm_gone(tier, missed)
        there = [each for each in partitions if each not in missed]
        await _note(tier, there, word)
        await _mark(tier, missed, word)
        if options.as_json:
            print_json(out, {**tier.identity(), word.value: [names_of(each) for each in partitions]})
        else:
            shown = [f"{each.topic}:{each.partition}" for each in there]
            shown += [f"{each.topic}:{each.partition} (its topic is gone)" for each in missed]
            out.write(f"{word.value}: {', '.join(shown)}\n")
        return exit_codes.DONE

    return run_on_tier(config, work)


async def _note(tier: OpenTier, partitions: Sequence[TopicIdPartition], word: Word) -> None:
    """Note the word."""
    notes, now_ms = notes_of(tier), wall_clock_ms()
    reason = "a copier writes its notes at the same moments"
    for attempt in range(TRIES_MAX):
        await trio.sleep(SETTLE_S if attempt else 0)
        try:
            found = {partition: Noted() for partition in partitions} | await notes.read(partitions)
            if word is Word.APPROVE:
                _check_not_held(partition for partition, noted in found.items() if noted.is_held)
            wanted = {partition: _changed(noted, word, now_ms) for partition, noted in found.items()}
            left = {partition: noted for partition, noted in wanted.items() if noted != found[partition]}
            if not left:
                return
            await notes.commit(left)
        except RetriableRemoteStorageError as error:
            reason = str(error)
    raise TierError(f"the word does not stand yet: {reason}; run the command again")


def _changed(noted: Noted, word: Word, now_ms: int) -> Noted:
    if word is Word.APPROVE:
        return replace(noted, approved_ms=max(noted.approved_ms, now_ms))
    return replace(noted, is_held=word is Word.HOLD)


def _check_not_held(held: Iterable[TopicIdPartition]) -> None:
    """Refuse to delete in passing what somebody holds, perhaps somebody else."""
    if names := ", ".join(f"{each.topic}:{each.partition}" for each in held):
        raise TierError(f"{names} is held, and nothing was approved: `tidegate deletions release` ends that")


async def _mark(tier: OpenTier, gone: Sequence[TopicIdPartition], word: Word) -> None:
    """Put the word into the metadata topic, behind what copiers have said of these partitions."""
    for attempt in range(TRIES_MAX):
        await trio.sleep(SETTLE_S if attempt else 0)
        marks = await _marks(tier, gone)
        if word is Word.APPROVE:
            _check_not_held(each for each, mark in marks.items() if mark.event_timestamp_ms > HELD_MS)
        left = [partition for partition in gone if not _stands(partition, marks.get(partition), word)]
        if not left:
            return
        marked_ms = {Word.HOLD: HELD_MS + 1, Word.APPROVE: 0, Word.RELEASE: wall_clock_ms()}[word]
        await publish_marks(tier.metadata, left, marked_ms)
    raise TierError("the word does not stand yet: a copier marks the topic at the same moments; run the command again")


def _stands(partition: TopicIdPartition, mark: RemotePartitionDeleteMetadata | None, word: Word) -> bool:
    """Return whether it has been said.

    Raises:
        TierError: it can not be said, or is of no use.
    """
    name = f"{partition.topic}:{partition.partition}"
    if mark is None:
        if word is Word.HOLD:
            return False
        raise TierError(f"nothing of {name} waits: no copier has marked it yet, though its topic is gone")
    if mark.state is not _MARKED:
        if word is Word.HOLD:
            raise TierError(f"{name} is being deleted already")
        return True
    if word is Word.HOLD:
        return mark.event_timestamp_ms > HELD_MS
    is_approved = mark.event_timestamp_ms == 0
    return is_approved if word is Word.APPROVE else not is_approved and mark.event_timestamp_ms <= HELD_MS


# --- all ---


def _check_mode(config: Config) -> None:
    if config.mode is not Mode.STANDALONE:
        raise TierError("mode=replica: the brokers delete from this tier, and at once; only mode=standalone waits")


async def _missed(tier: OpenTier, partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
    """Those whose topics seem gone."""
    known = list(partitions)
    names = sorted({each.topic for each in known})
    answers = {topic.name: topic for topic in await tier.upstream.learn_topics(names)} if names else {}
    return [each for each in known if is_missed(answers.get(each.topic), each)]


async def _confirm_gone(tier: OpenTier, missed: Sequence[TopicIdPartition]) -> None:
    if not missed:
        return
    topics = CopyTopics(tier.upstream, tier.config.copy, list, lambda: None)
    if len(await topics.confirm_gone(missed)) < len(missed):
        raise TierError(f"{topics.kept}: nothing was said of them")


async def _marks(tier: OpenTier, partitions: Sequence[TopicIdPartition]) -> Marks:
    """Return what the metadata topic says of the whole partitions' deletions now."""
    wanted, found = frozenset(partitions), dict[TopicIdPartition, RemotePartitionDeleteMetadata]()
    if not wanted:
        return found

    def take(event: MetadataEvent) -> None:
        with suppress(MetadataRecordError):  # `tidegate deletions list` warns of such records
            record = None if event.value is None else decode(event.value)
            if isinstance(record, RemotePartitionDeleteMetadata) and record.topic_id_partition in wanted:
                found[record.topic_id_partition] = record

    ranges = await tier.metadata.client.offsets(sorted({_metadata_partition(tier, each) for each in wanted}))
    await read_records(replace(tier.metadata, ranges=ranges), take, lambda _done, _total: None)
    return found


def _metadata_partition(tier: OpenTier, partition: TopicIdPartition) -> int:
    return metadata_partition(Uuid(partition.topic_id), partition.partition, tier.metadata.description.partition_count)
