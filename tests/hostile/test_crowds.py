"""Crowds that never sign in take nobody else's place; crowds that come at once are all answered."""

import select
import socket
import struct
from contextlib import ExitStack

import pytest

from tests.support.hostile_clients import crowd
from tests.support.hostile_stage import MIB, HonestTopic, hostile_stage
from tests.support.secured_kafka import SecuredKafka, password
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.needs("java", "kafka", "linux"), pytest.mark.integration]

CONNECTIONS_MAX = 40
NEWCOMERS = 10
CONNECTIONS = "tidegate_connections_active"
AT_ONCE = 3_000
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
ANSWERED_S_MAX = 120.0


def test_a_crowd_that_never_signs_in(guarded: SecuredKafka, secret: HonestTopic) -> None:
    """How it failed: the first who came had every slot, and clients that had a password were closed at once."""
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
            wait_until(lambda: stage.counter(CONNECTIONS) == CONNECTIONS_MAX / 2, "the crowd has its half of the slots")
            with crowd(stage.leader, NEWCOMERS, sign_in=("reader", password("reader"))) as newcomers:
                for client in newcomers:
                    (answer,) = client.patient_fetch(12, [(secret.name, None, 0, 0, MIB)]).partitions
                    assert answer.error_code == 0
                    assert answer.records
                assert stage.counter(CONNECTIONS) <= CONNECTIONS_MAX
                stage.suffer(2.0)
        stage.recover()
        stage.check()


def test_all_of_a_crowd_that_comes_at_once_are_answered(kafka: KafkaCluster) -> None:
    """How it failed: a queue of 512 overflowed, and who was left out came again a second or more later."""
    with own_tidegate(kafka) as tidegate, ExitStack() as stack:
        clients = {}
        asked, answered = select.poll(), select.poll()
        for _ in range(AT_ONCE):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(tidegate.address)
            clients[client.fileno()] = client
            asked.register(client, select.POLLOUT)
        unasked = set(clients)
        while unasked:
            for descriptor, _ in asked.poll():
                clients[descriptor].sendall(API_VERSIONS)
                asked.unregister(descriptor)
                answered.register(descriptor, select.POLLIN)
                unasked.remove(descriptor)
        wait_until(lambda: len(answered.poll(0)) == AT_ONCE, "all answers begun", timeout_s=ANSWERED_S_MAX)
        assert all(client.recv(8)[4:] == API_VERSIONS[8:12] for client in clients.values())
