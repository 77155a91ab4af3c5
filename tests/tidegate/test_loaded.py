"""What a process of `tidegate serve` has in memory: nothing that its configuration has no use for."""

import subprocess
import sys

_LOADED = "import sys, tidegate.serve; print(*sys.modules)"
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
    done = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True)
    assert [name for name in done.stdout.split() if name.startswith(_OTHERS)] == []
