"""Everything that a catalog of few small segments answers, and its way through a snapshot's bytes."""

import io
from collections.abc import Iterable

from storage.metadata.catalog import Catalog
from storage.metadata.catalog_contents import CatalogContents
from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter
from storage.model import TopicIdPartition
from tests.support.metadata_records import PARTITION

EPOCHS = range(-1, 4)
OFFSETS = range(0, 45, 2)

Answers = dict[str, object]

CHECKSUM_BYTES = 4


def answers(catalog: Catalog, partitions: Iterable[TopicIdPartition] = (PARTITION,)) -> Answers:
    """By question. Where the catalog promises no order, in one of the segment ids."""
    said: Answers = {
        "segments": catalog.segment_count,
        "refused": catalog.refused_partitions,
        "sizes": catalog.topic_sizes(),
        "some": bool(catalog.some_segments(1)),
    }
    for partition in partitions:
        said |= _answers_of(catalog, partition)
    return said


def _answers_of(catalog: Catalog, partition: TopicIdPartition) -> Answers:
    key = (partition.topic_id, partition.partition)
    known = catalog.partition_of(*key)
    segments = sorted(catalog.list_segments(*key), key=lambda segment: segment.segment_id.id)
    said: Answers = {
        "has": catalog.has_segments(*key),
        "name": None if known is None else (known, known.topic),
        "generation": catalog.generation(*key),
        "refused": catalog.is_refused(*key),
        "all": segments,
        "found": [catalog.find_segment(segment.segment_id) for segment in segments],
        "known": catalog.known_among(frozenset(segment.segment_id.id for segment in segments)),
        "epochs": catalog.epochs(*key),
    }
    for epoch in EPOCHS:
        said[f"epoch {epoch}"] = (
            catalog.list_segments(*key, epoch),
            catalog.highest_offset_for_epoch(*key, epoch),
            catalog.first_finished(*key, epoch, end_offset_min=10, max_timestamp_ms_min=0, accepts=lambda _: True),
        )
        for offset in OFFSETS:
            said[f"epoch {epoch} offset {offset}"] = catalog.lookup(*key, epoch, offset)
    return {f"{partition} {question}": answer for question, answer in said.items()}


def snapshot_bytes(contents: CatalogContents) -> bytes:
    """The contents alone, without what a snapshot file has around them."""
    file = io.BytesIO()
    writer = SnapshotWriter(file, lambda: None)
    contents.write_to(writer)
    writer.finish()
    return file.getvalue()[:-CHECKSUM_BYTES]


def contents_of(content: bytes) -> CatalogContents:
    """Return what `snapshot_bytes` gave, read to its end."""
    reader = SnapshotReader(io.BytesIO(content), len(content))
    contents = CatalogContents.read_from(reader)
    reader.finish()
    return contents


def round_trip(catalog: Catalog) -> Catalog:
    """Another catalog with what this one holds."""
    other = Catalog(catalog.segments_max)
    other.adopt(contents_of(snapshot_bytes(catalog.contents())))
    return other
