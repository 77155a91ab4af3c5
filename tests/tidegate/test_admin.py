"""The admin pages over a real socket: statuses, bodies, and a listener that ends as it should."""

import json
import queue
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import trio

from metrics.meters import Meters
from proxy.readiness import Readiness
from storage.config.model import HostPort
from tests.support.waiting import HANG_S_MAX
from tests.tidegate.workers.all.test_descriptors import no_open_file
from tidegate.admin import SPARE_FILES, OwnPages, Streams, serve_admin
from tidegate.config.model import AdminConfig
from tidegate.http import REQUEST_HEAD_BYTES_MAX
from tidegate.status.collect import empty_status
from tidegate.status.model import Query, Status


class Admin:
    """A running admin listener with its state."""

    def __init__(self, address: tuple[str, int], readiness: Readiness, meters: Meters) -> None:
        self.address = address
        self.readiness = readiness
        self.meters = meters

    async def ask(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send raw bytes; status, headers and body of the answer."""
        async with await trio.open_tcp_stream(*self.address) as stream:
            await stream.send_all(raw)
            answer = b""
            async for part in stream:
                answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        return int(status.split()[1]), headers, body

    async def get(self, path: str, accept: str = "*/*") -> tuple[int, dict[str, str], bytes]:
        """GET a path."""
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        return await self.ask(request.encode())


def admin_config(port: int = 0, **keys: Any) -> AdminConfig:
    return AdminConfig(listen=HostPort("127.0.0.1", port), **keys)


def pages_of(readiness: Readiness, meters: Meters, streams: Streams = list) -> OwnPages:
    async def status(query: Query) -> Status:
        return empty_status(readiness, query)

    return OwnPages(readiness, meters.registry, streams, status, None)


@asynccontextmanager
async def running(*, is_ready: bool = False, streams: Streams = list, **keys: Any) -> AsyncIterator[Admin]:
    readiness, meters = Readiness(), Meters()
    if is_ready:
        make_ready(readiness)
    with trio.fail_after(HANG_S_MAX):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_admin, admin_config(**keys), pages_of(readiness, meters, streams))
            yield Admin(address, readiness, meters)
            nursery.cancel_scope.cancel()


def make_ready(readiness: Readiness) -> None:
    readiness.catalog_live(7)
    readiness.upstream_answered(3)
    readiness.tier_answered()


def stage_of(readiness: Readiness) -> str:
    """As /readyz says it."""
    return readiness.stage.value


async def test_livez_answers_whatever_the_state_and_does_not_name_its_server() -> None:
    async with running() as admin:
        status, headers, body = await admin.get("/livez")
        assert (status, body) == (200, b"ok\n")
        assert "server" not in headers
        admin.readiness.catalog_unavailable("the metadata topic does not exist")
        admin.readiness.upstream_unavailable("no broker answers")
        admin.readiness.tier_failed("no answer within 10 s")
        assert (await admin.get("/livez"))[0] == 200
        assert (await admin.get("/readyz"))[0] == 503
        admin.readiness.drain()
        assert (await admin.get("/livez"))[0] == 200


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at open files in /proc")
async def test_pages_answer_when_the_process_has_no_open_file_left() -> None:
    """Failed before: nobody was accepted, and the log had ten lines a second."""
    async with running(is_ready=True) as admin:
        with ExitStack() as stack:
            clients = [stack.enter_context(trio.socket.socket()) for _ in range(SPARE_FILES + 3)]
            stack.enter_context(no_open_file())
            for client in clients:  # they stay, so the last ones get the places of those that wait
                await client.connect(admin.address)
                for path in ("/livez", "/readyz", "/metrics"):
                    assert await status_kept_open(client, path) == 200


async def status_kept_open(client: trio.socket.SocketType, path: str) -> int:
    """GET a path, and leave the connection open."""
    await client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = h11.Connection(h11.CLIENT)
    answer.send(h11.Request(method="GET", target=path, headers=[("Host", "localhost")]))
    answer.send(h11.EndOfMessage())
    status = 0
    while not isinstance(event := answer.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            answer.receive_data(await client.recv(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
    return status


def test_livez_does_not_answer_while_the_loop_does_not_turn() -> None:
    """A loop of its own in another thread, which is held up and let go again."""
    go_on = threading.Event()
    addresses: queue.Queue[tuple[tuple[str, int], trio.lowlevel.TrioToken, trio.CancelScope]] = queue.Queue()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_admin, admin_config(), pages_of(Readiness(), Meters()))
            addresses.put((address, trio.lowlevel.current_trio_token(), nursery.cancel_scope))

    loop = threading.Thread(target=trio.run, args=(serve,), daemon=True)
    loop.start()
    (host, port), token, scope = addresses.get(timeout=HANG_S_MAX)
    url = f"http://{host}:{port}/livez"
    assert httpx.get(url, timeout=HANG_S_MAX).status_code == 200
    token.run_sync_soon(go_on.wait)
    with pytest.raises(httpx.TimeoutException):
        httpx.get(url, timeout=0.3)
    go_on.set()
    assert httpx.get(url, timeout=HANG_S_MAX).status_code == 200
    token.run_sync_soon(scope.cancel)
    loop.join(HANG_S_MAX)


async def test_readyz_is_503_with_reasons_until_ready() -> None:
    async with running() as admin:
        status, headers, body = await admin.get("/readyz")
        assert (status, headers["content-type"]) == (503, "application/json")
        report = json.loads(body)
        assert report["ready"] is False
        assert len(report["reasons"]) == 3
        make_ready(admin.readiness)
        status, _, body = await admin.get("/readyz")
        assert status == 200
        assert json.loads(body) == {
            "state": "serving",
            "ready": True,
            "degraded": False,
            "reasons": [],
            "complaints": [],
            "conditions": {
                "catalog": {"state": "met", "reason": "7 segments", "trouble": None},
                "upstream": {"state": "met", "reason": "3 brokers", "trouble": None},
                "tier": {"state": "met", "reason": "the tier answers", "trouble": None},
                "tasks": {"state": "met", "reason": "all background tasks run", "trouble": None},
            },
            "broker_problems": {},
            "troubles": [],
            "partition_problems": {},
        }


async def test_bad_requests_get_a_status_and_the_listener_goes_on() -> None:
    for raw, status in (
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"POST /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nBig: " + b"x" * 5 * REQUEST_HEAD_BYTES_MAX, 431),
        (b"\x00\x00\x00\x2a garbage\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\npart", 405),
    ):
        async with running() as admin:
            assert (await admin.ask(raw))[0] == status, raw[:80]
            assert (await admin.get("/livez"))[0] == 200, raw[:80]


async def test_a_page_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    """Failed before: "no such page"."""
    async with running() as admin:
        status, _, body = await admin.get("/status")
        assert (status, body) == (
            404,
            b"no such page; there are /metrics, /livez, /readyz, /streams, /status.json, /\n",
        )


async def test_a_taken_port_is_an_error_that_names_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}, which admin.listen names: "):
            await serve_admin(admin_config(port), pages_of(Readiness(), Meters()))


async def test_only_requests_by_this_hosts_names_are_answered() -> None:
    # Failed before: a page elsewhere whose name was pointed at 127.0.0.1 could read everything (DNS rebinding).
    ours = ("localhost:9464", "LOCALHOST.", "127.0.0.1", "[::1]:9464", "10.1.2.3:80", socket.gethostname())
    others = ("evil.example", "evil.example:9464", "127.0.0.1.evil.example", "localhost.evil.example", "user@localhost")
    statuses = dict.fromkeys((*ours, "tidegate.example:9464"), 200) | dict.fromkeys(others, 403)
    async with running(allowed_hosts=("tidegate.example",)) as admin:
        for host, status in statuses.items():
            asked = f"GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            found, _, body = await admin.ask(asked.encode())
            assert (found, b"admin.allowed.hosts" in body) == (status, status == 403), host


async def test_half_sent_requests_make_way_for_whole_ones() -> None:
    # Failed before: all of them were held for 75 s, each with a task and a socket.
    async with running(connections_max=8) as admin, AsyncExitStack() as stack:
        halves = [await stack.enter_async_context(await trio.open_tcp_stream(*admin.address)) for _ in range(60)]
        for half in halves:
            with suppress(trio.BrokenResourceError):
                await half.send_all(b"GET /livez HTTP/1.1\r\nHost: local")
        assert (await admin.get("/livez"))[0] == 200
        ended = 0
        for half in halves[:-8]:
            with suppress(trio.BrokenResourceError):
                assert await half.receive_some() == b""
            ended += 1
        assert ended == 52


async def test_http_2_is_refused_and_an_upgrade_to_it_passed_over() -> None:
    # Failed before: both ended in HTTP/2, with its streams and their limits of their own.
    upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    async with running() as admin:
        assert (await admin.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))[0] == 505
        assert (await admin.ask(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + upgrade))[::2] == (200, b"ok\n")
