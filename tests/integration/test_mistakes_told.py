"""Mistakes that are made while Tidegate runs: by one id, in the same words, in `/readyz`, on the page, in
`/status.json`, `/metrics` and the log. What is wrong from the start on test_mistakes has.
"""

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics.troubles import TroubleId
from tests.support.mistakes import Stage, right_stage
from tests.support.s3_server import S3Server
from tests.support.secured_kafka import SecuredKafka
from tests.support.told_troubles import assert_in_every_place, wait_troubles
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

NO_STORE = S3Server("http://127.0.0.1:1")


@pytest.fixture
def stage(operators: SecuredKafka, tmp_path: Path) -> Iterator[Stage]:
    with right_stage(operators, NO_STORE, tmp_path) as right:
        yield right


def test_mistakes_that_are_made_while_it_runs_are_told_in_every_place(stage: Stage) -> None:
    stage.certificate(HOST)
    with stage.serve() as serve:
        serve.wait_log("ready: ")
        for trouble, words, keys in (
            (TroubleId.CONFIG_REFUSED, "memory.max.bytes = 1G: must be", {"memory.max.bytes": "1G"}),
            (TroubleId.RESTART_NEEDED, "memory.max.bytes", {"memory.max.bytes": "2 GiB"}),
        ):
            serve.write({**stage.properties, **keys})
            serve.process.send_signal(signal.SIGHUP)
            wait_troubles(serve, [trouble])
            assert_in_every_place(serve, trouble, [words])
        for _ in range(10):
            refuse_its_certificate(stage)
        wait_troubles(serve, [TroubleId.RESTART_NEEDED, TroubleId.HANDSHAKES_FAIL])
        words = "clients do not trust the issuer of proxy.tls.certificate.file"
        assert_in_every_place(serve, TroubleId.HANDSHAKES_FAIL, [words])


def refuse_its_certificate(stage: Stage) -> None:
    """Connect as a client that does not know its issuer."""
    host, _, port = stage.properties["proxy.listen"].rpartition(":")
    with socket.create_connection((host, int(port))) as connection, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(connection, server_hostname=host)
