"""Fixtures that only tests against a real Kafka share."""

from collections.abc import Iterator

import pytest

from tests.support.secured_kafka import SecuredKafka, secured_kafka


@pytest.fixture(scope="session")
def guarded() -> Iterator[SecuredKafka]:
    """One broker that asks everyone who they are; a test takes back the rights that it gave."""
    with secured_kafka() as started:
        yield started
