"""The decoder over a real broker's segments: every batch of the frozen tier."""

from typing import Any

import pytest

from pipeline.decoding.record_decoder import RecordDecoder
from pipeline.schema import COLUMNS
from pipeline.tasks import ReadOptions
from storage.formats.aiven.manager import AivenRemoteStorageManager
from tests.support.frozen_tier import NAMES, RawBatch, Recorded, broken_up, storage_config
from tests.support.frozen_tier import decoded as independently_decoded
from tests.support.record_rows import Row, as_truth, decoded, scanned

FOREVER = 2**62


def raw_batches(recorded: Recorded) -> list[list[RawBatch]]:
    """Of each segment in the tier."""
    manager = AivenRemoteStorageManager(storage_config())
    found = []
    for metadata in recorded.segments:
        size = metadata.segment_size_bytes
        stream = manager.open_log_segment(metadata).open_stream(0, size)
        batches, tail = broken_up(bytes(stream.read(size)))
        stream.close()
        assert tail == 0
        found.append(batches)
    return found


def rows_of(batches: list[RawBatch]) -> list[Row]:
    decoder = RecordDecoder(ReadOptions(columns=COLUMNS), "topic", 0, where="a segment")
    blobs = scanned(batch.data for batch in batches)
    return decoded(decoder.decode(blobs, first_offset=0, end_offset=FOREVER))


def without_epoch(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "e"}


@pytest.mark.parametrize("name", NAMES)
def test_every_batch_in_the_tier_gives_what_an_independent_decoder_reads(name: str) -> None:
    for batches in raw_batches(Recorded(name)):
        expected = [without_epoch(record) for batch in batches for record in independently_decoded(batch)]
        assert [as_truth(row) for row in rows_of(batches)] == expected
