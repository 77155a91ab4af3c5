"""Records with keys, values and headers: every format and codec as other encoders write them; nothing from garbage."""

import random

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from protocol.record_batches import read_header
from storage.errors import CorruptObjectError
from storage.log.whole_records import WholeRecord, iterate_whole_records
from tests.support.cases import case
from tests.support.segments import control_batch

CODECS = [0, 1, 2, 3, 4]
RECORDS = [
    WholeRecord(0, 1700, b"key", b"value", (("a", b"1"), ("a", None), ("", b""))),
    WholeRecord(1, 1600, None, b"x" * 300),
    WholeRecord(2, 2500, b"", None),
]


def decoded(batch: bytes) -> list[WholeRecord]:
    found = iterate_whole_records(read_header(batch, 0), memoryview(batch))
    return [WholeRecord(each.offset, each.timestamp_ms, each.key, each.value, tuple(each.headers)) for each in found]


def built(codec: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for each in RECORDS:
        added = builder.append(each.offset, each.timestamp_ms, each.key, each.value, list(each.headers))
        assert added is not None
    return bytes(builder.build())


def test_records_of_a_batch_in_any_codec() -> None:
    for codec in CODECS:
        assert decoded(built(codec)) == RECORDS


def test_messages_of_the_old_formats() -> None:
    """No lz4 in v0, which aiokafka does not write."""
    for magic, codec in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]:
        with case(magic, codec):
            builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
            records = RECORDS[:1] if codec == 0 else RECORDS
            for each in records:
                assert builder.append(each.offset, each.timestamp_ms, each.key, each.value) is not None
            times = {0: [-1] * 3, 1: [each.timestamp_ms for each in RECORDS]}[magic]
            expected = [
                WholeRecord(each.offset, time_ms, each.key, each.value)
                for each, time_ms in zip(records, times, strict=False)
            ]
            batch = bytearray(builder.build())
            if codec:
                batch[:8] = (len(records) - 1).to_bytes(8)  # as a broker does: a wrapper's offset is its last message's
            assert decoded(bytes(batch)) == expected


def test_control_records_are_not_given() -> None:
    assert decoded(control_batch(5, producer_id=1, commit=False)) == []


def test_garbage_is_corrupt_and_nothing_else() -> None:
    """The CRC is somebody else's to check: what is wrong must show as that, whatever the bytes say."""
    for codec in CODECS:
        with case(codec):
            chance = random.Random(codec)
            for _ in range(300):
                batch = bytearray(built(codec))
                for _ in range(chance.randrange(1, 4)):
                    batch[chance.randrange(61, len(batch))] = chance.randrange(256)
                try:
                    found = decoded(bytes(batch))
                except CorruptObjectError:
                    continue
                assert len(found) == len(RECORDS)
