"""Log lines as nobody has configured them, even if an earlier test did."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Iterator[None]:
    """Settings of the process: taken back afterwards."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)
