"""Copies in Aiven's format that end at any of their steps."""

from contextlib import suppress
from pathlib import Path

from storage.errors import RemoteStorageError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from tests.support.memory_store import MemoryStore, MortalStore
from tests.support.segments import filled_segment, metadata_of
from tests.support.writing_tiers import PARTITION, aiven_config, copied, found_segment, private_keys

SEGMENT = filled_segment(100, batch_count=4)


FORMER = filled_segment(100, batch_count=7)


METADATA = metadata_of(PARTITION, SEGMENT)


BEGINNING = 3
"""Steps until the former copy's manifest is gone."""


NEVER = 1_000_000


def leaves_a_whole_segment_or_none(
    tmp_path: Path, compression: bool, encryption: bool, error: BaseException, with_former: bool
) -> None:
    config = aiven_config(tmp_path, compression=compression, encryption=encryption)
    keys = private_keys(tmp_path, "key1") if encryption else {}
    former = MemoryStore()
    if with_former:
        copied(AivenRemoteStorageManager(config, store=former), tmp_path / "former", FORMER)
    outcomes, deadline = set(), 0
    mortal = MortalStore(former, 0, error)
    manager = AivenRemoteStorageManager(config, store=mortal)
    while True:
        deadline += 1
        inner = MemoryStore(former.objects)
        mortal.restart(inner, deadline)
        with suppress(type(error)):
            copied(manager, tmp_path / "local", SEGMENT)
        found = found_segment(inner, METADATA, keys)
        outcomes.add(None if found is None else found.files["log"])
        assert found is None or found.files in (SEGMENT.objects(), FORMER.objects())
        if mortal.steps < deadline:
            break
        if found is None and isinstance(error, RemoteStorageError) and deadline > BEGINNING:
            assert inner.objects == {}, "what was uploaded is cleaned up"
        # What is left over is in nobody's way.
        mortal.restart(inner, NEVER)
        copied(manager, tmp_path / "local", SEGMENT)
        whole = found_segment(inner, METADATA, keys)
        assert whole is not None
        assert whole.files == SEGMENT.objects()
    assert outcomes == {None, SEGMENT.log, *([FORMER.log] if with_former else [])}
