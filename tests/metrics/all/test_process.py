"""What prometheus_client itself tells of the process."""

import pytest

from metrics.meters import Meters


@pytest.mark.needs("linux")
def test_the_process_and_its_garbage_collector_are_measured() -> None:
    registry = Meters().registry
    assert (registry.sample_value("process_resident_memory_bytes") or 0) > 0
    assert registry.sample_value("python_gc_collections_total", {"generation": "2"}) is not None
