"""The copier's meter: what each verb moves, by KIP-405's names and by our own."""

import pytest

from metrics.copy_meters import CopyMeter, Stall
from metrics.kip405 import EXPORTED, Writer
from metrics.registry import Registry

OF_TOPIC = "kafka_server_brokertopicmetrics_"


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def meter(registry: Registry) -> CopyMeter:
    return CopyMeter(registry)


def test_a_copier_registers_its_rows_and_no_other(registry: Registry, meter: CopyMeter) -> None:
    registered = {family for family in registry.families if not family.name.startswith("tidegate_")}
    assert registered == {row.family for row in EXPORTED if row.writer is Writer.COPIER}


def test_copies_and_deletions_are_counted_by_topic(registry: Registry, meter: CopyMeter) -> None:
    def of(name: str) -> float | None:
        return registry.sample_value(OF_TOPIC + name, {"topic": "orders"})

    meter.on_copy_started("orders")
    meter.on_delete_started("orders")
    assert [of(f"remotecopy{name}_total") for name in ("requests", "errors")] == [1, 0]
    assert [of(f"remotedelete{name}_total") for name in ("requests", "errors")] == [1, 0]
    meter.on_copied("orders", 500)
    meter.on_copy_error("orders")
    meter.on_delete_error("orders")
    assert [of(f"remotecopy{name}_total") for name in ("bytes", "errors")] == [500, 1]
    assert of("remotedeleteerrors_total") == 1


def test_lags_are_sums_and_the_age_is_the_worst(registry: Registry, meter: CopyMeter) -> None:
    def values() -> list[float | None]:
        labels = {"topic": "orders"}
        names = ("remotecopylagbytes", "remotecopylagsegments", "remotedeletelagbytes", "remotedeletelagsegments")
        found = [registry.sample_value(OF_TOPIC + name, labels) for name in names]
        own = ("tidegate_copy_age_seconds", "tidegate_copy_upstream_retention_share")
        return [*found, *(registry.sample_value(name, labels) for name in own)]

    for number in (0, 1):
        meter.on_copy_lag(("orders", number), 100 + number, 1)
        meter.on_delete_lag(("orders", number), 10, 2)
        meter.on_age(("orders", number), 60.0 * number, 0.5 * number)
    assert values() == [201, 2, 20, 4, 60, 0.5]
    meter.on_copy_lag(("orders", 0), 0, 0)
    assert values() == [101, 1, 20, 4, 60, 0.5]
    meter.on_released(("orders", 1))
    assert values() == [0, 0, 10, 2, 0, 0]
    meter.on_released(("orders", 0))
    meter.on_released(("orders", 0))
    assert values() == [0, 0, 0, 0, 0, 0]


def test_gaps_poison_and_claims_have_series_from_the_start(registry: Registry, meter: CopyMeter) -> None:
    names = ("copy_gaps_total", "copy_gap_records_total", "copy_superseded_total", "copy_poisoned_partitions")

    def values() -> list[float | None]:
        return [registry.sample_value(f"tidegate_{name}") for name in names]

    assert values() == [0, 0, 0, 0]
    meter.on_gap(300)
    meter.on_superseded()
    meter.on_stall(("orders", 3), Stall.POISON)
    assert values() == [1, 300, 1, 1]
    meter.on_stall(("orders", 4), Stall.POISON)
    meter.on_released(("orders", 3))
    assert values() == [1, 300, 1, 1]
    meter.on_stall(("orders", 4), Stall.STORE)
    assert values() == [1, 300, 1, 0]


def test_slots_and_sizes(registry: Registry, meter: CopyMeter) -> None:
    idle = "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidle_percent"
    assert registry.sample_value(idle) == 1
    meter.on_slots(10, 10)
    assert (registry.sample_value(idle) or 0) < 1
    meter.on_size_walk("orders", 0.25)
    assert registry.sample_value(f"{OF_TOPIC}remotelogsizecomputationtime", {"topic": "orders"}) == 250
