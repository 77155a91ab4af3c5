"""What clients will meet: certificates that they refuse, and hosts that lead nowhere, or elsewhere."""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
import trio
from trio.testing import MockClock

from proxy.readiness import Readiness
from proxy.settings import ServerTls
from tests.support.certificates import START, Made, make_certificate
from tests.support.config_files import load_lines
from tests.support.waiting import settled
from tidegate import client_view as views
from tidegate.client_view import Finding, client_view
from tidegate.config import Config

NOW_S = START.timestamp() + 86_400.0
DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """DNS: addresses by host; what is not in it is not found."""
    known = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1"}

    async def getaddrinfo(host: str, port: int, **_hints: Any) -> list[Any]:
        await trio.lowlevel.checkpoint()
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], port))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    return known


def config_of(folder: Path, lines: str, made: Made | None = None, *more: Made) -> Config:
    if made is not None:
        (folder / "server.pem").write_bytes(b"".join(each.pem for each in (made, *more)))
        (folder / "server.key").write_bytes(made.key_pem)
        lines += "\nproxy.tls.certificate.file=server.pem\nproxy.tls.key.file=server.key\n"
    return load_lines(folder, lines)


View = Callable[..., Awaitable[list[Finding]]]


@pytest.fixture
def view(tmp_path: Path) -> View:
    async def look(lines: str, *chain: Made, brokers: tuple[int, ...] = (1, 2), now_s: float = NOW_S) -> list[Finding]:
        config = config_of(tmp_path, lines, *chain)
        return await client_view(config.proxy, config.proxy.tls, brokers, now_s)

    return look


def only(found: list[Finding], *words: str, is_fault: bool = True, is_guess: bool = False) -> bool:
    """Return whether there is one finding, of this kind and with these words."""
    (finding,) = found
    return (finding.is_fault, finding.is_guess) == (is_fault, is_guess) and all(word in finding.says for word in words)


LISTEN = "proxy.listen=0.0.0.0:19092\nproxy.advertised.host=localhost\n"
SNI = "proxy.listen=0.0.0.0:19092\nproxy.advertised.host=localhost\nproxy.tls.sni.pattern=b-$(nodeId).k.test\n"


async def test_nothing_is_found_where_all_is_well(view: View, resolver: dict[str, str]) -> None:
    assert await view(LISTEN) == []
    assert await view(LISTEN, make_certificate("x", ["LOCALHOST"])) == []
    assert await view("", make_certificate("x", ["127.0.0.1"])) == []
    resolver |= {"b-1.k.test": "127.0.0.1", "b-2.k.test": "127.0.0.1"}
    assert await view(SNI, make_certificate("x", ["localhost", "*.k.test"])) == []
    root = make_certificate("root")
    between = make_certificate("between", issuer=root)
    leaf = make_certificate("leaf", ["localhost"], issuer=between, is_authority=False)
    assert await view(LISTEN, leaf, between) == []


async def test_dates(view: View) -> None:
    """Failed before: an expired certificate was nothing wrong to check, and the page was green."""
    ten_days = make_certificate("x", ["localhost"], days=10)
    assert only(await view(LISTEN, ten_days, now_s=NOW_S + 9 * DAY_S), "expired at 2020-01-11", "renew")
    assert only(await view(LISTEN, ten_days), "expires at 2020-01-11", is_fault=False)
    month = make_certificate("x", ["localhost"], days=30)
    assert await view(LISTEN, month) == []
    assert only(await view(LISTEN, month, now_s=START.timestamp() + 16 * DAY_S + 1), "expires at", is_fault=False)
    assert only(await view(LISTEN, month, now_s=NOW_S - 2 * DAY_S), "is not valid before 2020-01-01", "clock")
    root = make_certificate("root", days=3)
    leaf = make_certificate("leaf", ["localhost"], issuer=root, is_authority=False)
    assert only(await view(LISTEN, leaf, root, now_s=NOW_S + 5 * DAY_S), "expired at 2020-01-04")


