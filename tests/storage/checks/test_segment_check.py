"""Every planted fault is found, once, and nothing else; healthy tiers have no findings."""

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from protocol.record_batches import read_header
from storage.checks.batch_audit import FAULTS_MAX, LogCheck, check_segment
from storage.checks.finding import Finding, FindingKind
from storage.errors import RemoteAccessDeniedError, RetriableRemoteStorageError
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.indexes.leader_epochs import encode_leader_epochs
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex, encode_transaction_index
from storage.log.log_walk import Depth, LogWalk
from storage.log.segment_scan import LogWindow
from storage.log.transaction_check import TransactionIndexCheck
from storage.model import uuid_to_text
from tests.support.cases import case
from tests.support.checked_tier import CheckedTier, aiven_tier, cut, flip, local_tier, no_wait
from tests.support.drawn import drawn
from tests.support.one_segment import OneSegment
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    build_segment,
    control_batch,
    data_batch,
    metadata_of,
    publish,
    topic_partition,
)

OpenTier = Callable[[Path], CheckedTier]
Damage = Callable[[Path], object]
FORMATS: dict[str, OpenTier] = {
    "local": local_tier,
    "aiven": aiven_tier,
    "aiven compressed": partial(aiven_tier, compression=True),
    "aiven encrypted": partial(aiven_tier, encryption=True),
    "aiven compressed and encrypted": partial(aiven_tier, compression=True, encryption=True),
}
SUFFIXES = ("log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint", "txnindex", "indexes", "rsm-manifest")


