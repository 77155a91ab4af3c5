from collections.abc import Sequence

from storage.metadata.event_log import MetadataEvent
from storage.metadata.record_batches import PartitionReader


class Seen:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.progress: list[tuple[int, int, int]] = []

    def reader(self, start_offset: int = 0) -> PartitionReader:
        return PartitionReader(4, start_offset, self.deliver, lambda *entry: self.progress.append(entry))

    def deliver(self, events: Sequence[MetadataEvent]) -> None:
        self.offsets.extend(event.offset for event in events)


def events(*offsets: int) -> list[MetadataEvent]:
    return [MetadataEvent(4, offset, 0, None, b"") for offset in offsets]


def test_it_begins_at_the_logs_start_if_that_is_higher() -> None:
    seen = Seen()
    reader = seen.reader(start_offset=-5)
    reader.assign(log_start_offset=7, high_watermark=9)

    assert reader.position == 7
    assert seen.progress == [(4, 7, 9)]


def test_the_end_offset_of_the_first_assignment_stays() -> None:
    seen = Seen()
    reader = seen.reader()
    reader.assign(0, 2)
    reader.hand_over(events(0, 1))
    reader.assign(0, 50)

    assert seen.progress == [(4, 0, 2), (4, 2, 2), (4, 2, 2)]


def test_offsets_without_records_are_stepped_over_and_never_back() -> None:
    seen = Seen()
    reader = seen.reader()
    reader.assign(0, 10)
    reader.hand_over(events(0, 3))
    reader.advance(10)
    reader.advance(4)
    reader.advance(-1)

    assert reader.position == 10
    assert seen.progress[-1] == (4, 10, 10)


def test_a_stopped_reader_hands_nothing_over() -> None:
    seen = Seen()
    reader = seen.reader()
    reader.assign(0, 2)
    reader.stop()
    reader.hand_over(events(0, 1))
    reader.advance(9)

    assert seen.offsets == []
    assert seen.progress == [(4, 0, 2)]
