"""Crowds that never sign in take nobody else's place."""

import pytest

from tests.support.hostile_clients import crowd
from tests.support.hostile_stage import MIB, HonestTopic, hostile_stage
from tests.support.secured_kafka import SecuredKafka, password
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.needs("java", "kafka", "linux"), pytest.mark.integration]

CONNECTIONS_MAX = 40
NEWCOMERS = 10
CONNECTIONS = "tidegate_connections_active"


def test_a_crowd_that_never_signs_in(guarded: SecuredKafka, secret: HonestTopic) -> None:
    """How it failed: the first who came had every slot, and whoever had a password was closed at once."""
    limits = {"proxy.connections.max": str(CONNECTIONS_MAX)}
    with hostile_stage(
        guarded.cluster,
        secret,
        {**guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT"), **limits},
        user="reader",
        password=password("reader"),
        bootstrap_servers=guarded.address("SASL_PLAINTEXT"),
    ) as stage:
        with crowd(stage.leader, 3 * CONNECTIONS_MAX):
            wait_until(lambda: stage.counter(CONNECTIONS) >= CONNECTIONS_MAX, "the crowd has every slot")
            with crowd(stage.leader, NEWCOMERS, sign_in=("reader", password("reader"))) as newcomers:
                for client in newcomers:
                    (answer,) = client.fetch(12, [(secret.name, None, 0, 0, MIB)]).partitions
                    assert answer.error_code == 0
                    assert answer.records
                assert stage.counter(CONNECTIONS) <= CONNECTIONS_MAX
                stage.suffer(2.0)
        stage.recover()
        stage.check()
