"""Segments into each store and out of it, as they are, compressed, encrypted, and both, beside the bare SDK.

    python benchmarks/store.py [--rounds 5] [--megabytes 128] [--stores folder,s3,gcs,azure] [--json]

One segment of so many megabytes is copied through RemoteStorageManager.copy and read whole through a stream, by one
thread; the SDK alone, or the file system, takes and gives the same file. Both take turns in one run. MB/s are of the
segment's plain bytes, as are core-seconds a GB, which are those of this process: servers are others, on this machine
(versitygw over a folder, fake-gcs-server and Azurite in memory), and no network is between. A put to a folder is
synced, on both sides. Exit code 1 when a side reads other bytes than it wrote.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.comparison import Report, alternate, show, throughput_row
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import RemoteLogSegmentMetadata
from tests.support.azurite import AzureServer, azurite
from tests.support.fake_gcs import GcsServer, fake_gcs
from tests.support.s3_server import CREDENTIALS, REGION, S3Server
from tests.support.segments import filled_segment, metadata_of, segment_files, topic_partition
from tests.support.versitygw import versitygw
from tests.support.writing_tiers import aiven_config

STORES = ("folder", "s3", "gcs", "azure")
TRANSFORMS = {"plain": (False, False), "zstd": (True, False), "aes": (False, True), "zstd+aes": (True, True)}
CHUNK_BYTES = 4 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
RANDOM_SHARE = 0.3
"""Random part of each KiB; the rest is the same in all of them, as records often are. zstd makes a third of it."""

KEY = "bare"


class Bare(Protocol):
    """What the users of a store have without us."""

    def put(self, file: Path) -> None: ...

    def get(self) -> int:
        """The object, whole; how many bytes it had."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    megabytes: int
    stores: tuple[str, ...]
    as_json: bool


@dataclass(slots=True)
class Side:
    """One way of doing one thing, and what it has cost."""

    act: Callable[[], int]
    core_s: list[float] = field(default_factory=list)

    def timed(self) -> float:
        """MB/s."""
        core_s, started_s = time.process_time(), time.perf_counter()
        done_bytes = self.act()
        seconds = time.perf_counter() - started_s
        self.core_s.append((time.process_time() - core_s) / done_bytes * 1e9)
        return done_bytes / seconds / 1e6


