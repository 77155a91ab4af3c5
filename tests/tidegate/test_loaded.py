"""What a process of `tidegate serve` has in memory: nothing that its configuration has no use for."""

from tests.support.program import loaded_by

_OTHERS = (
    "azure.",
    "confluent_kafka",
    "google.",
    "pipeline.",
    "standalone.copying",
    "standalone.serving.",
    "storage.object_store.azure.",
    "storage.object_store.gcs.",
    "table.",
    "tidegate.commands.",
)


def test_a_replica_loads_no_tier_of_our_own_and_no_store_that_is_not_named() -> None:
    assert [name for name in loaded_by("import tidegate.serve") if name.startswith(_OTHERS)] == []
