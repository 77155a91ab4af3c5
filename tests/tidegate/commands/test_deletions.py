"""`tidegate deletions` over a fake broker: what waits and until when, and an operator's words; with real copiers:
tests/integration."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from protocol.client.groups import OFFSET_COMMIT
from protocol.client.messages import PRODUCE, Values
from standalone.copier.gone_topics import HELD_MS
from standalone.copier.waits import Noted, Wave, noted_from
from storage.metadata.record_batches import parse_batches
from storage.model import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
    uuid_to_text,
)
from tests.support.command_world import CommandWorld
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeTopic
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, named_partition, started
from tidegate import exit_codes
from tidegate.commands import deletions
from tidegate.commands.deletions import DeletionOptions, Word, list_deletions, say
from tidegate.commands.ls import LsOptions
from tidegate.commands.ls import run as ls
from tidegate.commands.selection import Place

Captured = pytest.CaptureFixture[str]

GONE, NOW_MS, GRACE_MS = named_partition("gone"), 1_800_000_000_000, 16_000
ORDERS, WAVE = ("orders", 0), Wave(NOW_MS - 1000, 20, -1)
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
BEGUN = RemotePartitionDeleteState.DELETE_PARTITION_STARTED


class World(CommandWorld):
    """Brokers have `orders`; the tier has three segments of it, and one of `gone`. What is published is kept."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.lines = f"mode=standalone\ncopy.topics=orders\ncopy.delete.grace.ms={GRACE_MS}\n"
        self.group = FakeGroup(self.cluster)
        self.cluster.topics["orders"] = FakeTopic(PARTITION.topic_id, [1])
        self.cluster.brokers[1].on(PRODUCE, self._keep)
        self.late_marks: list[tuple[int, RemotePartitionDeleteState]] = []
        """A copier's, behind what is published next."""
        for start in (0, 10, 20):
            self.add(PARTITION, start, {0: start})
        self.add(GONE, 0, {0: 0})

    def add(self, partition: TopicIdPartition, start: int, epochs: dict[int, int]) -> None:
        segment = started(f"{partition.topic} {epochs}", start, start + 9, epochs, partition=partition)
        self.publish(segment, moved(segment, COPY_FINISHED))

    def note(self, noted: Noted) -> None:
        self.group.offsets[ORDERS] = (0, f"{uuid_to_text(PARTITION.topic_id)} {noted.as_text()}")

    def noted(self) -> Noted:
        topic_id, _, text = (self.group.offsets[ORDERS][1] or "").partition(" ")
        assert topic_id == uuid_to_text(PARTITION.topic_id)
        return noted_from(text)

    def mark(self, at_ms: int, state: RemotePartitionDeleteState = MARKED) -> None:
        self.publish(RemotePartitionDeleteMetadata(GONE, state, at_ms, 1))

    def listed(self) -> list[tuple[str, int, int | None, str]]:
        """(topic, segments, until, why) of each."""
        options, out = DeletionOptions(place=None, as_json=True), io.StringIO()
        assert list_deletions(self.config(), options, out) == exit_codes.DONE
        found = json.loads(out.getvalue())["deletions"]
        return [(each["topic"], each["segments"], each["until_ms"], each["why"]) for each in found]

    def say(self, word: Word, topic: str = "orders", code: int = exit_codes.DONE) -> str:
        out = io.StringIO()
        assert say(self.config(), word, DeletionOptions(place=Place(topic)), out) == code
        return out.getvalue()

    def _keep(self, request: Any) -> Values:
        [topic] = request.topic_data
        [data] = topic.partition_data
        self.publish(*(record.value or b"" for record in parse_batches(bytes(data.records), 0).records))
        if self.late_marks:
            self.mark(*self.late_marks.pop())
        answer = {"index": 0, "error_code": ErrorCode.none, "base_offset": 0, "record_errors": ()}
        named = {"name": getattr(topic, "name", None), "topic_id": getattr(topic, "topic_id", None)}
        return {"responses": [{**named, "partition_responses": [answer]}]}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(deletions, "wall_clock_ms", lambda: NOW_MS)
    monkeypatch.setattr(deletions, "SETTLE_S", 0.0)
    return World(tmp_path, monkeypatch)


