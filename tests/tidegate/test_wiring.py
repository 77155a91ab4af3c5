"""What `serve` plugs together: each part is started, and is given what it works with.

Each part has tests of its own. What is looked at here is whether it is plugged in, so the parts' methods are replaced
by some that note their calls, and the application around them is whole.
"""

import html
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trio

from metrics.meters import ReloadOutcome
from proxy.connection.accounts import Accounts
from proxy.connection.client_reads import ClientReads
from proxy.connection.handshakes import FAILED_MIN
from proxy.connection.server import Server
from standalone.copying import Copying
from standalone.serving.log_starts import TierLogStarts
from storage.model import RemoteLogSegmentState
from tests.support.certificates import make_certificate
from tests.support.config_files import load_lines
from tests.support.fake_kafka import FakeKafka
from tests.support.metadata_records import apply_all, finish, moved, started
from tests.support.waiting import until
from tidegate import answering, copy_wiring, front, operators_side, process, read_tier, serve
from tidegate.audit_log import AuditLog
from tidegate.config import Config
from tidegate.reload import Cause, Reloader
from tidegate.tier_storage import TierStorage

pytestmark = pytest.mark.usefixtures("restored_logging")


class Noted:
    """Calls by name: what a replaced function or method was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, tuple[Any, ...]] = {}
        self._started: list[trio.Event] = []
        self._monkeypatch = monkeypatch

    def task(self, owner: Any, name: str) -> None:
        """In place of a task that runs until the end; its call is noted as "Owner.name"."""
        started = trio.Event()
        self._started.append(started)

        async def run(*given: object) -> None:
            self.calls[f"{owner.__name__.rpartition('.')[2]}.{name}"] = given
            started.set()
            await trio.sleep_forever()

        self._monkeypatch.setattr(owner, name, run)

    async def all_run(self) -> None:
        """Wait until every replaced task has been started."""
        with trio.fail_after(20):
            for started in self._started:
                await started.wait()

    def made(self, module: Any, name: str) -> Callable[[], dict[str, Any]]:
        """The class makes what it made; gives what it was given by keyword."""
        kept: dict[str, Any] = {}
        original = getattr(module, name)

        def make(*positional: Any, **given: Any) -> Any:
            kept.update(given)
            return original(*positional, **given)

        self._monkeypatch.setattr(module, name, make)
        return lambda: kept


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def config_of(folder: Path, lines: str = "", *, keeps_catalog: bool = False) -> Config:
    """Over an empty tier in a folder. `keeps_catalog`: it is read from the metadata topic, as a copier needs it."""
    (folder / "tier" / "kafka-tiered-storage").mkdir(parents=True, exist_ok=True)
    manager = "" if keeps_catalog else "remote.log.metadata.manager.class.name=tidegate.InMemory\n"
    return load_lines(
        folder,
        "upstream.bootstrap.servers=a:1\n"
        "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage\n"
        f"{manager}rsm.config.dir={folder / 'tier'}\n"
        "proxy.listen=127.0.0.1:0\nproxy.broker.port.start=0\nadmin.listen=127.0.0.1:0\n" + lines,
        minimal=False,
    )


async def test_every_task_runs(tmp_path: Path, kafka: FakeKafka, noted: Noted) -> None:
    kafka.add(1, "a")
    noted.task(serve, "follow_brokers")
    noted.task(serve, "follow_topics")
    noted.task(front, "watch_client_view")
    noted.task(read_tier, "watch_tier")
    noted.task(operators_side, "take_gauges")
    noted.task(process, "watch_loop")
    for owner in (Accounts, AuditLog, Reloader, TierStorage):
        noted.task(owner, "run")
    noted.task(Server, "watch")
    async with serve.run(config_of(tmp_path, f"audit.log={tmp_path / 'audit'}\n")) as application:
        await noted.all_run()
        assert noted.calls["serve.follow_brokers"][0] is application.cluster
        assert noted.calls["serve.follow_topics"][:2] == (application.cluster, application.catalog)
        assert noted.calls["front.watch_client_view"][-1] is application.readiness
        assert noted.calls["operators_side.take_gauges"][2] is application.server
        assert application.readiness in noted.calls["read_tier.watch_tier"]
        assert noted.calls["Server.watch"] == (application.server,)
        assert noted.calls["Reloader.run"] == (application.reloader,)


async def test_ready_says_of_how_many_brokers_it_has_the_ports(tmp_path: Path, kafka: FakeKafka) -> None:
    """Failed before: `brokers 3`, and ready, with two of the three ports not bound."""
    for number in (1, 2, 3):
        kafka.add(number, "abc"[number - 1])
    with ExitStack() as held:
        taken = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = ",".join(f"{number}:{sock.getsockname()[1]}" for number, sock in zip((1, 3), taken, strict=True))
        async with serve.run(config_of(tmp_path, f"proxy.broker.ports={ports}\n")) as application:
            await until(lambda: "1 of 3" in str(application.readiness.reasons), "the reason")
            assert "proxy.broker.ports" in str(application.readiness.reasons)
            assert not application.readiness.ready
            taken[0].close()
            await application.readiness.wait_ready()
            assert ", brokers 2 of 3, " in application.ready_line
            taken[1].close()
            await until(lambda: ", brokers 3, " in application.ready_line, "all of them")


async def test_tls_by_pythons_ssl_is_said_in_every_place(tmp_path: Path, kafka: FakeKafka) -> None:
    """Failed before: it was silent."""
    kafka.add(1, "a")
    words = "TLS from the store is received by Python's ssl: tier.tls.native=false"
    # The bucket alone says that there is TLS; the tier is in a folder all the same.
    lines = "rsm.config.storage.s3.bucket.name=logs\ntier.tls.native=false\n"
    async with serve.run(config_of(tmp_path, lines)) as application:
        await application.readiness.wait_ready()
        assert application.ready_line.endswith(f", brokers 1, segments 0, {words}")
        assert application.meters.registry.sample_value("tidegate_store_tls_python", {}) == 1
        host, port = application.admin
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as pages:
            assert (await pages.get("/status.json")).json()["about"]["store_tls"] == words
            assert html.escape(words) in (await pages.get("/")).text
    async with serve.run(config_of(tmp_path)) as application:
        assert application.ready_line.endswith(", segments 0")
        assert application.meters.registry.sample_value("tidegate_store_tls_python", {}) == 0


async def test_clients_that_refuse_the_certificate_are_told_of_in_every_place(tmp_path: Path, kafka: FakeKafka) -> None:
    """Failed before: the page was green, nothing was counted, and every client was refused."""
    kafka.add(1, "a")
    made = make_certificate("ours", ["other.test"])
    (tmp_path / "server.pem").write_bytes(made.pem + made.key_pem)
    context = ssl.create_default_context(cadata=made.pem.decode())

    def is_refused(address: tuple[str, int]) -> None:
        with socket.create_connection(address) as plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")

    async with serve.run(config_of(tmp_path, "proxy.tls.certificate.file=server.pem\n")) as application:
        for _ in range(FAILED_MIN):
            await trio.to_thread.run_sync(is_refused, application.bootstrap)
        await application.readiness.wait_ready()
        await until(lambda: len(application.readiness.complaints) == 2, "both complaints")
        names, refusals = application.readiness.complaints
        assert names.startswith("proxy.tls.certificate.file is for other.test and not for 127.0.0.1")
        assert refusals.startswith("clients refuse proxy.tls.certificate.file")
        assert application.readiness.degraded
        host, port = application.admin
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as admin:
            page, document = (await admin.get("/")).text, (await admin.get("/status.json")).json()
            metrics = (await admin.get("/metrics")).text
        told = [trouble["what"] for trouble in document["troubles"]]
        assert {names, refusals} <= {*told}
        assert all(html.escape(each) in page for each in (names, refusals))
        assert f'tidegate_client_handshakes_total{{outcome="refused"}} {FAILED_MIN}' in metrics


async def test_what_the_tier_no_longer_has_leaves_the_cache(
    tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is deleted at once, and at the first readiness what was deleted while nobody looked."""
    kafka.add(1, "a")
    removed: list[object] = []
    swept = trio.Event()

    async def drop_unknown(_self: TierStorage, _known: object) -> None:
        swept.set()

    monkeypatch.setattr(TierStorage, "segment_removed", lambda _self, segment: removed.append(segment))
    monkeypatch.setattr(TierStorage, "drop_unknown", drop_unknown)
    async with serve.run(config_of(tmp_path)) as application:
        segment = started("gone", 0, 9)
        finish(application.catalog, segment)
        apply_all(application.catalog, *(moved(segment, state) for state in DELETED))
        assert {segment.segment_id} == {*removed}
        with trio.fail_after(20):
            await swept.wait()


