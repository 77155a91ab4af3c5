"""The contract of MetadataEventLog, run on both logs; the topic's over an in-memory topic in a trio thread."""

import queue
import threading
from collections.abc import Iterator

import pytest
import trio

from storage.metadata.event_log import MetadataEventLog
from storage.metadata.topic_log import TopicMetadataEventLog
from tests.contract.metadata_event_log import TIMEOUT_S, MetadataEventLogContract
from tests.support.metadata_event_log import InProcessMetadataEventLog
from tests.support.metadata_topic import FakeMetadataTopic


class TestInProcess(MetadataEventLogContract):
    @pytest.fixture
    def event_log(self) -> MetadataEventLog:
        return InProcessMetadataEventLog(3)


class TestTopic(MetadataEventLogContract):
    @pytest.fixture
    def event_log(self) -> Iterator[MetadataEventLog]:
        """It runs in a thread of its own, until the test has ended."""
        topic, scope = FakeMetadataTopic(), trio.CancelScope()
        running: queue.Queue[tuple[MetadataEventLog, trio.lowlevel.TrioToken]] = queue.Queue()

        async def run() -> None:
            log = TopicMetadataEventLog(topic)
            with scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(log.run)
                    running.put((log, trio.lowlevel.current_trio_token()))

        thread = threading.Thread(target=trio.run, args=(run,))
        thread.start()
        log, token = running.get(timeout=TIMEOUT_S)
        yield log
        token.run_sync_soon(scope.cancel)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert topic.closed