def main() -> int:
    options = parse_options()
    report = Report("segments into stores and out of them, by one thread")
    with tempfile.TemporaryDirectory(prefix="tidegate-store-") as work:
        for name in options.stores:
            folder = Path(work, name)
            folder.mkdir()
            with opened(name, folder) as (config, bare):
                measure(name, config, bare, folder, options, report)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def parse_options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description="Segments into each store and out of it, beside the bare SDK.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (5)")
    parser.add_argument("--megabytes", type=int, default=128, help="of the segment (128)")
    parser.add_argument("--stores", default=",".join(STORES), help=f"some of {','.join(STORES)} (all)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(arguments)
    stores = tuple(chosen.stores.split(","))
    if chosen.rounds < 1 or not 1 <= chosen.megabytes <= 2000 or not set(stores) <= set(STORES):
        parser.error(f"at least one round, 1 to 2000 MB, and stores of {','.join(STORES)}")
    return Options(chosen.rounds, chosen.megabytes, stores, chosen.json)


def measure(name: str, config: Mapping[str, str], bare: Bare, folder: Path, options: Options, report: Report) -> None:
    """Add a store's rows: each transformation's put and get."""
    small = filled_segment(0)
    data = segment_files(folder / "local", small)
    size_bytes = _write_log(data.log_segment, options.megabytes)
    metadata = replace(metadata_of(topic_partition(), small), segment_size_bytes=size_bytes)

    def put_bare() -> int:
        bare.put(data.log_segment)
        return size_bytes

    for transform, (compression, encryption) in TRANSFORMS.items():
        keys = aiven_config(folder, compression=compression, encryption=encryption, chunk_bytes=CHUNK_BYTES)
        with closing(AivenRemoteStorageManager({**config, **keys})) as manager:

            def put(manager: AivenRemoteStorageManager = manager) -> int:
                manager.copy_log_segment_data(metadata, data)
                return size_bytes

            def get(manager: AivenRemoteStorageManager = manager) -> int:
                return read_whole(manager, metadata)

            _compare(f"{name}, {transform}: put", Side(put_bare), Side(put), options, report)
            _compare(f"{name}, {transform}: get", Side(bare.get), Side(get), options, report)
            if (found := (bare.get(), get())) != (size_bytes, size_bytes):
                report.complaints.append(f"{name}, {transform}: {found} bytes came back of {size_bytes}")


def read_whole(manager: AivenRemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> int:
    """A segment's log through one stream; how many bytes it had."""
    left_bytes = metadata.segment_size_bytes
    with closing(manager.open_log_segment(metadata).open_stream(0, left_bytes)) as stream:
        while left_bytes:
            left_bytes -= len(stream.read(min(READ_BYTES, left_bytes)))
    return metadata.segment_size_bytes


def _compare(name: str, bare: Side, ours: Side, options: Options, report: Report) -> None:
    alternate(1, bare.timed, ours.timed)  # connections, imports, the page cache
    bare.core_s.clear()
    ours.core_s.clear()
    report.rows.append(throughput_row(name, alternate(options.rounds, bare.timed, ours.timed)))
    spent = [statistics.median(side.core_s) for side in (ours, bare)]
    report.notes.append(f"{name}: {spent[0]:.2f} core-seconds a GB, the bare SDK {spent[1]:.2f}")


def _write_log(path: Path, megabytes: int) -> int:
    """Content that compresses as records do; its size in bytes."""
    source = random.Random(11)
    constant = source.randbytes(1024 - round(1024 * RANDOM_SHARE))
    with path.open("wb") as file:
        for _ in range(megabytes * 1_000_000 // 1024):
            file.write(source.randbytes(1024 - len(constant)) + constant)
    return path.stat().st_size


@contextmanager
def opened(name: str, folder: Path) -> Iterator[tuple[Mapping[str, str], Bare]]:
    """A store with an empty bucket: our keys for it, and the SDK alone."""
    with ExitStack() as stack:
        if name == "folder":
            bucket = folder / "bucket"
            bucket.mkdir()
            backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
            yield {"storage.backend.class": backend, "storage.root": str(bucket)}, BareFolder(folder / "bare")
        elif name == "s3":
            (folder / "gateway").mkdir()
            s3 = stack.enter_context(versitygw(folder / "gateway", folder))
            yield s3.config(found := s3.make_bucket()), BareS3(s3, found)
        elif name == "gcs":
            gcs = stack.enter_context(fake_gcs(folder))
            yield gcs.config(found := gcs.make_bucket()), BareGcs(gcs, found)
        else:
            azure = stack.enter_context(azurite(folder))
            yield azure.config(found := azure.make_bucket()), BareAzure(azure, found)


class BareFolder:
    """A file, written in pieces and synced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, file: Path) -> None:
        with file.open("rb") as source, self._path.open("wb") as target:
            while piece := source.read(1024 * 1024):
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())

    def get(self) -> int:
        with self._path.open("rb") as file:
            return sum(len(piece) for piece in iter(lambda: file.read(READ_BYTES), b""))


class BareS3:
    """boto3's PutObject and GetObject."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        import boto3

        self._bucket = bucket
        self._client = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS.access_key_id,
            aws_secret_access_key=CREDENTIALS.secret_access_key,
        )

    def put(self, file: Path) -> None:
        with file.open("rb") as body:
            self._client.put_object(Bucket=self._bucket, Key=KEY, Body=body)

    def get(self) -> int:
        return len(self._client.get_object(Bucket=self._bucket, Key=KEY)["Body"].read())


class BareGcs:
    """Google's upload_from_filename and download_as_bytes."""

    def __init__(self, server: GcsServer, bucket: str) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        client = Client(
            project="none",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]  # Google's types are partial
            client_options={"api_endpoint": server.endpoint_url},
        )
        self._blob: Any = client.bucket(bucket).blob(KEY)

    def put(self, file: Path) -> None:
        self._blob.upload_from_filename(str(file))

    def get(self) -> int:
        return len(self._blob.download_as_bytes())


class BareAzure:
    """Azure's upload_blob and download_blob."""

    def __init__(self, server: AzureServer, bucket: str) -> None:
        from azure.storage.blob import BlobServiceClient

        service = BlobServiceClient.from_connection_string(server.connection_string())
        self._blob: Any = service.get_blob_client(bucket, KEY)

    def put(self, file: Path) -> None:
        with file.open("rb") as body:
            self._blob.upload_blob(body, overwrite=True)

    def get(self) -> int:
        return len(self._blob.download_blob().readall())


if __name__ == "__main__":
    sys.exit(main())
