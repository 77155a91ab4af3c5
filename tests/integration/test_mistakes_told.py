"""Mistakes that a running Tidegate knows: by one id in `/readyz`, on the page, in `/status.json`, `/metrics` and the
log, with words that `check` has said of the same FILE before.

Several mistakes that do not hide each other are made in one FILE: a process for each would take minutes.
"""

import html
import json
import signal
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from metrics.troubles import UNLOGGED, TroubleId
from tests.support.certificates import days_from_2020, make_certificate
from tests.support.mistakes import UNREACHABLE_NAME, Stage, right_stage
from tests.support.s3_server import S3Server
from tests.support.secured_kafka import DESCRIBE_CONFIGS, METADATA_TOPIC, READ, SecuredKafka
from tests.support.serving import Serving, serving
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

COMMON = "rlmm.config.remote.log.metadata.common.client."
NO_STORE = S3Server("http://127.0.0.1:1")

Expected = Mapping[TroubleId, str]
"""By id, the words that every place has."""
NOTHING: Expected = {}


@pytest.fixture
def stage(operators: SecuredKafka, tmp_path: Path) -> Iterator[Stage]:
    with right_stage(operators, NO_STORE, tmp_path) as right:
        yield right


def allow(stage: Stage) -> None:
    """Let `checker` read the metadata topic, and see how long it keeps records."""
    for operation in (READ, DESCRIBE_CONFIGS):
        stage.kafka.allow("checker", operation, METADATA_TOPIC)
        stage.open.callback(stage.kafka.withdraw, "checker", operation, METADATA_TOPIC)


@contextmanager
def told(stage: Stage, expected: Expected, *, is_ready: bool, follows: Expected = NOTHING) -> Iterator[Serving]:
    """A `serve` with this FILE, once each place tells of exactly these troubles. `check` was asked before, as a running
    process has the ports; it does not tell of what only `follows`."""
    checked = stage.check()
    with serving(stage.folder, stage.properties) as serve:
        wait_until(lambda: serve.log_path.exists() and "admin_listen" in serve.log(), "its first line")
        wait_until(
            lambda: not ids_of(serve) ^ {*expected, *follows} or serve.process.poll() is not None,
            "them in /readyz",
            timeout_s=40,
        )
        assert serve.process.poll() is None, serve.log()
        assert json.loads(serve.page("/readyz")[1])["ready"] is is_ready
        every_place_tells(serve, {**expected, **follows})
        for trouble, words in expected.items():
            assert any(words in said and said.endswith(f"  # {trouble}") for said in checked[1] + checked[2]), checked
        yield serve


def ids_of(serve: Serving) -> set[str]:
    """Those in `/readyz`, but for what passes by itself."""
    with suppress(OSError):  # it does not listen yet
        return {each["id"] for each in json.loads(serve.page("/readyz")[1])["troubles"]} - UNLOGGED
    return set()


def wait_told(serve: Serving, trouble: TroubleId) -> None:
    wait_until(lambda: trouble in ids_of(serve), f"{trouble} in /readyz")


def every_place_tells(serve: Serving, expected: Expected) -> None:
    documents = {path: json.loads(serve.page(path)[1])["troubles"] for path in ("/readyz", "/status.json")}
    page, metrics = serve.page("/")[1], {each for each in TroubleId if serve.metric("tidegate_trouble", id=each)}
    assert metrics - UNLOGGED == set(expected)
    for trouble, words in expected.items():
        for path, troubles in documents.items():
            assert any(words in each["what"] for each in troubles if each["id"] == trouble), (path, trouble, troubles)
        assert f"<small>{trouble}</small>" in page
        assert html.escape(words) in page
        logged = serve.wait_events("trouble_begun")
        assert any(each["id"] == trouble and words in each["reason"] for each in logged), (trouble, logged)


