"""What commands find that open a tier: one broker with a metadata topic, and LocalTieredStorage in a folder.

world = CommandWorld(tmp_path, monkeypatch)
world.copy(metadata, log=b"its bytes")
world.publish(metadata, update)
code = check.run(world.config(), out)
"""

from pathlib import Path

import pytest

from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.metadata.encoding import encode
from storage.metadata.serde import MetadataRecord
from storage.model import LogSegmentData, RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.config_files import load_lines
from tests.support.fake_kafka import FakeKafka, FakeLog, FakeTopic
from tests.support.segments import Record, data_batch
from tests.support.serving import LOCAL_TIER
from tidegate.config import Config

METADATA_TOPIC_ID = b"metadata topicid"


class CommandWorld:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, metadata_partitions: int = 1) -> None:
        self.cluster = FakeKafka()
        monkeypatch.setattr("proxy.upstream.connection.open_transport", self.cluster.open_transport)
        self.cluster.add(1, "a", 1)
        self.cluster.topics[METADATA_TOPIC] = FakeTopic(METADATA_TOPIC_ID, [1] * metadata_partitions)
        self.folder = folder
        self.tier = folder / "tier"
        self.root.mkdir(parents=True)
        self.storage_manager = LOCAL_TIER
        self.lines = ""
        """Lines of the configuration, after those that it begins with."""
        self.record_key: bytes | None = None

    @property
    def root(self) -> Path:
        return self.folder / "tier" / ROOT_DIRECTORY_NAME

    @property
    def metadata(self) -> FakeLog:
        return self.cluster.log(METADATA_TOPIC)

    def publish(self, *records: MetadataRecord | bytes) -> None:
        for record in records:
            value = record if isinstance(record, bytes) else encode(record)
            offset = self.metadata.end_offset
            self.metadata.append(data_batch(offset, records=[Record(self.record_key, value)]), offset)

    def copy(
        self, metadata: RemoteLogSegmentMetadata, *, log: bytes, manager: RemoteStorageManager | None = None
    ) -> None:
        """The segment's objects."""
        file = self.folder / "local.log"
        file.write_bytes(log)
        manager = manager or LocalTieredStorage({"dir": str(self.folder / "tier")})
        manager.copy_log_segment_data(metadata, LogSegmentData(file, file, file, b""))

    def config(self, prefix: str = "rsm.config.") -> Config:
        lines = (
            "proxy.listen=127.0.0.1:0\nadmin.listen=127.0.0.1:0\n"
            f"upstream.bootstrap.servers=a:1\nremote.log.storage.manager.class.name={self.storage_manager}\n"
            f"{prefix}dir={self.tier}\n{self.lines}"
        )
        return load_lines(self.folder, lines, minimal=False)