async def test_the_server_is_given_what_the_configuration_says(tmp_path: Path, kafka: FakeKafka, noted: Noted) -> None:
    kafka.add(1, "a", 1)
    given = noted.made(answering, "Server")
    lines = f"proxy.protocol=true\nproxy.protocol.trusted=127.0.0.0/8\naudit.log={tmp_path / 'audit'}\n"
    async with serve.run(config := config_of(tmp_path, lines)) as application:
        await application.readiness.wait_ready()
        assert config.proxy.protocol_trusted
        assert given()["proxy_trusted"] == config.proxy.protocol_trusted
        assert given()["known_brokers"]() == [("a", 1)]
        assert given()["audit"] is not None
        assert given()["meter"] is application.meters.relay


async def test_a_moved_log_start_voids_what_every_connection_was_allowed(
    tmp_path: Path, kafka: FakeKafka, noted: Noted
) -> None:
    kafka.add(1, "a")
    server, fetches = noted.made(answering, "Server"), noted.made(answering, "FetchService")
    async with serve.run(config_of(tmp_path)):
        exchanges = server()["handlers"](cast(ClientReads, object()))
        before = fetches()["generation"].value
        exchanges.on_log_start_moved()
        assert fetches()["generation"].value == before + 1


DELETED = (RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
STANDALONE = "mode=standalone\ncopy.enabled=true\ncopy.topics=orders\n"


@pytest.fixture
def ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copier that does not run has nothing to let go of."""

    async def aclose(_self: Copying) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Copying, "aclose", aclose)


@pytest.mark.usefixtures("ends_at_once")
async def test_a_tier_of_our_own_is_followed_and_copied(tmp_path: Path, kafka: FakeKafka, noted: Noted) -> None:
    kafka.add(1, "a")
    noted.task(TierLogStarts, "run")
    noted.task(copy_wiring, "keep_copying")
    lines = f"{STANDALONE}cache.path={tmp_path / 'cache'}\n"
    async with serve.run(config_of(tmp_path, lines, keeps_catalog=True)):
        await noted.all_run()


@pytest.mark.usefixtures("ends_at_once")
async def test_copying_stops_while_the_configuration_says_so(
    tmp_path: Path, kafka: FakeKafka, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on when it no longer does, without a restart."""
    kafka.add(1, "a")
    noted.task(copy_wiring, "keep_copying")
    makers: list[Callable[..., object]] = []
    tools = noted.made(copy_wiring, "CopierTools")

    def copying(parts: Any, make_copier: Callable[..., object]) -> Copying:
        makers.append(make_copier)
        return Copying(parts, cast(Any, make_copier))

    monkeypatch.setattr(copy_wiring, "Copying", copying)
    lines = f"{STANDALONE}cache.path={tmp_path / 'cache'}\n"
    async with serve.run(config_of(tmp_path, lines, keeps_catalog=True)) as application:
        event_log, topics = cast(Any, object()), cast(Any, Topics())
        makers[0](event_log, topics)
        is_disabled = tools()["is_disabled"]
        assert not is_disabled()
        config_of(tmp_path, f"{lines}copy.disable=true\n", keeps_catalog=True)
        assert await application.reloader.reload(Cause.SIGNAL) is ReloadOutcome.OK
        assert is_disabled()


class Topics:
    """As much of CopyTopics as making a copier needs."""

    def retention_of(self, _topic: str) -> None: ...

    def is_copied(self, _topic: str) -> None: ...

    def upstream_retention(self, _topic: str) -> None: ...

    async def confirm_gone(self, _partitions: object) -> None: ...
