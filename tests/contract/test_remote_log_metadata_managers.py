"""The contract of RemoteLogMetadataManager, run on every manager."""

from collections.abc import Iterator

import pytest

from storage.metadata.in_memory import InMemoryRemoteLogMetadataManager
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.remote_log_metadata_manager import RemoteLogMetadataManager
from tests.contract.remote_log_metadata_manager import RemoteLogMetadataManagerContract
from tests.support.metadata_event_log import InProcessMetadataEventLog


class TestInMemory(RemoteLogMetadataManagerContract):
    @pytest.fixture
    def manager(self) -> RemoteLogMetadataManager:
        return InMemoryRemoteLogMetadataManager()


@pytest.mark.parametrize("partition_count", [1, 5])
class TestTopicBased(RemoteLogMetadataManagerContract):
    """With one metadata partition, both user partitions share it; with five they do not."""

    @pytest.fixture
    def manager(self, partition_count: int) -> Iterator[RemoteLogMetadataManager]:
        manager = TopicBasedRemoteLogMetadataManager(InProcessMetadataEventLog(partition_count), publish_timeout_s=100)
        yield manager
        manager.close()
