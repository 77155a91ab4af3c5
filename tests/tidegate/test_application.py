"""Everything put together, before an upstream that is not there: what listens, and what refuses to start."""

import json
import socket
import threading
from pathlib import Path

import httpx
import pytest
import trio

from metrics.meters import ReloadOutcome
from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import AddressBook
from proxy.connection.brokers_file import KnownBrokersFile
from tests.support.config_files import load_lines
from tests.support.opened_bytes import ReadOnlyManager
from tidegate import exit_codes
from tidegate.config import Config
from tidegate.reload import Cause
from tidegate.serve import run, serve

LOCAL_TIER = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"

pytestmark = pytest.mark.usefixtures("restored_logging")


def config_of(folder: Path, lines: str = "", *, storage: str = LOCAL_TIER, upstream_port: int = 1) -> Config:
    """An in-memory catalog over an empty local tier; nobody listens at port 1."""
    (folder / "tier").mkdir(exist_ok=True)
    return load_lines(
        folder,
        f"upstream.bootstrap.servers=127.0.0.1:{upstream_port}\n"
        f"remote.log.storage.manager.class.name={storage}\n"
        "remote.log.metadata.manager.class.name=tidegate.InMemory\n"
        f"rsm.config.dir={folder / 'tier'}\n"
        "proxy.listen=127.0.0.1:0\nproxy.broker.port.start=0\nadmin.listen=127.0.0.1:0\n" + lines,
        minimal=False,
    )


def taken_port() -> tuple[socket.socket, int]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, int(server.getsockname()[1])


async def test_it_listens_at_once_and_says_why_it_is_not_ready(tmp_path: Path) -> None:
    async with run(config_of(tmp_path, "proxy.upstream.connect.timeout.ms=0\n")) as application:
        host, port = application.admin
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as admin:
            assert (await admin.get("/livez")).status_code == 200
            ready = await admin.get("/readyz")
            assert ready.status_code == 503
            assert "upstream" in ready.text
        async with await trio.open_tcp_stream(*application.bootstrap) as client:
            assert await client.receive_some() == b""
        await application.server.wait_empty()


async def test_two_identities_without_a_choice_are_a_complaint(tmp_path: Path) -> None:
    # Failed before: nothing said with which of them the metadata topic was read.
    prefix, module = "remote.log.metadata.common.client.", "org.apache.kafka.common.security.plain.PlainLoginModule"
    lines = (
        "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\nupstream.sasl.username=a\n"
        f"upstream.sasl.password=p\n{prefix}sasl.mechanism=PLAIN\n"
        f'{prefix}sasl.jaas.config={module} required username="b" password="p";\n'
    )
    async with run(config_of(tmp_path, lines)) as application:
        [complaint] = application.readiness.complaints
        assert complaint.startswith("metadata.identity is not set, and both upstream.* and")
    async with run(config_of(tmp_path, f"{lines}metadata.identity=upstream\n")) as application:
        assert application.readiness.complaints == []


async def test_it_listens_at_once_for_the_brokers_of_the_last_run(tmp_path: Path) -> None:
    # Failed before: clients that remembered them were refused until a broker had answered somebody's Metadata.
    path = tmp_path / "kept"
    file = KnownBrokersFile(path, ["127.0.0.1:1"])
    with taken_port()[0] as freed:
        port = freed.getsockname()[1]
    file.note([NodeAddress(5, "127.0.0.1", 1)], {5: port})
    await file.write()
    async with run(config_of(tmp_path, f"catalog.snapshot.path={path}\n")) as application:
        assert isinstance(application.addresses, AddressBook)
        assert application.addresses.advertised == {5: ("127.0.0.1", port)}
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.aclose()
        assert not application.readiness.ready


async def test_a_thread_that_waits_for_the_store_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The store was closed only after its threads had ended: stopping took as long as a silent store was waited for."""
    asked, closed = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    class SilentStorage(ReadOnlyManager):
        def warm_up(self) -> None:
            token.run_sync_soon(asked.set)
            assert closed.wait(60), "nobody ended the wait"

        def close(self) -> None:
            closed.set()

    async with run(config_of(tmp_path), open_storage_manager=lambda _name, _config: SilentStorage()):
        await asked.wait()


async def test_what_runs_follows_the_live_settings(tmp_path: Path) -> None:
    async with run(config_of(tmp_path)) as application:
        assert application.settings.server is application.server
        assert application.settings.frontiers is not None
        config_of(tmp_path, "proxy.connections.max=7\nproxy.drain.timeout.ms=1000\nexpert.frontier.max.age.ms=5000\n")
        assert await application.reloader.reload(Cause.SIGNAL) is ReloadOutcome.OK
        assert application.server.settings.slots.connections_max == 7
        assert application.settings.frontiers.age_s_max == 5
        assert application.drain_timeout_s == 1


@pytest.mark.parametrize("key", ["proxy.listen", "admin.listen"])
def test_a_taken_port_is_one_line_with_its_key(key: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    taken, port = taken_port()
    with taken:
        code = trio.run(serve, config_of(tmp_path, f"{key}=127.0.0.1:{port}\n"))
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tidegate:")]
    assert code == exit_codes.FOUND_WRONG
    assert len(lines) == 1
    assert key in lines[0]
    assert str(port) in lines[0]


def test_a_storage_plug_in_with_wrong_settings_is_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    secret = "rsm.config.pwd=open-sesame\nlog.level=warn\n"
    assert config_of(tmp_path, secret).log.level == "warning"
    config = config_of(tmp_path, f"rsm.config.dir=\n{secret}log.level=info\n")
    code = trio.run(serve, config)
    assert code == exit_codes.USAGE
    error = capfd.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("tidegate:")]
    assert len(lines) == 1
    assert "rsm.config.dir is not set" in lines[0]
    told = [json.loads(line) for line in error.splitlines() if line.startswith("{")]
    assert [line["event"] for line in told] == ["starting", "stopped"]
    assert (told[0]["store"], told[0]["upstream"]) == ("LocalTieredStorage", "127.0.0.1:1")
    assert told[1]["exit_code"] == exit_codes.USAGE
    assert "open-sesame" not in error