def test_what_waits_is_listed_with_its_end_and_its_reason(world: World, capsys: Captured) -> None:
    """Segments that end before what was asked for; after a truncation, those that are dead. Nothing is written."""
    gone = ("gone", 1, None, "its topic is gone: a copier that sees it")
    assert world.listed() == [gone]
    due_ms = WAVE.since_ms + GRACE_MS - GRACE_MS // 16
    for noted, said in (
        (Noted(waves=(WAVE,)), ("orders", 2, due_ms, "copy.delete.grace.ms")),
        (Noted(waves=(WAVE,), approved_ms=NOW_MS), ("orders", 2, None, "the copier's next look")),
        (Noted(waves=(WAVE,), is_held=True), ("orders", 2, None, "an operator holds it")),
        (Noted(is_held=True), ("orders", 0, None, "an operator holds it")),
    ):
        world.note(noted)
        assert world.listed() == [said, gone]
    for nothing in (Noted(), Noted(approved_ms=NOW_MS, known_epoch=3)):
        world.note(nothing)
        assert world.listed() == [gone]
    world.add(PARTITION, 12, {2: 12})
    world.note(Noted(cut=(NOW_MS, 0)))
    [(topic, segments, until_ms, why), _] = world.listed()
    assert (topic, segments, until_ms) == ("orders", 1, None)  # 20 to 29; of 10 to 19 two are left
    assert "a truncation" in why
    out = io.StringIO()
    assert list_deletions(world.config(), DeletionOptions(place=None), out) == exit_codes.DONE
    assert all(word in out.getvalue() for word in ("orders:0", "gone:0", "until", "a truncation"))
    assert world.group.committed == []


def test_a_gone_topic_is_listed_by_its_last_mark(world: World) -> None:
    for at_ms, state, until_ms, why in (
        (NOW_MS, MARKED, NOW_MS + GRACE_MS, "copy.delete.grace.ms"),
        (HELD_MS + 1, MARKED, None, "an operator holds it"),
        (0, MARKED, None, "the copier, which deletes it now"),
        (NOW_MS, BEGUN, None, "the copier, which deletes it now"),
    ):
        world.mark(at_ms, state)
        assert world.listed() == [("gone", 1, until_ms, f"its topic is gone: {why}")]


def test_each_word_changes_its_own_part_of_the_note(world: World, capsys: Captured) -> None:
    world.note(Noted(waves=(WAVE,), known_epoch=7))
    assert world.say(Word.HOLD) == "held: orders:0\n"
    assert world.noted() == Noted(waves=(WAVE,), known_epoch=7, is_held=True)
    world.say(Word.APPROVE, code=exit_codes.FOUND_WRONG)
    assert "orders:0 is held, and nothing was approved" in capsys.readouterr().err
    assert world.say(Word.RELEASE) == "released: orders:0\n"
    assert world.noted() == Noted(waves=(WAVE,), known_epoch=7)
    assert world.say(Word.APPROVE) == "approved: orders:0\n"
    assert world.noted() == Noted(waves=(WAVE,), known_epoch=7, approved_ms=NOW_MS)
    commits = len(world.group.committed)
    assert world.say(Word.RELEASE) == "released: orders:0\n"
    assert len(world.group.committed) == commits


def test_a_word_stands_though_a_copier_writes_at_the_same_moment(world: World, capsys: Captured) -> None:
    """The copier has read before the word, and writes after it; should it do so again and again, that is said."""
    commit, overwrites = world.group.commit, [Noted(waves=(WAVE,)), Noted()]

    def commit_and_overwrite(node_id: int, request: Any) -> Values:
        answer = commit(node_id, request)
        if overwrites:
            world.note(overwrites.pop(0))
        return answer

    world.cluster.brokers[1].on(OFFSET_COMMIT, lambda request: commit_and_overwrite(1, request))
    world.say(Word.HOLD)
    assert world.noted() == Noted(is_held=True)
    overwrites += [Noted()] * 99
    world.note(Noted())
    world.say(Word.HOLD, code=exit_codes.FOUND_WRONG)
    assert "a copier writes its notes at the same moments; run the command again" in capsys.readouterr().err


