"""Documents of the status page for tests: a healthy one, and parts to put in."""

from typing import Any, cast

from proxy.readiness import Readiness
from tidegate.status.collect import empty_status
from tidegate.status.model import (
    BrokerStatus,
    CopyDeletionStatus,
    CopyPartitionStatus,
    CopyStatus,
    ErrorStatus,
    MetadataPartitionStatus,
    PartitionStatus,
    Query,
    Status,
    pages_of,
)


def document(**parts: Any) -> Status:
    """A ready Tidegate's, with these parts in place of its own; its troubles are found."""
    readiness = Readiness()
    readiness.catalog_live(7)
    readiness.upstream_answered(3)
    readiness.tier_answered()
    status = empty_status(readiness, Query())
    status["errors"] = []
    return cast(Status, {**status, **parts})


def metadata_partition(number: int, *, lag: int | None = 0, problem: str | None = None) -> MetadataPartitionStatus:
    return MetadataPartitionStatus(
        metadata_partition=number,
        next_offset=100,
        end_offset=None if lag is None else 100 + lag,
        lag_records=lag,
        caught_up=True,
        problem=problem,
    )


def broker(node_id: int, *, reachable: bool | None = True, reason: str = "") -> BrokerStatus:
    return BrokerStatus(
        node_id=node_id,
        host="kafka",
        port=9092,
        reachable=reachable,
        answer_ms=1.5 if reachable else None,
        reason=reason,
    )


def catalog(*metadata_partitions: MetadataPartitionStatus, **parts: Any) -> dict[str, Any]:
    empty = document()["catalog"]
    return {**empty, "metadata_partitions": [*metadata_partitions], **parts}


def row(topic: str = "orders", partition: int = 0, **parts: Any) -> PartitionStatus:
    found: dict[str, Any] = dict.fromkeys(PartitionStatus.__annotations__)
    found |= {"topic": topic, "partition": partition, "topic_id": f"id of {topic}"}
    return cast(PartitionStatus, found | parts)


def partitions(*rows: PartitionStatus, total: int | None = None, page: int = 1) -> dict[str, Any]:
    count = len(rows) if total is None else total
    return {"total": count, "page": page, "pages": pages_of(count), "topic": "", "rows": [*rows]}


def error(event: str, *, age_ms: int = 1000, detail: str = "") -> ErrorStatus:
    time = "2026-01-01T00:00:00Z"
    return ErrorStatus(worker=None, time=time, age_ms=age_ms, level="warning", event=event, detail=detail)


def copied(word: str) -> CopyStatus:
    """One partition that is copied, and two of which something waits to be deleted; each text is `word`."""
    numbers: dict[str, Any] = {
        name: 5 for name, kind in CopyPartitionStatus.__annotations__.items() if kind in (int, int | None)
    }
    words: dict[str, Any] = dict.fromkeys(("topic", "waits_for", "stall", "last_error", "trouble"), word)
    row = cast(CopyPartitionStatus, {**numbers, **words, "dead_segments": 2, "dead_bytes": 7, "copied": True})
    waits = CopyDeletionStatus(
        topic=word, partition=3, segments=3, bytes=9, until_ms=3_601_000, why=word, alarming=True
    )
    held = CopyDeletionStatus(**{**waits, "partition": 4, "until_ms": None, "alarming": False})
    return CopyStatus(
        group=word,
        total=1,
        copied_bytes=5,
        lag_bytes=5,
        problems=[word],
        rows=[row],
        deletions_total=2,
        deletions=[waits, held],
    )