def test_what_degrades_it_is_told_in_every_place(stage: Stage) -> None:
    """Failed before: only the start and `check` named keys without effect."""
    taken = stage.listener()
    allow(stage)
    stage.be("checker", "PLAIN", "SASL_SSL")
    stage.certificate(HOST, days=days_from_2020(-50))
    stage.cache_of_another()
    del stage.properties["metadata.identity"]
    stage.properties |= {
        f"{COMMON}ssl.truststore.location": str(stage.kafka.certificate),
        "proxy.broker.ports": f"1:{free_port()},2:{taken.rpartition(':')[2]},3:{free_port()}",
        "proxy.advertised.host": UNREACHABLE_NAME,
        "proxy.connections.max": "1000000",
        "memory.max.bytes": "1 TiB",
        "rsm.config.dirr": "/tier",
        "tier.linger.ms": "5",
        "log.format": "json",
    }
    expected = {
        TroubleId.BROKER_WITHHELD: "which proxy.broker.ports names: Address already in use",
        TroubleId.IDENTITY_UNCLEAR: "metadata.identity is not set, and both",
        TroubleId.CONFIG_ODD: "tier.linger.ms is expert.tier.linger.ms now",
        TroubleId.CERTIFICATE_EXPIRED: "proxy.tls.certificate.file expired at",
        TroubleId.CERTIFICATE_NAMES: f"not for {UNREACHABLE_NAME}, which proxy.advertised.host tells clients",
        TroubleId.HOST_NOT_FOUND: "not to be found by DNS",
        TroubleId.NOT_DESCRIBED: "ACL Describe on Topic tiered-secret is missing",
        TroubleId.CACHE_DISK_UNAVAILABLE: "is in use by another process: name a folder for this one",
        TroubleId.MEMORY_SHORT: "the kernel would kill it; lower the key, or raise the limit",
        TroubleId.OPEN_FILES_FEW: "LimitNOFILE=",
    }
    with told(stage, expected, is_ready=True) as serve:
        for _ in range(10):
            refuse_its_certificate(stage)
        words = "clients do not trust the issuer of proxy.tls.certificate.file"
        wait_told(serve, TroubleId.HANDSHAKES_FAIL)
        every_place_tells(serve, {**expected, TroubleId.HANDSHAKES_FAIL: words})


def test_what_keeps_it_from_being_ready_is_told_in_every_place(stage: Stage) -> None:
    first, second = stage.listener(), stage.listener()
    stage.be("outsider", "PLAIN", "SASL_SSL")
    elsewhere = "192.0.2.1"  # RFC 5737: nobody's
    stage.certificate(elsewhere, days=days_from_2020(5), issuer=make_certificate("ours"))
    with (stage.folder / "certificate.pem").open("ab") as chain:
        chain.write(make_certificate("of nobody").pem)
    ports = [address.rpartition(":")[2] for address in (first, second)]
    stage.properties |= {
        "proxy.broker.ports": f"1:{free_port()},2:{ports[0]},3:{ports[1]}",
        "proxy.advertised.host": elsewhere,
        "rsm.config.dir": "/nowhere",
        "log.format": "json",
    }
    expected = {
        TroubleId.CATALOG_NOT_READ: f"ACL Describe on Topic {METADATA_TOPIC} is missing",
        TroubleId.BROKER_WITHHELD: "which proxy.broker.ports names: Address already in use",
        TroubleId.TIER_UNAVAILABLE: "there is no such folder",
        TroubleId.CERTIFICATE_EXPIRES_SOON: "proxy.tls.certificate.file expires at",
        TroubleId.CERTIFICATE_ISSUER: "proxy.tls.certificate.file holds no certificate of the issuer, CN=ours",
        TroubleId.HOST_ELSEWHERE: f"proxy.advertised.host tells clients {elsewhere} ({elsewhere}): no address of this",
    }
    with told(stage, expected, is_ready=False):
        pass


def test_unreachable_brokers_and_wrong_changes_are_told_in_every_place(stage: Stage) -> None:
    stage.properties |= {"upstream.bootstrap.servers": f"{HOST}:{free_port()}", "log.format": "json"}
    words = "connection refused: nothing listens there"
    follows = {TroubleId.CATALOG_NOT_READ: words}
    expected = {TroubleId.UPSTREAM_UNAVAILABLE: words}
    with told(stage, expected, is_ready=False, follows=follows) as serve:
        for trouble, words, keys in (
            (TroubleId.CONFIG_REFUSED, "memory.max.bytes = 1G: must be", {"memory.max.bytes": "1G"}),
            (TroubleId.RESTART_NEEDED, "memory.max.bytes", {"memory.max.bytes": "2 GiB"}),
        ):
            serve.write({**stage.properties, **keys})
            serve.process.send_signal(signal.SIGHUP)
            wait_told(serve, trouble)
            every_place_tells(serve, {**expected, **follows, trouble: words})


def refuse_its_certificate(stage: Stage) -> None:
    """Connect as a client that does not know its issuer."""
    host, _, port = stage.properties["proxy.listen"].rpartition(":")
    with socket.create_connection((host, int(port))) as connection, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(connection, server_hostname=host)