async def test_names(view: View, resolver: dict[str, str]) -> None:
    other = make_certificate("localhost", ["other.test"])
    assert only(await view(LISTEN, other), "is for other.test and not for localhost, which proxy.advertised.host tells")
    assert only(await view("", make_certificate("x", ["localhost"])), "not for 127.0.0.1")
    assert only(await view(LISTEN, make_certificate("localhost")), "no subject alternative name", "localhost")

    resolver |= {"b-1.k.test": "127.0.0.1", "b-2.k.test": "127.0.0.1", "broker-1": "127.0.0.1", "broker-2": "127.0.0.1"}
    mismatch = "not for b-1.k.test, b-2.k.test, which proxy.tls.sni.pattern tells clients"
    assert only(await view(SNI, make_certificate("x", ["localhost", "*.test", "b.k.test"])), mismatch)
    assert only(await view(SNI, make_certificate("x", ["localhost", "b-1.k.test"])), "not for b-2.k.test,")
    bootstrap = "not for localhost, which proxy.advertised.host tells"
    assert only(await view(SNI, make_certificate("x", ["*.k.test"])), bootstrap)
    (guess,) = await view(SNI, make_certificate("x", ["localhost"]), brokers=())
    # Failed before: until a broker was known, a running serve told of the name of a broker 0.
    assert ("not for b-0.k.test" in guess.says, guess.is_guess) == (True, True)
    each = LISTEN.replace("localhost", "broker-$(nodeId)")
    assert only(await view(each, make_certificate("x", ["broker-1"])), "not for broker-2,")


async def test_a_missing_intermediate(view: View) -> None:
    """With a private authority it may be the root that clients trust; not beside certificates that issued nothing."""
    root = make_certificate("root")
    between = make_certificate("between", issuer=root)
    leaf = make_certificate("leaf", ["localhost"], issuer=between, is_authority=False)
    words = ("no certificate of the issuer, CN=between", "append it")
    assert only(await view(LISTEN, leaf), *words, is_fault=False, is_guess=True)
    assert only(await view(LISTEN, leaf, root), *words)
    forged = make_certificate("between")
    assert only(await view(LISTEN, leaf, forged), *words)


async def test_where_hosts_lead(view: View, resolver: dict[str, str]) -> None:
    """Failed before: nobody looked."""
    lost = LISTEN.replace("localhost", "lost.test")
    assert only(
        await view(lost), "proxy.advertised.host tells clients lost.test (", "not known", "not to be found by DNS"
    )
    resolver["lost.test"] = "192.0.2.7"
    assert only(await view(lost), "tells clients lost.test (192.0.2.7): no address of this machine", is_fault=False)
    assert await view(f"{lost}proxy.advertised.port.start=30000\n") == []
    assert await view(f"{lost}proxy.protocol=true\nproxy.protocol.trusted=192.0.2.7\n") == []
    resolver["b-1.k.test"] = "127.0.0.1"
    certificate = make_certificate("x", ["localhost", "*.k.test"])
    assert only(await view(SNI, certificate), "proxy.tls.sni.pattern tells clients b-2.k.test (", "not to be found")


async def test_a_host_that_nobody_answers_for_is_not_waited_for(
    view: View, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_asked: object, **_hints: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio.socket, "getaddrinfo", silent)
    assert only(await view(LISTEN), "localhost (no answer within 5 s): not to be found")


async def test_a_running_serve_tells_until_it_is_mended(
    tmp_path: Path, nursery: trio.Nursery, mock_clock: MockClock, resolver: dict[str, str]
) -> None:
    class Brokers:
        brokers = (1,)

    async def step(seconds: float) -> list[str]:
        mock_clock.jump(seconds)
        await settled()
        return readiness.complaints

    def tls_of(*names: str) -> ServerTls | None:
        return config_of(tmp_path, LISTEN, make_certificate("x", [*names])).proxy.tls

    readiness, tls = Readiness(), tls_of("other.test")
    proxy = config_of(tmp_path, LISTEN).proxy
    with structlog.testing.capture_logs() as logs:
        nursery.start_soon(views.watch_client_view, proxy, lambda: tls, cast(Any, Brokers()), readiness)
        await settled()
        (complaint,) = await step(views.LOOK_S)
        assert "not for localhost" in complaint
        assert [(entry["event"], entry["id"]) for entry in logs] == [("trouble_begun", "certificate_names")], "once"
        tls = tls_of("localhost")  # it was renewed, and read again
        assert await step(views.CHANGE_S) == []
        del resolver["localhost"]
        assert await step(views.CHANGE_S) == []
        (complaint,) = await step(views.LOOK_S)
        assert "not to be found" in complaint
