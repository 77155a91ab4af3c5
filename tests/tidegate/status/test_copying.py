"""What the status page says of copiers: which partitions come first, and what waits to be deleted."""

from types import SimpleNamespace
from typing import Any

from trio.testing import MockClock

from metrics.copy_meters import Stall
from metrics.troubles import TroubleId
from proxy.readiness import Readiness
from standalone.copier.progress import PartitionProgress
from standalone.copier.waits import Waiting
from tidegate.status import copying
from tidegate.status.copying import STALLED_S_MIN, CopyTroubles, copy_status


def waiting(size_bytes: int, *, is_alarming: bool = False) -> Waiting:
    return Waiting(segments=2, size_bytes=size_bytes, until_ms=7, why="a word", is_alarming=is_alarming)


def progress(number: int, **parts: Any) -> PartitionProgress:
    return PartitionProgress(topic="orders", partition=number, **parts)


def status_of(*found: PartitionProgress, gone: tuple[PartitionProgress, ...] = ()) -> Any:
    parts: Any = SimpleNamespace(group_id="group", progress=lambda: [*found], gone=lambda: [*gone], problems=list)
    return copy_status(parts)


def test_deletions_that_wait_are_listed_those_that_alarm_first_and_gone_topics_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(copying, "ROWS_MAX", 2)
    gone = PartitionProgress(topic="gone", partition=9, deletion=waiting(1, is_alarming=True))
    found = status_of(progress(0, deletion=waiting(5)), progress(1, deletion=waiting(6)), progress(2), gone=(gone,))
    assert found["deletions_total"] == 3
    shown = [(each["topic"], each["partition"], each["alarming"]) for each in found["deletions"]]
    assert shown == [("gone", 9, True), ("orders", 1, False)]
    expected = {"topic": "orders", "partition": 1, "segments": 2, "bytes": 6, "until_ms": 7, "why": "a word"}
    assert found["deletions"][1] == {**expected, "alarming": False}
    assert found["total"] == 3


def test_what_is_stalled_comes_before_what_is_behind_and_dead_segments_are_told() -> None:
    found = status_of(
        progress(0, lag_bytes=99, dead_segments=3, dead_bytes=30),
        progress(1, stall=Stall.STORE),
        progress(2, last_error="refused"),
    )
    assert [(each["partition"], each["stall"], each["dead_segments"]) for each in found["rows"]] == [
        (2, None, 0),
        (1, "store", 0),
        (0, None, 3),
    ]
    assert found["rows"][2]["dead_bytes"] == 30


def test_what_upstream_may_delete_first_is_trouble() -> None:
    found = status_of(progress(0, lag_ms=7_000, retention_share=0.51), progress(1, lag_ms=7_000, retention_share=0.5))
    assert "7 s old are not in the tier: 51% of what upstream keeps" in found["rows"][0]["trouble"]
    assert found["rows"][1]["trouble"] is None


async def test_what_is_wrong_with_copying_is_told_by_id_and_a_stall_when_it_lasts(mock_clock: MockClock) -> None:
    """Failed before: the page alone told of some of it, and /readyz and metrics by an id of none."""
    said = {TroubleId.TOPIC_NOT_COPIED: ["topic payments is not copied: it has cleanup.policy=compact"]}
    found = [
        progress(0, stall=Stall.OPEN_TRANSACTION, waits_for="a transaction's end"),
        progress(1, stall=Stall.POISON, last_error="magic 1"),
        progress(2, lag_ms=7_000, retention_share=0.51),
        progress(3, deletion=waiting(9, is_alarming=True), dead_segments=3),
        progress(4, stall=Stall.DISABLED),
    ]
    parts: Any = SimpleNamespace(progress=lambda: found, gone=list, troubles=lambda: said)
    readiness = Readiness(logs=False)
    troubles = CopyTroubles(parts, readiness)

    def told() -> list[tuple[str, str]]:
        troubles.tell()
        all_of_them = readiness.troubles
        return [(each["id"], each["what"].partition(":")[0]) for each in all_of_them if each["id"] != "starting"]

    lasting = [("copy_poisoned", "orders-1"), ("copy_late", "orders-2"), ("deletion_alarming", "orders-3")]
    lesser = [("topic_not_copied", "topic payments is not copied"), ("dead_segments", "orders-3")]
    assert told() == [*lasting, *lesser]
    mock_clock.jump(STALLED_S_MIN)
    assert told() == [*lasting[:2], ("copy_stalled", "orders-0"), lasting[2], *lesser]
    found[0] = progress(0)
    assert told() == [*lasting, *lesser]
    found[0] = progress(0, stall=Stall.OPEN_TRANSACTION)
    assert told() == [*lasting, *lesser], "it begins again"