@pytest.fixture(params=list(FORMATS))
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> CheckedTier:
    return FORMATS[request.param](tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> CheckedTier:
    return local_tier(tmp_path)


def is_local(tier: CheckedTier) -> bool:
    return isinstance(tier.manager, LocalTieredStorage)


def path_of(tier: CheckedTier, number: int, suffix: str) -> Path:
    return tier.path(tier.metadatas[number], suffix)


@contextmanager
def damaged(tier: CheckedTier, number: int, suffix: str, damage: Damage) -> Iterator[Path]:
    """That object of the segment with this number is another for a while."""
    path = path_of(tier, number, suffix)
    content = path.read_bytes()
    damage(path)
    with case(suffix, damage):
        yield path
    path.write_bytes(content)


def flipped(position: int, mask: int = 0x01) -> Damage:
    return partial(flip, position=position, mask=mask)


def flipped_behind(member: bytes, mask: int = 0x01) -> Damage:
    return lambda path: flip(path, path.read_bytes().index(member) + len(member), mask)


def cut_to(size_bytes: int) -> Damage:
    return partial(cut, size_bytes=size_bytes)


def replaced(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


def the_finding(tier: CheckedTier, number: int, suffix: str) -> Finding:
    """The only one, which names that object of the segment with this number."""
    (finding,) = tier.findings()
    assert finding.segment == uuid_to_text(tier.metadatas[number].segment_id.id)
    assert (finding.topic, finding.partition) == ("orders", 0)
    assert finding.object_name is not None
    assert str(path_of(tier, number, suffix)).endswith(finding.object_name)
    return finding


# --- nothing to find ---


def test_a_healthy_tier_has_no_findings_and_its_report_counts_what_was_looked_at(tier: CheckedTier) -> None:
    assert tier.findings() == []
    assert tier.findings(deep=False) == []
    metadata = tier.metadatas[1]
    report = check_segment(tier.manager, metadata)
    present = [each for each in tier.manager.inspect_segment(metadata).objects if each.size_bytes is not None]
    assert report.objects == len(present)
    assert report.stored_bytes == sum(each.size_bytes or 0 for each in present)
    assert report.batches == 30 * 4 + 1
    assert report.records == metadata.end_offset - metadata.start_offset + 1
    assert report.log_bytes == metadata.segment_size_bytes
    assert check_segment(tier.manager, metadata, deep=False).batches == 0


# --- one damage, one finding ---

_ENTRY_BYTES = {"index": 8, "timeindex": 12, "txnindex": 34}
_FLIPPED_AT = {
    "index": (3, 7, -1),
    "timeindex": (7, 10, -8),
    "txnindex": (1, 9, 17, 25, 33),
    "snapshot": (1, 3, 9, 20),
    "leader_epoch_checkpoint": (0, 2, 4, 8, 10),
}
LOCAL_DAMAGES: list[tuple[int, str, Damage, FindingKind]] = [
    *[(1, suffix, Path.unlink, FindingKind.OBJECT_MISSING) for suffix in ("log", *_FLIPPED_AT) if suffix != "txnindex"],
    (1, "txnindex", Path.unlink, FindingKind.INDEX),
    *[(1, suffix, flipped(at), FindingKind.INDEX) for suffix, places in _FLIPPED_AT.items() for at in places],
    *[(1, suffix, cut_to(size_bytes), FindingKind.INDEX) for suffix in _FLIPPED_AT for size_bytes in (-1, 3, 0)],
    # Between entries; one more of transactions, since the last one began in another segment.
    *[
        (1, suffix, cut_to(-(entries + (suffix == "txnindex")) * entry_bytes), FindingKind.INDEX)
        for suffix, entry_bytes in _ENTRY_BYTES.items()
        for entries in (1, 2)
    ],
    # From another history.
    (2, "leader_epoch_checkpoint", replaced(encode_leader_epochs([(0, 0), (2, 300)])), FindingKind.INDEX),
]
_MEMBERS = (
    b'"version":" "originalChunkSize": "originalFileSize": "offset":{"position": "leaderEpoch":{"position":'
    b' "compression": "id":" "topicId":" "startOffset": "endOffset": "maxTimestampMs":'
    b' "segmentLeaderEpochs":{" "chunkInd'
).split()
AIVEN_DAMAGES: list[tuple[int, str, Damage, FindingKind]] = [
    *[(1, suffix, Path.unlink, FindingKind.OBJECT_MISSING) for suffix in ("log", "indexes", "rsm-manifest")],
    (1, "indexes", flipped(3), FindingKind.INDEX),
    *[(1, "indexes", cut_to(size_bytes), FindingKind.OBJECT_SIZE) for size_bytes in (0, 100, -1)],
    *[(0, "rsm-manifest", cut_to(size_bytes), FindingKind.MANIFEST) for size_bytes in (0, 10, -1)],
    *[(2, "rsm-manifest", flipped_behind(member), FindingKind.MANIFEST) for member in _MEMBERS],
]
LOG_DAMAGES: list[tuple[int, str, Damage, FindingKind]] = [
    *[(1, "log", cut_to(size_bytes), FindingKind.OBJECT_SIZE) for size_bytes in (0, 1, 500, -1)],
    (0, "log", lambda path: path.write_bytes(path.read_bytes() + b"x"), FindingKind.OBJECT_SIZE),
]


def test_a_damaged_object_is_one_finding_that_names_it(tier: CheckedTier) -> None:
    for number, suffix, damage, kind in LOG_DAMAGES + (LOCAL_DAMAGES if is_local(tier) else AIVEN_DAMAGES):
        with damaged(tier, number, suffix, damage):
            assert the_finding(tier, number, suffix).kind is kind


def test_what_can_be_decrypted_no_more_is_found_once(tmp_path: Path) -> None:
    tier = aiven_tier(tmp_path, compression=True, encryption=True)
    for member in (b'"dataKey":"key1:', b'"aad":"', b'"encrypti'):
        with damaged(tier, 2, "rsm-manifest", flipped_behind(member, mask=0x02)):
            assert the_finding(tier, 2, "rsm-manifest").kind is FindingKind.MANIFEST
    with damaged(tier, 1, "indexes", lambda path: path.write_bytes(bytes(path.stat().st_size))):
        assert the_finding(tier, 1, "indexes").kind is FindingKind.OBJECT_CORRUPT


def test_metadata_without_any_object_are_found_once(tier: CheckedTier) -> None:
    for suffix in SUFFIXES:
        path_of(tier, 2, suffix).unlink(missing_ok=True)
    (finding,) = tier.findings()
    segment = uuid_to_text(tier.metadatas[2].segment_id.id)
    assert (finding.kind, finding.segment) == (FindingKind.SEGMENT_MISSING, segment)


def test_metadata_that_are_not_the_manifests_are_found(tmp_path: Path) -> None:
    for name in ("aiven", "aiven compressed and encrypted"):
        tier = FORMATS[name](tmp_path / name)
        tier.metadatas[0] = replace(tier.metadatas[0], max_timestamp_ms=tier.metadatas[0].max_timestamp_ms + 1)
        finding = the_finding(tier, 0, "rsm-manifest")
        assert finding.kind is FindingKind.MANIFEST
        assert "maxTimestampMs" in finding.detail


# --- the log ---


def test_a_flipped_bit_in_a_batch_is_found(tier: CheckedTier) -> None:
    for number in range(3):
        size_bytes = path_of(tier, number, "log").stat().st_size
        with damaged(tier, number, "log", flipped(size_bytes // 3)) as path:
            found = tier.findings()
            # What zstd makes of a changed frame may have several batches wrong.
            is_compressed = (
                not is_local(tier) and b'"compression":true' in path_of(tier, number, "rsm-manifest").read_bytes()
            )
            assert len(found) == 1 or is_compressed
            for finding in found:
                assert finding.kind in (FindingKind.BATCH_CORRUPT, FindingKind.OBJECT_CORRUPT)
                assert finding.position is not None
                assert str(path).endswith(str(finding.object_name))


@drawn(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_a_log_is_found_once(local: CheckedTier, data: st.DataObject) -> None:
    number = data.draw(st.sampled_from(range(3)))
    metadata = local.metadatas[number]
    position = data.draw(st.integers(0, metadata.segment_size_bytes - 1))
    with damaged(local, number, "log", flipped(position, data.draw(st.integers(1, 255)))) as path:
        (finding,) = check_segment(local.manager, metadata).findings
        assert finding.object_name == str(path)


def test_a_log_without_its_first_batch_is_found_by_its_indexes(local: CheckedTier) -> None:
    """As if an append were lost: every batch that is there is sound."""
    metadata = local.metadatas[0]
    path = local.path(metadata, "log")
    log = path.read_bytes()
    first_bytes = int.from_bytes(log[8:12], "big") + 12
    path.write_bytes(log[first_bytes:])
    shorter = replace(metadata, segment_size_bytes=metadata.segment_size_bytes - first_bytes)
    report = check_segment(local.manager, shorter)
    assert {finding.kind for finding in report.findings} == {FindingKind.INDEX}
    assert report.holes == 1


# --- objects of two segments, exchanged ---


def test_exchanged_objects_are_found_and_nothing_else(tier: CheckedTier) -> None:
    suffixes = ("index", "timeindex", "leader_epoch_checkpoint") if is_local(tier) else ("rsm-manifest", "indexes")
    for suffix in ("log", *suffixes):
        paths = [path_of(tier, number, suffix) for number in (0, 2)]
        contents = [path.read_bytes() for path in paths]
        with damaged(tier, 0, suffix, replaced(contents[1])), damaged(tier, 2, suffix, replaced(contents[0])):
            found = tier.findings()
        named = {str(path) for path in paths for finding in found if str(path).endswith(str(finding.object_name))}
        assert named == {str(path) for path in paths}, suffix
        assert all(str(finding.object_name).endswith(suffix) for finding in found)
        assert len(found) == 2 or not (suffix == "log" or is_local(tier))
        assert {finding.kind for finding in found} == {FindingKind.INDEX} or suffix not in _FLIPPED_AT


# --- the store in trouble ---


def test_trouble_that_passes_is_not_found_and_what_stays_says_so(local: CheckedTier) -> None:
    store = ScriptedStore(local.manager)
    store.fail(RetriableRemoteStorageError("503"), times=3)
    assert check_segment(store, local.metadatas[1], wait=no_wait).findings == ()
    for error in (RetriableRemoteStorageError("503"), RemoteAccessDeniedError("403")):
        store.heal()
        store.fail(error, times=None)
        (finding,) = check_segment(store, local.metadatas[1], wait=no_wait).findings
        assert finding.kind is FindingKind.NOT_CHECKED
        assert str(error) in finding.detail


def test_a_check_holds_little_of_a_large_segment(tmp_path: Path) -> None:
    """20 MiB of log, most of it one batch."""
    mib = 1024 * 1024
    batches = [data_batch(number, value_bytes=mib) for number in range(8)]
    segment = build_segment([*batches, data_batch(8, value_bytes=12 * mib)])
    metadata = publish(tmp_path, topic_partition(), segment)
    manager = LocalTieredStorage({"dir": str(tmp_path)})
    peaks_bytes = []
    for _ in range(3):  # threads of tests before it may allocate beside it
        tracemalloc.start()
        try:
            report = check_segment(manager, metadata)
            peaks_bytes.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert (report.findings, report.batches) == ((), 9)
    assert min(peaks_bytes) < 6 * mib


# --- batches against metadata: offsets, leader epochs, timestamps ---


FOUR = [data_batch(offset, record_count=5) for offset in (0, 5, 10, 15)]


def check(
    batches: Sequence[bytes],
    *,
    start: int = 0,
    end: int = 19,
    epochs: Mapping[int, int] | None = None,
    max_timestamp_ms: int | None = None,
) -> LogCheck:
    segment = build_segment(list(batches))
    metadata = replace(
        metadata_of(topic_partition(), segment),
        start_offset=start,
        end_offset=end,
        segment_leader_epochs=epochs or {0: start},
    )
    if max_timestamp_ms is not None:
        metadata = replace(metadata, max_timestamp_ms=max_timestamp_ms)
    size_bytes = len(segment.log)
    window = LogWindow(OneSegment(segment), metadata, size_bytes, piece_bytes=size_bytes, range_bytes=size_bytes)
    checked = LogCheck(metadata, "a.log")
    checked.run(window.drive(LogWalk(metadata, 0, size_bytes, Depth.CHECKSUMS, recovers=True).steps()), ())
    return checked


def found(checked: LogCheck) -> list[tuple[FindingKind, int | None]]:
    return [(finding.kind, finding.position) for finding in checked.findings]


def test_offsets_that_follow_one_another_have_no_findings() -> None:
    checked = check(FOUR)
    assert checked.findings == []
    assert (checked.batch_count, checked.record_count, checked.byte_count) == (4, 20, sum(map(len, FOUR)))
    # Compaction took the last records out of the first batch: that is no gap.
    assert check([data_batch(0, record_count=2, last_offset_delta=4), *FOUR[1:]]).findings == []


def test_holes_are_counted_and_no_findings() -> None:
    """Failed before: what compaction left was told as damage."""
    for batches, start, end, holes in (
        (FOUR, 0, 19, 0),
        ([FOUR[0], *FOUR[2:]], 0, 19, 1),
        ([FOUR[0], FOUR[2]], 0, 19, 2),
        (FOUR[1:3], 0, 19, 2),
        (FOUR[:3], 0, 19, 1),
        (FOUR[1:], 2, 30, 2),
        ([data_batch(0, record_count=0, last_offset_delta=3), *FOUR[1:]], 0, 19, 1),
    ):
        checked = check(batches, start=start, end=end)
        assert (checked.findings, checked.hole_count) == ([], holes)
    # Compaction took all of a transaction's batches, and rewrote no entry of the index.
    batches = [
        data_batch(0, record_count=2),
        control_batch(8, producer_id=7, commit=False),
        data_batch(9, record_count=3),
    ]
    for first_offset, stable_offset, is_found in ((4, 9, False), (4, 3, False), (1, 9, True), (4, 1, True)):
        index = TransactionIndex(encode_transaction_index([AbortedTransaction(7, first_offset, 8, stable_offset)]))
        segment = build_segment(batches)
        check_of_index = TransactionIndexCheck(index, segment.base_offset)
        position = 0
        for batch in batches:
            header = read_header(batch, 0)
            check_of_index.batch(position, header, True, is_abort=True if header.is_control else None)
            position += len(batch)
        check_of_index.finish(True)
        assert (check_of_index.problems.first is not None) is is_found, (first_offset, stable_offset)


def test_offsets_that_do_not_follow_are_found_once() -> None:
    one, two, three = (sum(map(len, FOUR[:count])) for count in (1, 2, 3))
    # As a bit flip makes it, as no CRC covers it. The batch that follows shows that it came too soon.
    for base_offset, position in ((3, one), (0, one), (7, two), (14, two), (15, two), (1 << 40, one)):
        wrong = base_offset.to_bytes(8, "big") + FOUR[1][8:]
        assert found(check([FOUR[0], wrong, *FOUR[2:]])) == [(FindingKind.OFFSETS, position)], base_offset
    assert found(check([FOUR[0], FOUR[1], *FOUR[1:]])) == [(FindingKind.OFFSETS, 2 * one)], "a batch twice"
    for start in (1, 20, 1000):
        assert found(check(FOUR, start=start, end=start + 19)) == [(FindingKind.OFFSETS, 0)], "another segment's log"
    assert found(check(FOUR, end=17)) == [(FindingKind.OFFSETS, three)], "it goes on behind its segment"


def test_leader_epochs_are_the_metadatas() -> None:
    batches = [data_batch(offset, record_count=5, leader_epoch=epoch) for offset, epoch in ((0, 2), (5, 2), (10, 5))]
    assert check(batches, end=14, epochs={2: 0, 5: 10}).findings == []
    assert check(batches, end=14, epochs={2: 0, 3: 10, 5: 10}).findings == [], "epoch 3 has no records"
    assert found(check(batches, end=14, epochs={2: 0, 5: 5})) == [(FindingKind.LEADER_EPOCH, len(batches[0]))]


def test_batches_below_the_first_epoch_that_the_metadata_know_are_not_judged() -> None:
    assert check([data_batch(0, record_count=5, leader_epoch=1), *FOUR[1:]], epochs={0: 5}).findings == []


def test_a_log_newer_than_its_metadata_is_found() -> None:
    newest_ms = FIRST_TIMESTAMP_MS + 19
    assert check(FOUR, max_timestamp_ms=newest_ms + 5).findings == [], "harmless: a look-up comes by in vain"
    assert found(check(FOUR, max_timestamp_ms=newest_ms - 1)) == [(FindingKind.TIMESTAMP, None)]


def test_findings_of_one_log_end_somewhere() -> None:
    batches = [data_batch(number, record_count=2) for number in range(2 * (FAULTS_MAX + 50))]  # each second overlaps
    checked = check(batches, end=len(batches))
    assert len(checked.findings) == FAULTS_MAX + 1
    assert checked.findings[-1].kind is FindingKind.NOT_CHECKED
