"""Lines of a dump: what they hold, what is refused, and where their records belong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from storage.errors import RetriableRemoteStorageError
from storage.metadata.catalog import Catalog
from storage.metadata.dump_lines import LineError, parse_line
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.reading import MetadataEvent, TopicDescription
from storage.metadata.record_batches import BUILT_BYTES, build_batches, parse_batches
from storage.metadata.serde import decode
from storage.model import CustomMetadata, RemoteLogSegmentState
from tests.support.segments import filled_segment, metadata_of, topic_partition
from tidegate.commands import metadata
from tidegate.commands.metadata import ImportOptions, Plan, place_of, record_line, records_of
from tidegate.commands.tier import MetadataTopic

ORDERS = topic_partition("orders", 3)
SEGMENT = replace(metadata_of(ORDERS, filled_segment(1000)), custom_metadata=CustomMetadata(b"\x00\xff"))
VALUE = encode(replace(SEGMENT, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))


def test_a_line_comes_back_as_the_record_it_was() -> None:
    for event in (
        MetadataEvent(7, 21, 1700, None, VALUE),
        MetadataEvent(7, 21, -1, b"\xffkey", VALUE),
        MetadataEvent(7, 21, 0, b"key", None),
        MetadataEvent(7, 21, 0, None, b"not a record"),
    ):
        line = record_line(event)
        assert ("undecodable" in line) == (event.value == b"not a record")
        assert parse_line(json.dumps(line) + "\n", 5) == replace(event, offset=5)


def test_what_no_dump_writes_is_refused_by_its_line() -> None:
    for line in (
        *("{", "[]", "7", "{}"),
        '{"metadata_partition":0,"timestamp_ms":1,"key":null,"value":null}',
        '{"metadata_partition":0,"timestamp_ms":1,"key":null,"value":"*"}',
        '{"metadata_partition":0,"timestamp_ms":1,"key":3,"value":"AA=="}',
        '{"metadata_partition":"0","timestamp_ms":1,"key":null,"value":"AA=="}',
        '{"metadata_partition":0,"timestamp_ms":1e99,"key":null,"value":"AA=="}',
    ):
        with pytest.raises(LineError, match="line 5 is none that `tidegate metadata dump` writes"):
            pytest.fail(f"{line} was taken as {parse_line(line, 5)}")


def test_a_record_goes_where_the_topics_own_partition_count_puts_it() -> None:
    event = MetadataEvent(99, 1, 0, None, VALUE)
    for count in (1, 5, 50):
        assert place_of(event, count, {}) == metadata_partition(ORDERS.topic_id, 3, count)
    unknown = MetadataEvent(4, 1, 0, b"a key", None)
    assert place_of(unknown, 50, {"metadata_partitions": 50}) == 4
    for count, source in ((50, {}), (50, {"metadata_partitions": 5}), (3, {"metadata_partitions": 3})):
        with pytest.raises(LineError, match=f"which of the {count} metadata partitions"):
            place_of(unknown, count, source)


def test_a_catalog_of_the_current_records_is_the_same() -> None:
    for state in list(RemoteLogSegmentState)[:3]:
        segment = replace(SEGMENT, state=state)
        catalog, plan = Catalog(), Plan()
        for record in records_of(segment):
            plan.add(MetadataEvent(0, 1, 0, None, encode(record)))
            assert catalog.apply(decode(encode(record)), initialized=True)
        assert catalog.list_segments(ORDERS.topic_id, 3) == [segment]
        assert (len(plan.segments), plan.topics) == (1, {"orders"})


def test_batches_hold_keys_values_and_times_and_are_bounded() -> None:
    large = b"x" * (BUILT_BYTES // 2)
    parts = [(1700, b"key", large), (1600, None, large), (1800, b"", None), (-1, None, b"v")]
    events = [MetadataEvent(0, number, time_ms, key, value) for number, (time_ms, key, value) in enumerate(parts)]
    batches = list(build_batches(events))
    assert len(batches) == 2
    found = [record for batch in batches for record in parse_batches(batch, 0).records]
    assert [(each.timestamp_ms, each.key, each.value) for each in found] == parts


class Published:
    """In place of the metadata topic's client: takes so many batches, and then no more."""

    def __init__(self, batches_max: int) -> None:
        self.values: list[bytes] = []
        self._batches_left = batches_max

    async def produce_batch(self, partition: int, batch: bytes) -> int:
        await trio.lowlevel.checkpoint()
        if not self._batches_left:
            raise RetriableRemoteStorageError("no leader")
        self._batches_left -= 1
        self.values += [record.value or b"" for record in parse_batches(batch, partition).records]
        return 0


async def test_an_import_that_breaks_off_goes_on_behind_the_last_line_that_is_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven records in chunks of two, behind a head and an empty line; the third chunk fails."""
    monkeypatch.setattr(metadata, "CHUNK_LINES", 2)
    values = [encode(replace(SEGMENT, state=RemoteLogSegmentState(0), broker_id=number)) for number in range(7)]
    lines = [json.dumps(record_line(MetadataEvent(0, 0, 0, None, value))) for value in values]
    file = tmp_path / "lines"
    file.write_text("\n".join(['{"dump":{"metadata_partitions":1}}', "", *lines]))

    async def publish(published: Published, after: int) -> int:
        fakes: Any = {"cluster": None, "client": published}
        topic = MetadataTopic(**fakes, description=TopicDescription(b"", 1), ranges={})
        return await metadata.publish(ImportOptions(lines=file, after=after), topic, Plan())

    first, second = Published(2), Published(99)
    with pytest.raises(RetriableRemoteStorageError):
        await publish(first, 0)
    told = capsys.readouterr().err
    assert "4 records are published for certain; go on with --yes --append --after 6" in told
    assert await publish(second, 6) == 3
    assert first.values + second.values == values
