"""Every planted fault is found, once, and nothing else; healthy tiers have no findings."""

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copier.index_files import encode_leader_epochs
from storage.checks.finding import Finding, FindingKind
from storage.checks.segment_check import FAULTS_MAX, LogCheck, check_segment
from storage.errors import RemoteAccessDeniedError, RetriableRemoteStorageError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.log.log_walk import Depth, LogWalk
from storage.log.segment_scan import LogWindow
from storage.model import RemoteLogSegmentMetadata, uuid_to_text
from tests.support.checked_tier import CheckedTier, aiven_tier, cut, flip, local_tier, no_wait
from tests.support.frozen_tier import NAMES, Recorded, storage_config
from tests.support.one_segment import OneSegment
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, data_batch, metadata_of, publish, topic_partition

OpenTier = Callable[[Path], CheckedTier]
FORMATS: dict[str, OpenTier] = {
    "local": local_tier,
    "aiven": aiven_tier,
    "aiven compressed": partial(aiven_tier, compression=True),
    "aiven encrypted": partial(aiven_tier, encryption=True),
    "aiven compressed and encrypted": partial(aiven_tier, compression=True, encryption=True),
}
AIVEN = {name: opener for name, opener in FORMATS.items() if name != "local"}
LOCAL_SUFFIXES = ("log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint", "txnindex")


@pytest.fixture(params=list(FORMATS.values()), ids=list(FORMATS))
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> CheckedTier:
    opener: OpenTier = request.param
    return opener(tmp_path)


