"""Writing to each store, ended at every single request: what the store has seen then is what it sees of a process that
was killed, and neither half a segment nor half a manifest is ever taken for a whole one."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage.errors import RemoteStorageError
from storage.formats.aiven.config import KeyRing
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.rewrap import Rewrap, RewrapOutcome
from storage.object_store.azure.store import AzureStore
from storage.object_store.gcs.store import GcsStore
from storage.object_store.object_store import ObjectStore
from storage.object_store.s3.store import S3Store
from storage.object_store.uploads import UploadRetries
from tests.support.aiven_tier import StoreServer
from tests.support.aiven_writer import make_key_pair
from tests.support.azurite import AzureServer
from tests.support.fake_gcs import GcsServer
from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import S3Server
from tests.support.segments import filled_segment, metadata_of, segment_files
from tests.support.writing_tiers import (
    PARTITION,
    PREFIX,
    aiven_config,
    copied,
    found_segment,
    object_key,
    private_keys,
    whole,
)

SEGMENT = filled_segment(100)
FORMER = filled_segment(100, batch_count=7)
OLD = [filled_segment(base, batch_count=3) for base in (300, 400)]

Stores = pytest.mark.parametrize(
    "server",
    [
        pytest.param("gateway", marks=pytest.mark.needs("versitygw")),
        pytest.param("gcs", marks=pytest.mark.needs("fake-gcs-server")),
        pytest.param("azure", marks=pytest.mark.needs("azurite")),
    ],
    indirect=True,
)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> StoreServer:
    found: StoreServer = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True, slots=True)
class World:
    """One bucket: `mortal` is a process' way to it that may end, `store` everybody else's."""

    front: S3Front
    mortal: ObjectStore
    store: ObjectStore
    part_bytes: int

    def ends(self, act: Callable[[], object]) -> Iterator[bool]:
        """Do it until it is not cut off any more, each time a request later; whether it was."""
        after, was_cut_off = 0, True
        while was_cut_off:
            self.front.cut_off(after=after)
            with suppress(RemoteStorageError):
                act()
            was_cut_off = self.front.is_cut_off()
            self.front.heal()
            yield was_cut_off
            after += 1


@pytest.fixture
def world(server: StoreServer) -> Iterator[World]:
    bucket = server.make_bucket()
    part_bytes = 5 * 1024 * 1024 if isinstance(server, S3Server) else 512 * 1024
    with (
        s3_front(server.endpoint_url) as front,
        closing(opened(server.at(front.endpoint_url), bucket, part_bytes)) as mortal,
        closing(opened(server, bucket, part_bytes)) as store,
    ):
        yield World(front, mortal, store, part_bytes)


def opened(server: StoreServer, bucket: str, part_bytes: int) -> ObjectStore:
    """Nothing is tried again: nobody answers any more."""
    once = UploadRetries(1)
    if isinstance(server, GcsServer):
        return GcsStore(server.settings(bucket, chunk_bytes=part_bytes), retries=once)
    if isinstance(server, AzureServer):
        return AzureStore(server.settings(bucket, block_bytes=part_bytes), retries=once)
    assert isinstance(server, S3Server)
    return S3Store(server.settings(bucket, part_bytes=part_bytes), retries=once)


@Stores
def test_a_copy_that_is_cut_off_at_any_request_leaves_a_whole_segment_or_none(world: World, tmp_path: Path) -> None:
    config = aiven_config(tmp_path, encryption=True, chunk_bytes=256 * 1024)
    keys = private_keys(tmp_path, "key1")
    mortal, other = (AivenRemoteStorageManager(config, store=store) for store in (world.mortal, world.store))
    log = random.Random(20).randbytes(2 * world.part_bytes + 1000)
    metadata = replace(metadata_of(PARTITION, SEGMENT), segment_size_bytes=len(log))
    data = segment_files(tmp_path / "local", SEGMENT)
    data.log_segment.write_bytes(log)
    copied(other, tmp_path / "former", FORMER)
    left: list[bytes | None] = []
    for was_cut_off in world.ends(lambda: mortal.copy_log_segment_data(metadata, data)):
        found = found_segment(world.store, metadata, keys)
        left.append(None if found is None else found.files["log"])
        assert (left[-1] == log) == (not was_cut_off)
        # What is left over is in nobody's way.
        copied(other, tmp_path / "former", FORMER)
        again = found_segment(world.store, metadata, keys)
        assert again is not None
        assert again.files == FORMER.objects()
    # S3's first request is cut in its body; those of the others are a DELETE, which has none.
    assert left[0] in (FORMER.log, None)
    assert set(left[1:-1]) == {None}
    requests = ["the manifest's DELETE", *["a part"] * 3, "indexes", "manifest"]
    assert len(left) > len(requests), "it was ended at each of them"


@Stores
def test_a_rewrap_that_is_cut_off_at_any_request_leaves_every_segment_whole(world: World, tmp_path: Path) -> None:
    pairs = {**make_key_pair(tmp_path, "key1"), **make_key_pair(tmp_path, "key2"), "encryption.key.pairs": "key1,key2"}
    writer = AivenRemoteStorageManager(
        {**aiven_config(tmp_path), **pairs, "encryption.key.pair.id": "key1"}, store=world.store
    )
    metadatas = [copied(writer, tmp_path / "local", segment) for segment in OLD]
    keys = [object_key(metadata, "rsm-manifest") for metadata in metadatas]
    manifests = {key: whole(world.store, key) for key in keys}
    mortal, other = (
        Rewrap(store=store, prefix=PREFIX, key_ring=KeyRing(pairs), wait=lambda _: True)
        for store in (world.mortal, world.store)
    )

    def wrapped_by() -> tuple[str, ...]:
        """By segment, each of which is whole."""
        found = [found_segment(world.store, each, private_keys(tmp_path, "key1", "key2")) for each in metadatas]
        assert [each and each.files for each in found] == [segment.objects() for segment in OLD]
        return tuple(each.manifest["encryption"]["dataKey"].partition(":")[0] for each in found if each is not None)

    seen = set()
    for _ in world.ends(lambda: list(mortal.run(writes=True))):
        seen.add(wrapped_by())
        outcomes = {result.outcome for result in other.run(writes=True)}
        assert outcomes <= {RewrapOutcome.REWRAPPED, RewrapOutcome.CURRENT}
        assert wrapped_by() == ("key2", "key2")
        for key, content in manifests.items():
            world.store.put(key, content)
    assert seen == {("key1", "key1"), ("key2", "key1"), ("key2", "key2")}
