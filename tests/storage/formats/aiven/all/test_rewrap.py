"""Data keys put under another key pair: what changes, what does not, and what is left when it is ended anywhere."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.errors import RemoteAccessDeniedError, RemoteStorageError, RetriableRemoteStorageError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.rewrap import RewrapOutcome, RewrapResult
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.object_store import ObjectStore
from tests.support.aiven_writer import make_key_pair
from tests.support.memory_store import Killed, MemoryStore, MortalStore
from tests.support.scripted_object_store import ScriptedObjectStore
from tests.support.segments import filled_segment
from tests.support.writing_tiers import PREFIX, aiven_config, copied, found_segment, object_key, private_keys, whole

NEVER = 1_000_000
SEGMENTS = [filled_segment(base, batch_count=3) for base in (0, 100, 200)]


@dataclass(frozen=True, slots=True)
class Tier:
    """Three segments under key1, one that is not encrypted, and one under key2, which is the active pair now."""

    folder: Path
    store: ScriptedObjectStore
    old: Sequence[RemoteLogSegmentMetadata]

    def manager(self, store: ObjectStore | None = None, *, active: str = "key2") -> AivenRemoteStorageManager:
        return AivenRemoteStorageManager(both_pairs(self.folder, active), store=store or self.store)

    def name(self, metadata: RemoteLogSegmentMetadata) -> str:
        return object_key(metadata, "rsm-manifest").removeprefix(PREFIX)

    def key_ids(self, store: ObjectStore | None = None) -> list[str]:
        """Return the key ids of the old segments, each of which is whole."""
        found = []
        for metadata, segment in zip(self.old, SEGMENTS, strict=True):
            decoded = found_segment(store or self.store, metadata, private_keys(self.folder, "key1", "key2"))
            assert decoded is not None
            assert decoded.files == segment.objects()
            found.append(decoded.manifest["encryption"]["dataKey"].partition(":")[0])
        return found


def both_pairs(folder: Path, active: str) -> dict[str, str]:
    pairs = {**make_key_pair(folder, "key1"), **make_key_pair(folder, "key2")}
    return {**aiven_config(folder), **pairs, "encryption.key.pairs": "key1,key2", "encryption.key.pair.id": active}


def make_tier(folder: Path, inner: ObjectStore) -> Tier:
    store = ScriptedObjectStore(inner)
    before = AivenRemoteStorageManager(both_pairs(folder, "key1"), store=store)
    old = [copied(before, folder / "local", segment) for segment in SEGMENTS]
    now = AivenRemoteStorageManager(both_pairs(folder, "key2"), store=store)
    copied(now, folder / "local", filled_segment(300))
    copied(AivenRemoteStorageManager(aiven_config(folder), store=store), folder / "local", filled_segment(400))
    store.put(f"{PREFIX}no-manifest-of-ours/x.rsm-manifest", b"not looked at")
    store.calls.clear()
    return Tier(folder, store, old)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return make_tier(tmp_path, MemoryStore())


def outcomes(results: Sequence[RewrapResult]) -> list[RewrapOutcome]:
    return [result.outcome for result in results]


REWRAPPED, CURRENT, PLAIN = RewrapOutcome.REWRAPPED, RewrapOutcome.CURRENT, RewrapOutcome.NOT_ENCRYPTED


def test_only_the_data_key_changes_and_a_second_run_finds_nothing_to_do(tier: Tier) -> None:
    reader = tier.manager(active="key1")
    opened = [reader.open_log_segment(metadata) for metadata in tier.old]
    before = {head.key: whole(tier.store, head.key) for head in tier.store.list("")}
    assert outcomes(list(tier.manager().rewrap(writes=True))) == [REWRAPPED, REWRAPPED, REWRAPPED, CURRENT, PLAIN]
    after = {head.key: whole(tier.store, head.key) for head in tier.store.list("")}
    changed = {key for key in before if before[key] != after[key]}
    assert set(before) == set(after)
    assert changed == {object_key(metadata, "rsm-manifest") for metadata in tier.old}
    for key in changed:
        old, new = (json.loads(found[key]) for found in (before, after))
        assert old["encryption"].pop("dataKey") != new["encryption"].pop("dataKey")
        assert json.dumps(old) == json.dumps(new), "the same members in the same order"
    assert tier.key_ids() == ["key2"] * 3
    for segment, known in zip(SEGMENTS, opened, strict=True):
        stream = known.open_stream(0, len(segment.log))
        assert stream.read(len(segment.log)) == segment.log, "who has the old manifest reads on"
        stream.close()
    assert outcomes(list(tier.manager().rewrap(writes=True))) == [CURRENT] * 4 + [PLAIN]
    for metadata in tier.old:
        found = tier.manager().inspect_segment(metadata)
        assert found.manifest_problem is None
        assert all(each.expected_bytes in (None, each.size_bytes) for each in found.objects)


@pytest.mark.parametrize("error", [Killed(), RemoteAccessDeniedError("no more")], ids=["killed", "failed"])
def test_a_run_that_ends_at_any_step_leaves_every_segment_whole(tmp_path: Path, error: BaseException) -> None:
    deadline, seen = 0, set()
    made = MemoryStore()
    tier = make_tier(tmp_path, made)
    mortal = MortalStore(made, NEVER, error)
    manager = tier.manager(mortal)
    while True:
        deadline += 1
        inner = MemoryStore(made.objects)
        mortal.restart(inner, deadline)
        with suppress(type(error)):
            list(manager.rewrap(writes=True))
        seen.add(tuple(tier.key_ids(inner)))
        if mortal.steps < deadline:
            break
        mortal.restart(inner, NEVER)
        assert RewrapOutcome.FAILED not in outcomes(list(manager.rewrap(writes=True)))
        assert tier.key_ids(inner) == ["key2"] * 3
    half_done = ("key1", "key2", "key2") if isinstance(error, RemoteStorageError) else ("key2", "key1", "key1")
    assert {("key1",) * 3, half_done, ("key2",) * 3} <= seen


def test_a_manifest_that_fails_is_named_and_the_others_are_done(tier: Tier) -> None:
    tier.store.put(object_key(tier.old[0], "rsm-manifest"), b"{}")
    results = list(tier.manager().rewrap(writes=True))
    assert outcomes(results) == [RewrapOutcome.FAILED, REWRAPPED, REWRAPPED, CURRENT, PLAIN]
    assert results[0].problem is not None
    assert "version is missing" in results[0].problem


def test_what_may_pass_is_tried_again(tier: Tier) -> None:
    tier.store.fail(RetriableRemoteStorageError("503"), "*.rsm-manifest")
    assert outcomes(list(tier.manager().rewrap(writes=True))) == [REWRAPPED, REWRAPPED, REWRAPPED, CURRENT, PLAIN]


def test_a_key_pair_that_is_gone_is_named(tier: Tier, tmp_path: Path) -> None:
    config = {**aiven_config(tmp_path), **make_key_pair(tmp_path, "key2")}
    results = list(AivenRemoteStorageManager(config, store=tier.store).rewrap(writes=True))
    assert outcomes(results) == [RewrapOutcome.FAILED] * 3 + [CURRENT, PLAIN]
    assert "wrapped by key pair 'key1'" in str(results[0].problem)


def test_a_segment_that_is_deleted_meanwhile_does_not_come_back(tier: Tier) -> None:
    class Deleting(MortalStore):
        """Somebody deletes the segment between the GET of its manifest and the put."""

        def put(self, key: str, source: object) -> None:
            tier.manager().delete_log_segment_data(tier.old[0])
            assert isinstance(source, bytes)
            self.inner.put(key, source)

    store = Deleting(tier.store, NEVER, RemoteStorageError("never"))
    results = tier.manager(store).rewrap(writes=True)
    assert next(results).outcome is RewrapOutcome.GONE
    assert [head.key for head in tier.store.list(object_key(tier.old[0], ""))] == []
