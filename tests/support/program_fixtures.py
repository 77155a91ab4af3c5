"""Fixtures of those who ask a fake cluster, and of those who set logging up: each folder's conftest names them."""

import logging
from collections.abc import Iterator

import pytest
import structlog
import trio

from tests.support.fake_kafka import FakeKafka
from tidegate.logs import OUR_PACKAGES


@pytest.fixture
def kafka(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """A cluster without brokers, to which our own connections lead."""
    fake = FakeKafka(nursery)
    monkeypatch.setattr("proxy.upstream.connection.open_transport", fake.open_transport)
    return fake


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Leaves logging as it was found: what sets it up does so for the process, and pytest has handlers of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)
    structlog.reset_defaults()
