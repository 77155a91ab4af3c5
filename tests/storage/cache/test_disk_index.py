"""The index: whatever threads do between its calls, the disk never holds more than the budget, nor than is charged."""

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from storage.cache.block_file import FILE_COST_BYTES_MIN, DiskBlockKey
from storage.cache.disk_index import DiskIndex, Doomed, Room
from tests.support.disk_cache import key_of

ALL_KEYS = [key_of(number, segment=segment) for number in range(3) for segment in ("one", "two")]
KEYS = st.sampled_from(ALL_KEYS)
FIRST, SECOND, THIRD = key_of(1), key_of(2), key_of(3)


class DiskIndexMachine(RuleBasedStateMachine):
    """Threads that reserve, delete, write and publish in any order, on a disk that refuses to delete now and then.

    `files` is the disk: costs by key, or by path for what is being written. `dropped`: since they were reserved last.
    """

    clearings = Bundle[Room]("clearings")
    writings = Bundle[Room]("writings")

    @initialize(bytes_max=st.sampled_from([30, 60, 5]))
    def begin(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.index = DiskIndex(bytes_max, retention_s=None)
        self.files: dict[DiskBlockKey | Path, int] = {}
        self.now_s = 0.0
        self.dropped: set[DiskBlockKey] = set()

    @rule(target=clearings, key=KEYS, cost_bytes=st.sampled_from([10, 30, 1]))
    def reserve(self, key: DiskBlockKey, cost_bytes: int) -> MultipleResults[Room]:
        room = self.index.reserve(key, cost_bytes, self.now_s)
        if room is None:
            return multiple()
        self.dropped.discard(key)
        return multiple(room)

    @rule(key=KEYS, cost_bytes=st.sampled_from([10, 30, 1]), reader=st.integers(0, 2))
    def write(self, key: DiskBlockKey, cost_bytes: int, reader: int) -> None:
        """All of it at once, as a lone thread does."""
        room = self.index.reserve(key, cost_bytes, self.now_s)
        if room is not None:
            self.dropped.discard(key)
            for doomed in room.doomed:
                del self.files[doomed.file]
            self.index.settle(room, [])
            self.files[key] = cost_bytes
            assert self.index.publish(room, key, reader, self.now_s) is None

    @rule(target=clearings, key=KEYS)
    def drop(self, key: DiskBlockKey) -> Room:
        self.dropped.add(key)
        return self.index.take([key])

    @rule(target=clearings, key=KEYS)
    def drop_segment(self, key: DiskBlockKey) -> Room:
        self.dropped.update(each for each in ALL_KEYS if each.segment_id == key.segment_id)
        room = self.index.take_segment(key.segment_id)
        assert key.segment_id not in self.index.segments()
        return room

    @rule(target=clearings)
    def shrink(self) -> Room:
        return self.index.shrink()

    @rule(target=writings, room=consumes(clearings), refused=st.sampled_from([0, 0, 0, 1]))
    def clear(self, room: Room, refused: int) -> MultipleResults[Room]:
        """Delete what is doomed, all but the first few, and begin to write."""
        undeleted = room.doomed[:refused]
        for doomed in room.doomed[len(undeleted) :]:
            del self.files[doomed.file]
        self.index.settle(room, undeleted)
        if room.key is None or undeleted:
            return multiple()
        self.files[self.temporary(room)] = room.cost_bytes
        return multiple(room)

    @rule(target=clearings, room=consumes(writings), reader=st.integers(0, 2))
    def publish(self, room: Room, reader: int) -> MultipleResults[Room]:
        key = key_to_come(room)
        self.files[key] = self.files.pop(self.temporary(room))
        unwanted = self.index.publish(room, key, reader, self.now_s)
        assert self.index.holds(key, self.now_s) == (unwanted is None) == (key not in self.dropped)
        return multiple() if unwanted is None else multiple(unwanted)

    @rule(room=consumes(writings), is_deleted=st.booleans())
    def fail(self, room: Room, is_deleted: bool) -> None:
        temporary = self.temporary(room)
        if is_deleted:
            del self.files[temporary]
        self.index.release(room, None if is_deleted else temporary)

    @rule(key=KEYS, reader=st.integers(0, 2))
    def read(self, key: DiskBlockKey, reader: int) -> None:
        self.now_s += 1
        assert (self.index.use(key, reader, self.now_s) is not None) == self.index.holds(key, self.now_s)

    @invariant()
    def is_within_budget_and_charged_in_full(self) -> None:
        assert sum(self.files.values()) <= self.index.size_bytes <= self.bytes_max
        held = [key for key in ALL_KEYS if self.index.holds(key, self.now_s)]
        assert self.files.keys() >= set(held)
        assert self.dropped.isdisjoint(held)

    def temporary(self, room: Room) -> Path:
        return Path(str(id(room)))


def key_to_come(room: Room) -> DiskBlockKey:
    assert room.key is not None
    return room.key


TestDiskIndex = DiskIndexMachine.TestCase


def reserved(index: DiskIndex, key: DiskBlockKey, cost_bytes: int = 10, now_s: float = 0.0) -> Room:
    room = index.reserve(key, cost_bytes, now_s)
    assert room is not None
    return room


def put(index: DiskIndex, key: DiskBlockKey, cost_bytes: int = 10, now_s: float = 0.0) -> list[Doomed]:
    room = reserved(index, key, cost_bytes, now_s)
    index.settle(room, [])
    assert index.publish(room, key, None, now_s) is None
    return room.doomed


def test_blocks_of_one_extent_go_before_those_of_another_however_they_were_found() -> None:
    large = [key_of(number, size_bytes=FILE_COST_BYTES_MIN) for number in range(12)]
    index = DiskIndex(32 * FILE_COST_BYTES_MIN, None)  # so an extent has two blocks
    for number in (0, 2, 4, 1, 3, 5):
        index.add_listed(large[number], 5 * FILE_COST_BYTES_MIN, 0.0)
    gone = [each.file for key in large[6:] for each in put(index, key, 5 * FILE_COST_BYTES_MIN)]
    assert gone == large[:6]


def test_what_nobody_has_read_for_too_long_is_not_here() -> None:
    index = DiskIndex(100, 60.0)
    index.add_listed(FIRST, 10, 0.0)
    index.add_listed(THIRD, 10, 10.0)
    assert [index.holds(key, 60.0) for key in (FIRST, SECOND, THIRD)] == [True, False, True]
    assert [index.holds(key, 61.0) for key in (FIRST, SECOND, THIRD)] == [False, False, True]


def test_what_goes_counts_until_it_is_deleted() -> None:
    index = DiskIndex(25, None)
    put(index, FIRST, 20)
    room = reserved(index, SECOND, 10)
    assert room.evictions == 1
    assert index.size_bytes == 20
    assert index.reserve(THIRD, 10, 0.0) is None, "room that is not there yet"
    index.settle(room, [])
    assert index.size_bytes == 10
    assert index.reserve(THIRD, 10, 0.0) is not None


def test_a_block_that_could_not_be_read_is_not_forgotten_once_it_is_another_file() -> None:
    index = DiskIndex(100, None)
    put(index, FIRST)
    entry = index.use(FIRST, None, 0.0)
    assert entry is not None
    index.settle(index.take([FIRST]), [])
    assert index.take_read(FIRST, entry).doomed == []
    put(index, FIRST)
    assert index.take_read(FIRST, entry).doomed == []
    entry = index.use(FIRST, None, 0.0)
    assert entry is not None
    assert index.take_read(FIRST, entry).doomed == [Doomed(FIRST, 10)]


def test_a_block_that_nobody_has_used_makes_room_for_itself() -> None:
    index = DiskIndex(15, 60.0)
    put(index, FIRST)
    assert index.reserve(FIRST, 10, 60.0) is None
    assert put(index, FIRST, now_s=61.0) == [Doomed(FIRST, 10)]
    assert (len(index.entries), index.size_bytes) == (1, 10)
