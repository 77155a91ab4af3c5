"""The contract of MetadataEventLog, run on both logs; the topic's over an in-memory topic in a trio thread."""

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
        running = _RunningLog()
        yield running.start()
        running.stop()


class _RunningLog:
    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: trio.run(self._main))
        self._log: TopicMetadataEventLog | None = None
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None

    def start(self) -> MetadataEventLog:
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)
        assert self._log is not None
        return self._log

    def stop(self) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        topic = FakeMetadataTopic()
        self._log = TopicMetadataEventLog(topic)
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._log.run)
                self._started.set()
        assert topic.closed
