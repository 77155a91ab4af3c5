"""A task on an executor: its rows in order of offset, from wherever they are; and nothing secret to print."""

from pathlib import Path
from typing import Any

import pytest

from storage.config.model import (
    ClientSecurity,
    HostPort,
    SaslCredentials,
    SaslMechanism,
    SecurityProtocol,
    UpstreamConfig,
)
from table.reading import read_task
from table.reading.executor_storage import ship_storage
from table.reading.read_task import TaskReader
from table.tasks import ReadOptions, TailTask, Task, TierTask
from tests.support.segments import filled_segment, publish, topic_partition
from tests.support.sent import sent
from tests.table.reading.test_segment_task import task_of

LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
SECRET = "planted+secret/of+sasl"
OPTIONS = ReadOptions(columns=("offset", "partition"))
TAIL = UpstreamConfig(
    bootstrap_servers=(HostPort("broker", 9092),),
    security=ClientSecurity(
        protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl=SaslCredentials(mechanism=SaslMechanism.PLAIN, username="us", password=SECRET),
    ),
)
TAIL_TASK = TailTask(topic="orders", partition=0, first_offset=400, end_offset=410)


def tier_task(folder: Path) -> TierTask:
    """The last half of a segment, and the first of the next one."""
    parts = []
    for base, first, end in ((0, 100, 200), (200, 200, 300)):
        segment = publish(folder, topic_partition(), filled_segment(base))
        parts.append(task_of(segment, first_offset=first, end_offset=end))
    return TierTask(topic="orders", partition=0, parts=tuple(parts))


def offsets_of(reader: TaskReader, task: Task) -> list[int]:
    return [row["offset"] for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_task_of_the_tier_gives_its_parts_one_after_the_other(tmp_path: Path) -> None:
    task = tier_task(tmp_path)
    reader = TaskReader(ship_storage(LOCAL, {"dir": str(tmp_path)}), OPTIONS)
    assert offsets_of(sent(reader), sent(task)) == list(range(100, 300))


def test_a_task_of_the_tail_is_read_with_the_identity_that_travelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def read_tail_task(client: Any, task: TailTask, options: ReadOptions) -> Any:
        asked.append((client.settings.bootstrap_servers, client.settings.sasl.username, task, options))
        return iter(())

    monkeypatch.setattr(read_task, "read_tail_task", read_tail_task)
    reader = TaskReader(ship_storage(LOCAL, {"dir": str(tmp_path)}), OPTIONS, TAIL)

    assert offsets_of(sent(reader), TAIL_TASK) == []

    assert asked == [((("broker", 9092),), "us", TAIL_TASK, OPTIONS)]
    # Without tail=kafka it is a bug of ours.
    reader = TaskReader(ship_storage(LOCAL, {"dir": str(tmp_path)}), OPTIONS)
    with pytest.raises(AssertionError, match="without tail=kafka"):
        offsets_of(reader, TAIL_TASK)
