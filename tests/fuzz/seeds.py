"""What a target's corpus begins with: what our own encoders and kio write, and files of other programs' vectors."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from protocol.wire.identifiers import ApiKey
from storage.indexes.leader_epochs import encode_leader_epochs
from storage.indexes.producer_snapshot import ProducerState, encode_producer_snapshot
from storage.indexes.transaction_index import AbortedTransaction, encode_transaction_index
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.metadata.snapshot import Snapshot, SnapshotFile, SnapshotOrigin
from tests.fuzz.targets import FETCH_VERSIONS, LIST_OFFSETS_VERSIONS, METADATA_VERSIONS
from tests.support import kio_frames
from tests.support.metadata_records import COPY_FINISHED, batch_of, finish, moved, started
from tests.support.needs import vectors_dir
from tests.support.segments import filled_segment

VECTOR_BYTES_MAX: Final = 16 * 1024
"""Larger files slow the loop down and lead to no more branches."""
PROPERTIES: Final = b"a=b\n# c\nlong.key : \\\n  value\nu=\\u00e9\nrsm.config.storage.root=${env:NAME}\r\n"


def _requests(api_key: int, versions: range) -> Iterator[bytes]:
    for version in versions:
        message = kio_frames.fill(kio_frames.schema(api_key, version, kind="request"), {})
        yield kio_frames.request_frame(message, client_id="client")[4:]


def _responses(api_key: int, versions: range) -> Iterator[bytes]:
    for number, version in enumerate(versions):
        yield bytes([number]) + kio_frames.response_frame(kio_frames.fill(kio_frames.schema(api_key, version), {}))[4:]


def _frames() -> Iterator[bytes]:
    bodies = [*_requests(ApiKey.FETCH, FETCH_VERSIONS), *_requests(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSIONS)]
    frames = [len(body).to_bytes(4, "big") + body for body in bodies]
    yield from frames
    yield b"".join(frames[:8])


def _list_offsets() -> Iterator[bytes]:
    for body in _requests(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSIONS):
        yield b"\0" + body
    count = len(LIST_OFFSETS_VERSIONS)
    for response in _responses(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSIONS):
        yield bytes([response[0] + count]) + response[1:]


def _logs() -> Iterator[bytes]:
    yield filled_segment(batch_count=3, records_per_batch=3, value_bytes=20).log
    yield from _vectors(".log")


def _indexes() -> Iterator[bytes]:
    segment = filled_segment(100, batch_count=5, interval_bytes=1)
    yield b"o" + segment.offset_index
    yield b"t" + segment.time_index
    yield b"a" + encode_transaction_index([AbortedTransaction(1, 6000, 6820, 6821), AbortedTransaction(2, 1, 6900, 7)])
    yield b"e" + encode_leader_epochs([(0, 0), (3, 17)])
    yield b"p" + encode_producer_snapshot([ProducerState(1, 0, 5, 99, 5, 1_700_000_000_000, 0, -1)])
    for kind, suffix in ((b"o", ".index"), (b"t", ".timeindex"), (b"a", ".txnindex"), (b"p", ".snapshot")):
        for content in _vectors(suffix):
            yield kind + content


def _manifests() -> Iterator[bytes]:
    from tests.storage.formats.aiven.test_manifest import MEMBERS

    yield json.dumps(MEMBERS).encode()
    yield from _vectors(".rsm-manifest")


def _metadata_records() -> Iterator[bytes]:
    segment = started("s", 0, 9, {0: 0, 2: 5})
    for value in (encode(segment), encode(moved(segment, COPY_FINISHED, b"custom"))):
        yield value
        yield batch_of(value, 1_700_000_000_000)
    rows = vectors_dir() / "aiven-tier" / "rlmm.jsonl"
    for line in rows.read_text(encoding="utf-8").splitlines()[:50] if rows.exists() else ():
        yield bytes.fromhex(json.loads(line)["value"])


def _snapshots() -> Iterator[bytes]:
    for count in (0, 3):
        catalog = Catalog(100)
        finish(catalog, *(started(f"s{number}", 10 * number, 10 * number + 9) for number in range(count)))
        with tempfile.TemporaryDirectory() as folder:
            file = SnapshotFile(Path(folder))
            file.draft(Snapshot(SnapshotOrigin("cluster", bytes(16), 3, 100), (3, 0, 7), 1, catalog.contents()))
            file.keep_draft()
            yield file.path.read_bytes()[:-4]


def _properties() -> Iterator[bytes]:
    yield PROPERTIES
    yield from _vectors(".properties")


def _vectors(suffix: str) -> Iterator[bytes]:
    for path in sorted(vectors_dir().rglob(f"*{suffix}")):
        if path.is_file():
            yield path.read_bytes()[:VECTOR_BYTES_MAX]


SEEDS: Final[Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "frame": _frames,
    "fetch_request": lambda: _requests(ApiKey.FETCH, FETCH_VERSIONS),
    "fetch_response": lambda: _responses(ApiKey.FETCH, FETCH_VERSIONS),
    "list_offsets": _list_offsets,
    "metadata": lambda: _responses(ApiKey.METADATA, METADATA_VERSIONS),
    "batches": _logs,
    "index": _indexes,
    "manifest": _manifests,
    "metadata_record": _metadata_records,
    "snapshot": _snapshots,
    "properties": _properties,
}