@pytest.fixture(params=list(AIVEN.values()), ids=list(AIVEN))
def aiven(request: pytest.FixtureRequest, tmp_path: Path) -> CheckedTier:
    opener: OpenTier = request.param
    return opener(tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> CheckedTier:
    return local_tier(tmp_path)


def path_of(tier: CheckedTier, number: int, suffix: str) -> Path:
    return tier.path(tier.metadatas[number], suffix)


def the_finding(tier: CheckedTier, number: int, suffix: str) -> Finding:
    """The only one, which names that object of the segment with this number."""
    (finding,) = tier.findings()
    assert finding.segment == uuid_to_text(tier.metadatas[number].segment_id.id)
    assert (finding.topic, finding.partition) == ("orders", 0)
    assert finding.object_name is not None
    assert str(path_of(tier, number, suffix)).endswith(finding.object_name)
    return finding


def manifest_of(tier: CheckedTier, metadata: RemoteLogSegmentMetadata) -> bytes:
    path = tier.path(metadata, "rsm-manifest")
    return path.read_bytes() if path.exists() else b""


# --- nothing to find ---


def test_a_healthy_tier_has_no_findings(tier: CheckedTier) -> None:
    assert tier.findings() == []
    assert tier.findings(deep=False) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_tier_that_a_real_broker_wrote_has_no_findings(name: str) -> None:
    manager = AivenRemoteStorageManager(storage_config())
    for segment in Recorded(name).segments:
        report = check_segment(manager, segment)
        assert report.findings == ()
        assert report.log_bytes == segment.segment_size_bytes
        assert report.records == segment.end_offset - segment.start_offset + 1
        assert report.batches > 10


def test_a_report_counts_what_was_looked_at(tier: CheckedTier) -> None:
    metadata = tier.metadatas[1]
    report = check_segment(tier.manager, metadata)
    present = [each for each in tier.manager.inspect_segment(metadata).objects if each.size_bytes is not None]
    assert report.objects == len(present)
    assert report.stored_bytes == sum(each.size_bytes or 0 for each in present)
    assert report.batches == 30 * 4 + 1
    assert report.records == metadata.end_offset - metadata.start_offset + 1
    assert report.log_bytes == metadata.segment_size_bytes
    assert report.findings == ()
    assert check_segment(tier.manager, metadata, deep=False).batches == 0


# --- the log ---


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_bit_in_a_batch_is_found(tier: CheckedTier, number: int) -> None:
    metadata = tier.metadatas[number]
    path = tier.path(metadata, "log")
    flip(path, position=path.stat().st_size // 3)
    found = tier.findings()
    # What zstd makes of a changed frame may have several batches wrong.
    is_compressed = b'"compression":true' in manifest_of(tier, metadata)
    assert len(found) == 1 or is_compressed
    for finding in found:
        assert finding.kind in (FindingKind.BATCH_CORRUPT, FindingKind.OBJECT_CORRUPT)
        assert finding.position is not None
        assert str(path).endswith(str(finding.object_name))


def test_faults_far_apart_are_found_each(local: CheckedTier) -> None:
    path = path_of(local, 0, "log")
    size = local.metadatas[0].segment_size_bytes
    for position in (100, size // 2, size - 5):
        flip(path, position)
    assert [finding.kind for finding in local.findings()] == [FindingKind.BATCH_CORRUPT] * 3


def test_chunks_that_cannot_be_decoded_are_found_each(tmp_path: Path) -> None:
    tier = aiven_tier(tmp_path, encryption=True)
    path = path_of(tier, 0, "log")
    for position in (100, path.stat().st_size // 2):
        flip(path, position)
    assert [finding.kind for finding in tier.findings()] == [FindingKind.OBJECT_CORRUPT] * 2


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_a_log_is_found_once(local: CheckedTier, data: st.DataObject) -> None:
    metadata = data.draw(st.sampled_from(local.metadatas))
    position = data.draw(st.integers(0, metadata.segment_size_bytes - 1))
    mask = data.draw(st.integers(1, 255))
    path = local.path(metadata, "log")
    flip(path, position, mask)
    try:
        (finding,) = check_segment(local.manager, metadata).findings
    finally:
        flip(path, position, mask)
    assert finding.object_name == str(path)


@pytest.mark.parametrize("size_bytes", [0, 1, 500, -1])
def test_a_truncated_log_is_found(tier: CheckedTier, size_bytes: int) -> None:
    cut(path_of(tier, 1, "log"), size_bytes)
    assert the_finding(tier, 1, "log").kind is FindingKind.OBJECT_SIZE


def test_a_log_with_more_behind_its_end_is_found(tier: CheckedTier) -> None:
    path = path_of(tier, 0, "log")
    path.write_bytes(path.read_bytes() + b"x")
    assert the_finding(tier, 0, "log").kind is FindingKind.OBJECT_SIZE


def test_a_log_without_batches_in_its_middle_is_found(local: CheckedTier) -> None:
    """As if appends were lost: every batch that is there is sound. The rest is filled up with the last ones again."""
    metadata = local.metadatas[0]
    path = local.path(metadata, "log")
    log = path.read_bytes()
    first_bytes = int.from_bytes(log[8:12], "big") + 12
    path.write_bytes(log[first_bytes:])
    shorter = replace(metadata, segment_size_bytes=metadata.segment_size_bytes - first_bytes)
    report = check_segment(local.manager, shorter)
    assert {finding.kind for finding in report.findings} == {FindingKind.OFFSETS, FindingKind.INDEX}
    assert [finding.position for finding in report.findings if finding.kind is FindingKind.OFFSETS] == [0]


# --- absent objects ---


@pytest.mark.parametrize("suffix", LOCAL_SUFFIXES)
def test_an_absent_object_is_found(local: CheckedTier, suffix: str) -> None:
    path_of(local, 1, suffix).unlink()
    finding = the_finding(local, 1, suffix)
    assert finding.kind is (FindingKind.INDEX if suffix == "txnindex" else FindingKind.OBJECT_MISSING)


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_an_absent_object_of_aivens_format_is_found(aiven: CheckedTier, suffix: str) -> None:
    path_of(aiven, 1, suffix).unlink()
    assert the_finding(aiven, 1, suffix).kind is FindingKind.OBJECT_MISSING


def test_metadata_without_any_object_are_found_once(tier: CheckedTier) -> None:
    metadata = tier.metadatas[2]
    for suffix in (*LOCAL_SUFFIXES, "indexes", "rsm-manifest"):
        tier.path(metadata, suffix).unlink(missing_ok=True)
    (finding,) = tier.findings()
    assert (finding.kind, finding.segment) == (FindingKind.SEGMENT_MISSING, uuid_to_text(metadata.segment_id.id))


# --- indexes ---


@pytest.mark.parametrize(
    ("suffix", "position"),
    [("index", 3), ("index", 7), ("index", -1), ("timeindex", 7), ("timeindex", 10), ("timeindex", -8)]
    + [("txnindex", position) for position in (1, 9, 17, 25, 33)]
    + [("snapshot", position) for position in (1, 3, 9, 20)]
    + [("leader_epoch_checkpoint", position) for position in (0, 2, 4, 8, 10)],
)
def test_a_flipped_bit_in_an_index_is_found(local: CheckedTier, suffix: str, position: int) -> None:
    flip(path_of(local, 1, suffix), position)
    assert the_finding(local, 1, suffix).kind is FindingKind.INDEX


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex", "snapshot", "leader_epoch_checkpoint"])
@pytest.mark.parametrize("size_bytes", [-1, 3, 0])
def test_a_truncated_index_is_found(local: CheckedTier, suffix: str, size_bytes: int) -> None:
    cut(path_of(local, 1, suffix), size_bytes)
    assert the_finding(local, 1, suffix).kind is FindingKind.INDEX


@pytest.mark.parametrize(("suffix", "entry_bytes"), [("index", 8), ("timeindex", 12), ("txnindex", 34)])
@pytest.mark.parametrize("entries", [1, 2])
def test_an_index_cut_between_entries_is_found(local: CheckedTier, suffix: str, entry_bytes: int, entries: int) -> None:
    if suffix == "txnindex":
        entries += 1  # of the last one the transaction began in another segment
    cut(path_of(local, 1, suffix), -entries * entry_bytes)
    assert the_finding(local, 1, suffix).kind is FindingKind.INDEX


def test_a_flipped_bit_in_the_indexes_of_aivens_format_is_found(aiven: CheckedTier) -> None:
    flip(path_of(aiven, 1, "indexes"), 3)
    assert the_finding(aiven, 1, "indexes").kind is FindingKind.INDEX


def test_indexes_that_are_no_indexes_at_all_are_found_once(tmp_path: Path) -> None:
    tier = aiven_tier(tmp_path, encryption=True)
    path = path_of(tier, 1, "indexes")
    path.write_bytes(bytes(path.stat().st_size))
    assert the_finding(tier, 1, "indexes").kind is FindingKind.OBJECT_CORRUPT


@pytest.mark.parametrize("size_bytes", [0, 100, -1])
def test_a_truncated_object_of_indexes_is_found(aiven: CheckedTier, size_bytes: int) -> None:
    cut(path_of(aiven, 1, "indexes"), size_bytes)
    assert the_finding(aiven, 1, "indexes").kind is FindingKind.OBJECT_SIZE


def test_a_checkpoint_of_another_history_is_found(local: CheckedTier) -> None:
    path_of(local, 2, "leader_epoch_checkpoint").write_bytes(encode_leader_epochs([(0, 0), (2, 300)]))
    assert the_finding(local, 2, "leader_epoch_checkpoint").kind is FindingKind.INDEX


# --- manifests ---


@pytest.mark.parametrize("size_bytes", [0, 10, -1])
def test_a_truncated_manifest_is_found(aiven: CheckedTier, size_bytes: int) -> None:
    cut(path_of(aiven, 0, "rsm-manifest"), size_bytes)
    assert the_finding(aiven, 0, "rsm-manifest").kind is FindingKind.MANIFEST


@pytest.mark.parametrize(
    "member",
    [
        b'"version":"',
        b'"originalChunkSize":',
        b'"originalFileSize":',
        b'"offset":{"position":',
        b'"leaderEpoch":{"position":',
        b'"compression":',
        b'"id":"',
        b'"topicId":"',
        b'"startOffset":',
        b'"endOffset":',
        b'"maxTimestampMs":',
        b'"segmentLeaderEpochs":{"',
        b'"chunkInd',
    ],
)
def test_a_flipped_bit_in_a_manifest_is_found(aiven: CheckedTier, member: bytes) -> None:
    path = path_of(aiven, 2, "rsm-manifest")
    flip(path, path.read_bytes().index(member) + len(member))
    assert the_finding(aiven, 2, "rsm-manifest").kind is FindingKind.MANIFEST


@pytest.mark.parametrize("member", [b'"dataKey":"key1:', b'"aad":"', b'"encrypti'])
def test_a_manifest_by_which_nothing_can_be_decrypted_is_found_once(tmp_path: Path, member: bytes) -> None:
    tier = aiven_tier(tmp_path, compression=True, encryption=True)
    path = path_of(tier, 2, "rsm-manifest")
    flip(path, path.read_bytes().index(member) + len(member), mask=0x02)
    assert the_finding(tier, 2, "rsm-manifest").kind is FindingKind.MANIFEST


def test_metadata_that_are_not_the_manifests_are_found(aiven: CheckedTier) -> None:
    aiven.metadatas[0] = replace(aiven.metadatas[0], max_timestamp_ms=aiven.metadatas[0].max_timestamp_ms + 1)
    finding = the_finding(aiven, 0, "rsm-manifest")
    assert finding.kind is FindingKind.MANIFEST
    assert "maxTimestampMs" in finding.detail


# --- objects of two segments, exchanged ---


@pytest.mark.parametrize("suffix", ["index", "timeindex", "leader_epoch_checkpoint"])
def test_exchanged_indexes_are_found_once_each(local: CheckedTier, suffix: str) -> None:
    paths = exchange(local, suffix, 0, 2)
    found = local.findings()
    assert sorted(str(finding.object_name) for finding in found) == sorted(paths)
    assert {finding.kind for finding in found} == {FindingKind.INDEX}


def test_exchanged_logs_are_found_once_each(tier: CheckedTier) -> None:
    paths = exchange(tier, "log", 0, 2)
    found = tier.findings()
    assert len(found) == 2
    assert all(any(path.endswith(str(finding.object_name)) for path in paths) for finding in found)


@pytest.mark.parametrize("suffix", ["rsm-manifest", "indexes"])
def test_exchanged_objects_of_aivens_format_are_found(aiven: CheckedTier, suffix: str) -> None:
    paths = exchange(aiven, suffix, 0, 2)
    found = aiven.findings()
    named = {path for path in paths for finding in found if path.endswith(str(finding.object_name))}
    assert named == set(paths)
    assert all(str(finding.object_name).endswith(suffix) for finding in found)


def exchange(tier: CheckedTier, suffix: str, one: int, other: int) -> list[str]:
    paths = [path_of(tier, number, suffix) for number in (one, other)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    return [str(path) for path in paths]


# --- the store in trouble ---


def test_trouble_that_passes_is_not_found(local: CheckedTier) -> None:
    store = ScriptedStore(local.manager)
    store.fail(RetriableRemoteStorageError("503"), times=3)
    assert check_segment(store, local.metadatas[1], wait=no_wait).findings == ()


@pytest.mark.parametrize("error", [RetriableRemoteStorageError("503"), RemoteAccessDeniedError("403")])
def test_trouble_that_stays_says_that_the_segment_was_not_checked(local: CheckedTier, error: Exception) -> None:
    store = ScriptedStore(local.manager)
    store.fail(error, times=None)
    report = check_segment(store, local.metadatas[1], wait=no_wait)
    assert [finding.kind for finding in report.findings] == [FindingKind.NOT_CHECKED]
    assert str(error) in report.findings[0].detail


def test_a_check_holds_little_of_a_large_segment(tmp_path: Path) -> None:
    """20 MiB of log, most of it one batch."""
    mib = 1024 * 1024
    batches = [data_batch(number, value_bytes=mib) for number in range(8)]
    segment = build_segment([*batches, data_batch(8, value_bytes=12 * mib)])
    metadata = publish(tmp_path, topic_partition(), segment)
    manager = LocalTieredStorage({"dir": str(tmp_path)})
    tracemalloc.start()
    try:
        report = check_segment(manager, metadata)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (report.findings, report.batches) == ((), 9)
    assert peak_bytes < 6 * mib


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


def test_records_that_compaction_took_out_of_a_batch_are_no_gap() -> None:
    assert check([data_batch(0, record_count=2, last_offset_delta=4), *FOUR[1:]]).findings == []


def test_a_gap_is_found_once_where_it_ends() -> None:
    assert found(check([FOUR[0], *FOUR[2:]])) == [(FindingKind.OFFSETS, len(FOUR[0]))]


@pytest.mark.parametrize("base_offset", [3, 0, 7, 14, 15, 1 << 40])
def test_a_wrong_base_offset_is_found_once(base_offset: int) -> None:
    """As a bit flip makes it: no CRC covers it."""
    wrong = base_offset.to_bytes(8, "big") + FOUR[1][8:]
    assert found(check([FOUR[0], wrong, *FOUR[2:]])) == [(FindingKind.OFFSETS, len(FOUR[0]))]


def test_a_repeated_batch_is_found_once() -> None:
    assert found(check([FOUR[0], FOUR[1], FOUR[1], *FOUR[2:]])) == [(FindingKind.OFFSETS, len(FOUR[0] + FOUR[1]))]


@pytest.mark.parametrize("start", [1, 20, 1000])
def test_another_segments_log_is_found_once(start: int) -> None:
    assert found(check(FOUR, start=start, end=start + 19)) == [(FindingKind.OFFSETS, 0)]


def test_a_log_that_ends_before_its_segment_is_found() -> None:
    assert found(check(FOUR[:3])) == [(FindingKind.OFFSETS, sum(map(len, FOUR[:3])))]


def test_a_log_that_goes_on_behind_its_segment_is_found() -> None:
    assert found(check(FOUR, end=17)) == [(FindingKind.OFFSETS, sum(map(len, FOUR[:3])))]


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
    batches = [data_batch(3 * number) for number in range(FAULTS_MAX + 50)]
    checked = check(batches, end=3 * len(batches))
    assert len(checked.findings) == FAULTS_MAX + 1
    assert checked.findings[-1].kind is FindingKind.NOT_CHECKED


def test_a_log_that_is_no_log_ends_after_so_many_faults() -> None:
    batches = [bytearray(data_batch(number, value_bytes=20)) for number in range(FAULTS_MAX + 10)]
    for batch in batches:
        batch[-1] ^= 1
    checked = check([bytes(batch) for batch in batches], end=len(batches) - 1)
    assert [finding.kind for finding in checked.findings[:-1]] == [FindingKind.BATCH_CORRUPT] * FAULTS_MAX
    assert "the batch of offset 0: its CRC is wrong" in checked.findings[0].detail
    assert checked.findings[-1].kind is FindingKind.NOT_CHECKED