def test_of_a_gone_topic_the_word_is_another_mark(world: World, capsys: Captured) -> None:
    for word in (Word.APPROVE, Word.RELEASE):
        world.say(word, "gone", exit_codes.FOUND_WRONG)
        assert "nothing of gone:0 waits: no copier has marked it yet" in capsys.readouterr().err
    world.mark(5)
    for word, why, until_ms in (
        (Word.HOLD, "an operator holds it", None),
        (Word.RELEASE, "copy.delete.grace.ms", NOW_MS + GRACE_MS),
        (Word.APPROVE, "the copier, which deletes it now", None),
    ):
        assert world.say(word, "gone") == f"{word.value}: gone:0 (its topic is gone)\n"
        assert world.listed() == [("gone", 1, until_ms, f"its topic is gone: {why}")]
    world.mark(HELD_MS + 1)
    world.say(Word.APPROVE, "gone", exit_codes.FOUND_WRONG)
    assert "gone:0 is held, and nothing was approved" in capsys.readouterr().err
    world.mark(NOW_MS, BEGUN)
    world.say(Word.HOLD, "gone", exit_codes.FOUND_WRONG)
    assert "gone:0 is being deleted already" in capsys.readouterr().err


def test_a_gone_topic_can_be_held_before_a_copier_marks_it_and_behind_its_mark(world: World) -> None:
    world.late_marks.append((NOW_MS, MARKED))
    world.say(Word.HOLD, "gone")
    assert world.listed() == [("gone", 1, None, "its topic is gone: an operator holds it")]


def test_an_approval_stands_though_the_copier_has_deleted_all_at_once(world: World) -> None:
    world.mark(5)
    world.late_marks.append((NOW_MS, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED))
    assert world.say(Word.APPROVE, "gone") == "approved: gone:0 (its topic is gone)\n"


def test_a_topic_that_some_broker_has_is_not_taken_for_gone(world: World, capsys: Captured) -> None:
    """By name it is gone, and by id it is not: as where one broker has not heard yet that it was made."""
    world.mark(5)
    before = world.metadata.end_offset
    world.cluster.topics["another name"] = FakeTopic(GONE.topic_id, [1])
    world.say(Word.APPROVE, "gone", exit_codes.FOUND_WRONG)
    assert "has them: nothing was said of them" in capsys.readouterr().err
    assert world.metadata.end_offset == before


def test_in_replica_mode_there_is_nothing_to_say(world: World, capsys: Captured) -> None:
    world.lines = ""
    world.say(Word.HOLD, code=exit_codes.FOUND_WRONG)
    assert "mode=replica: the brokers delete from this tier" in capsys.readouterr().err
    assert list_deletions(world.config(), DeletionOptions(place=None), io.StringIO()) == exit_codes.FOUND_WRONG


def listed_by_ls(world: World, place: Place | None, name: str) -> Any:
    out = io.StringIO()
    assert ls(world.config(), LsOptions(place=place, as_json=True), out) == exit_codes.DONE
    return json.loads(out.getvalue())[name]


def test_ls_shows_what_waits_and_what_is_dead(world: World, capsys: Captured) -> None:
    """Without the right to see notes it says so once, and lists all the rest."""
    world.note(Noted(waves=(WAVE,)))
    world.add(PARTITION, 12, {2: 12})
    assert [each["dead_segments"] for each in listed_by_ls(world, None, "topics")] == [0, 1]
    segments = listed_by_ls(world, Place("orders", 0), "segments")
    assert [(each["start_offset"], each["dead"]) for each in segments] == [
        (0, False),
        (10, False),
        (12, False),
        (20, True),
    ]
    [partition] = listed_by_ls(world, Place("orders"), "partitions")
    assert (partition["dead_segments"], partition["deletion"]["segments"]) == (1, 2)
    assert partition["deletion"]["why"] == "copy.delete.grace.ms"
    out = io.StringIO()
    assert ls(world.config(), LsOptions(place=Place("orders")), out) == exit_codes.DONE
    assert "2 segments: until 2027" in out.getvalue()
    world.add(replace(PARTITION, topic_id=Uuid(b"\xff" * 16)), 0, {0: 0})
    found = {each["topic_id"]: each["deletion"] for each in listed_by_ls(world, Place("orders"), "partitions")}
    assert [deletion is None for deletion in found.values()] == [False, True]  # of a topic that had the name before
    assert capsys.readouterr().err == ""
    world.group.codes = [ErrorCode.group_authorization_failed]
    assert [each["deletion"] for each in listed_by_ls(world, Place("orders"), "partitions")] == [None, None]
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "ACL Describe on Group tidegate.deletions is missing" in told
    world.lines = ""
    partition = listed_by_ls(world, Place("orders"), "partitions")[0]
    assert (partition["deletion"], partition["dead_segments"]) == (None, 1)
