"""What follows from the document: what is in trouble, and in which order; several workers' documents as one."""

from metrics.troubles import TroubleId
from tests.support.status_documents import broker, catalog, document, error, metadata_partition, partitions, row
from tidegate.status.model import ClientStatus, merged, read_least, shown_troubles


def test_a_metadata_partition_that_is_not_read_is_worse_than_one_that_is_slow() -> None:
    lagging = [metadata_partition(0, lag=5), metadata_partition(1, lag=900), metadata_partition(2, problem="no leader")]
    status = document(catalog=catalog(*lagging))
    worst = read_least(status)
    assert worst is not None
    assert worst["metadata_partition"] == 2


def test_a_client_is_stuck_when_it_has_taken_nothing_for_five_seconds() -> None:
    client: ClientStatus = {"worker": None, "client": "10.0.0.7:4711", "waits_ms": 4_999, "holds_bytes": 1_000_000}
    told = shown_troubles((), [client, {**client, "client": "10.0.0.8:1", "waits_ms": 5_000}], ())
    (found,) = told[TroubleId.CLIENT_STUCK]
    assert "10.0.0.8:1 is stuck" in found


def cache(hits: int, misses: int, *, trouble: str | None = None) -> dict[str, object]:
    sizes = {"level": "memory", "size_bytes": 10, "max_bytes": 100}
    return {**sizes, "trouble": trouble, "hits": hits, "misses": misses, "hit_ratio": hits / (hits + misses)}


def test_workers_documents_are_one_and_the_worst_of_each_is_told() -> None:
    spell = {"reason": "denied", "detail": "403", "partitions": 2, "since_ms": 5_000, "examples": ["orders-0"]}
    undescribed = {**spell, "reason": "not_described"}
    stream = {"worker": None, "client": "10.0.0.7:1"}
    first = document(
        brokers=[broker(1), broker(2)],
        catalog=catalog(metadata_partition(0), metadata_partition(1), segments=7),
        cache=[cache(30, 10)],
        partitions=partitions(row(offsets_age_ms=9), row("payments", offsets_age_ms=9)),
        streams={"total": 1, "rows": [stream]},
        fallbacks=[spell, undescribed],
        errors=[error("older", age_ms=5_000)],
    )
    second = document(
        brokers=[broker(1), broker(2, reachable=False, reason="refused")],
        catalog=catalog(metadata_partition(0), metadata_partition(1, lag=4), segments=9),
        cache=[cache(0, 40, trouble="full: no space")],
        partitions=partitions(row(offsets_age_ms=3, high_watermark=5), row("payments")),
        fallbacks=[{**spell, "partitions": 3, "since_ms": 1_000}, undescribed],
    )
    status = merged(document(errors=[error("newer")], workers=[{"worker": 0}]), {"0": first, "1": second})
    assert [each["reachable"] for each in status["brokers"]] == [True, False]
    assert status["catalog"]["segments"] == 9
    assert [each["lag_records"] for each in status["catalog"]["metadata_partitions"]] == [0, 4]
    (level,) = status["cache"]
    assert (level["hits"], level["misses"], level["hit_ratio"], level["trouble"]) == (30, 50, 0.375, "full: no space")
    assert (level["size_bytes"], level["max_bytes"]) == (20, 200)
    assert [each["high_watermark"] for each in status["partitions"]["rows"]] == [5, None]
    assert [each["offsets_age_ms"] for each in status["partitions"]["rows"]] == [3, 9]
    assert status["streams"]["total"] == 1
    assert status["streams"]["rows"][0]["worker"] == "0"
    assert [(each["partitions"], each["since_ms"]) for each in status["fallbacks"]] == [(5, 5_000), (2, 5_000)]
    assert [(each["event"], each["worker"]) for each in status["errors"]] == [("newer", None), ("older", "0")]
    told = shown_troubles(status["limits"], status["clients"], status["cache"])
    assert told[TroubleId.CACHE_DISK_UNAVAILABLE] == ["blocks are not kept on the disk: full: no space"]
    assert status["troubles"] == [], "readiness has them, of all workers"
