"""The audit log before a broker that asks everyone who they are: clients that sign in, are refused, and read the tier.

What the lines must say is known otherwise: what was asked for, and how many bytes of the tier Tidegate counts.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.digests import confluent_consumer
from tests.support.secret_search import files_below, found_in
from tests.support.secured_kafka import READ, SecuredKafka, password
from tests.support.serving import LISTENERS, START_S_MAX, Serving, serving
from tidegate import exit_codes
from tools.demo.kafka_cluster import free_port

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
KNOWN = {"minute", "client_id", "address", "topic", "partition", "first_offset", "end_offset", "bytes", "answers"}
READ_S_MAX = 30.0

Line = dict[str, Any]


@pytest.fixture
def readable(guarded: SecuredKafka) -> Iterator[SecuredKafka]:
    guarded.allow("reader", READ, guarded.topic.name)
    yield guarded
    guarded.withdraw("reader", READ, guarded.topic.name)


def properties(guarded: SecuredKafka, log: Path, **more: str) -> dict[str, str]:
    return {
        **guarded.identity("tidegate", "PLAIN", "SASL_SSL"),
        "broker.config": str(guarded.cluster.server_properties_path(1)),
        **LISTENERS,
        "admin.listen": f"127.0.0.1:{free_port()}",
        "audit.log": str(log),
        **more,
    }


def consumer(served: Serving, mechanism: str, client_id: str, **more: object) -> Consumer:
    """`reader`, who has the right to read; `more` are settings of librdkafka's, with _ for dots."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "client.id": client_id,
        **{name if callable(value) else name.replace("_", "."): value for name, value in more.items()},
    }
    if mechanism == "OAUTHBEARER":
        settings |= {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": "principal=reader"}
    else:
        settings = {"sasl.username": "reader", "sasl.password": password("reader"), **settings}
    return confluent_consumer(served.bootstrap, "read_uncommitted", settings)


def read_until(client: Consumer, end: int) -> None:
    """Consume what is assigned, up to the offset before `end`."""
    deadline_s = time.monotonic() + READ_S_MAX
    while time.monotonic() < deadline_s:
        for message in client.consume(2000, 0.1):
            error = message.error()
            assert error is None or error.code() == KafkaError._PARTITION_EOF, error
            if error is None and (message.offset() or 0) >= end - 1:
                return
    raise AssertionError(f"offset {end - 1} has not come")


def is_refused(served: Serving, topic: str) -> bool:
    """A client with a wrong password gets nothing."""
    errors: list[KafkaError] = []
    more = {"sasl_password": "wrong-secret", "error_cb": errors.append}
    with closing(consumer(served, "PLAIN", "refused", **more)) as client:
        client.assign([TopicPartition(topic, 0, 0)])
        deadline_s = time.monotonic() + READ_S_MAX
        while not errors and time.monotonic() < deadline_s:
            assert client.consume(1, 0.1) == []
    return errors[0].code() == KafkaError._AUTHENTICATION


def lines_of(log: Path) -> list[Line]:
    """Every line whole."""
    text = log.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


def together(lines: Sequence[Line], field: str) -> dict[str, Line]:
    """Lines of one client may be of several minutes and workers: added up."""
    sums: dict[str, Line] = defaultdict(lambda: {"first_offset": 2**63, "end_offset": 0, "bytes": 0, "answers": 0})
    for line in lines:
        whole = sums[line[field]]
        whole["first_offset"] = min(whole["first_offset"], line["first_offset"])
        whole["end_offset"] = max(whole["end_offset"], line["end_offset"])
        for name in ("bytes", "answers"):
            whole[name] += line[name]
    return sums


def stop(served: Serving) -> None:
    served.terminate()
    assert served.process.wait(START_S_MAX) == exit_codes.DONE, served.log()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_each_client_is_named_by_what_the_broker_accepted(workers: str, readable: SecuredKafka, tmp_path: Path) -> None:
    log, topic = tmp_path / "audit.jsonl", readable.topic
    local_start = topic.offsets[0].local_log_start_offset
    assert local_start > 500
    with serving(tmp_path, properties(readable, log, **{"proxy.workers": workers})) as served:
        served.wait_log("ready: ")
        for mechanism in MECHANISMS:
            with closing(consumer(served, mechanism, f"by-{mechanism}", group_id=f"group-{mechanism}")) as client:
                client.assign([TopicPartition(topic.name, 0, 0)])
                read_until(client, topic.records)
                client.commit(offsets=[TopicPartition(topic.name, 0, 7)], asynchronous=False)
                rows = {row["client_id"]: row for row in json.loads(served.page("/streams")[1])["streams"]}
                seen = rows[f"by-{mechanism}"]
                assert (seen["sign_in_name"], seen["groups"]) == ("reader", [f"group-{mechanism}"])
        assert is_refused(served, topic.name)
        served_bytes = served.metric("tidegate_served_tier_bytes_total")
        stop(served)
        assert "audit_log_failed" not in served.log()
    lines = lines_of(log)
    assert log.stat().st_mode & 0o777 == 0o600
    assert sum(line["bytes"] for line in lines) == served_bytes
    assert {(line.get("sign_in_name"), line["mechanism"]) for line in lines} == {("reader", m) for m in MECHANISMS}
    sums = together(lines, "client_id")
    assert set(sums) == {f"by-{mechanism}" for mechanism in MECHANISMS}
    for whole in sums.values():
        # What begins at the local log start is the broker's.
        assert (whole["first_offset"], whole["end_offset"]) == (0, local_start)
    for line in lines:
        assert set(line) >= KNOWN, line
        assert (line["topic"], line["partition"]) == (topic.name, 0)
        assert line["address"].startswith("127.0.0.1:")
        assert line["minute"].endswith(":00Z")
        if workers == "1":
            assert line["group"] == f"group-{line['mechanism']}"
    secrets = [password("reader"), "wrong-secret"]
    written = [each for each in files_below(tmp_path) if not each[0].endswith(".properties")]
    assert [found_in(secret, written) for secret in secrets] == [[], []]
