"""Two replicas behind deploy/haproxy/haproxy.cfg: one is killed, one drained, and clients go on.

Clients know the balancer's address alone. Both replicas tell them the same: the balancer's name, and for each broker a
port that is the same on all machines. What clients have in the end is judged: nothing lost, nothing twice.
"""

from pathlib import Path

import pytest

from tests.integration.reading import Reading
from tests.integration.test_life_cycle import traffic
from tests.integration.test_restart import TRANSPORT_ERRORS
from tests.support.digests import read_with_confluent
from tests.support.haproxy import two_replicas
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.serving import START_S_MAX
from tests.support.waiting import HANG_S_MAX, wait_until
from tidegate import exit_codes
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("haproxy", "java", "kafka", "linux")]

RECORDS_BETWEEN = 2000
"""What each client does behind the end of a replica: more than it may have in advance."""
DRAIN_DELAY_MS = 3000
"""Three times what HAProxy takes to ask /readyz again."""


def test_clients_go_on_at_the_other_replica(kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path) -> None:
    topic = fresh_name("failover")
    kafka.create_topic(topic, 1, {})
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    direct = read_with_confluent(kafka.bootstrap_servers, tiered.name, ends, "read_uncommitted")
    properties = {"proxy.drain.delay.ms": str(DRAIN_DELAY_MS)}
    with (
        two_replicas(kafka, tmp_path, properties) as (balancer, (first, second)),
        traffic(balancer.bootstrap, topic) as clients,
        Reading(balancer.bootstrap, tiered.name, {"reconnect.backoff.max.ms": 500}, partitions=tuple(ends)) as reading,
    ):

        def go_on() -> None:
            """Each client gets further, which it could not without a replica."""
            delivered, consumed = len(clients.delivered) + RECORDS_BETWEEN, len(clients.consumed) + RECORDS_BETWEEN
            read = sum(map(len, reading.offsets.values())) + RECORDS_BETWEEN
            reading.read_on(lambda: sum(map(len, reading.offsets.values())) >= read)
            wait_until(lambda: len(clients.delivered) >= delivered, "records to be produced", timeout_s=HANG_S_MAX)
            wait_until(lambda: len(clients.consumed) >= consumed, "records to be consumed", timeout_s=HANG_S_MAX)

        go_on()
        # Broker 1 is at home at the first replica; the other one stands in for it.
        assert balancer.used()["broker-1", "a"].total > 0
        assert balancer.used()["broker-1", "b"].total == 0
        first.served.process.kill()
        go_on()
        first.start_again()
        first.wait_ready()
        balancer.wait_state("a", "UP")

        assert balancer.connections("b") > 0
        second.served.terminate()
        balancer.wait_state("b", "NOLB")
        assert second.served.process.wait(START_S_MAX) == exit_codes.DONE, second.served.log()
        assert "drain_timed_out" not in second.served.log()
        go_on()
        reading.read_on(lambda: all(len(reading.offsets[partition]) >= end for partition, end in ends.items()))
        with_acknowledgement = {*clients.delivered}
        wait_until(lambda: with_acknowledgement <= clients.consumed, "all that was acknowledged")
        clients.stop()
    assert (clients.fatal, clients.failed) == ([], [])
    assert set(reading.errors) <= TRANSPORT_ERRORS
    assert all(offsets == [*range(ends[partition])] for partition, offsets in reading.offsets.items())
    assert reading.digest.result() == direct
    assert "Traceback" not in first.served.log() + second.served.log()
