"""Every key that the table marks as reloadable is followed by what runs, and no other is."""

import ssl
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.connection.server import Server
from proxy.fetch.frontiers import Frontiers
from proxy.settings import ClientAuth, ServerTls
from storage.config.keys import Reload
from storage.config.model import ClientTls, SecurityProtocol
from storage.config.ssl_contexts import client_ssl_context
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines
from tests.support.for_each import for_each
from tests.support.tls_handshake import handshake
from tidegate import live_settings
from tidegate.config.model import SERVE_KEYS, LogFormat
from tidegate.live_settings import LiveSettings, server_ssl_context
from tidegate.workers.shares import share_of

FOLLOWED: dict[str, tuple[str, str, object]] = {
    "proxy.connections.max": ("7", "server_settings.slots.connections_max", 7),
    "proxy.connections.idle.max.ms": ("7000", "server_settings.slots.idle_s_max", 7),
    "proxy.connections.max.per.ip": ("7", "server_settings.slots.connections_max_per_address", 7),
    "proxy.connections.rate.per.ip": ("7", "server_settings.slots.rate_max_per_address", 7),
    "proxy.frame.request.bytes.max": ("2 KiB", "server_settings.limits.request_frame_bytes_max", 2048),
    "expert.proxy.frame.unauthenticated.bytes.max": (
        "2 KiB",
        "server_settings.limits.unauthenticated_frame_bytes_max",
        2048,
    ),
    "expert.proxy.response.held.bytes.max": (
        "65 MiB",
        "server_settings.limits.response_held_bytes_max",
        65 * 1024 * 1024,
    ),
    "expert.proxy.inflight.requests.max": ("7", "server_settings.limits.inflight_requests_max", 7),
    "expert.relay.rewrite.bytes.max": ("2 KiB", "server_settings.limits.relay_rewrite_bytes_max", 2048),
    "proxy.upstream.connect.timeout.ms": ("7000", "server_settings.connect_wait_s_max", 7),
    "proxy.drain.delay.ms": ("7000", "drain_delay_s", 7),
    "proxy.drain.timeout.ms": ("7000", "drain_timeout_s", 7),
    "proxy.read.prefer": ("tier", "fetch.read_prefer_tier", True),
    "remote.fetch.max.wait.ms": ("3000", "fetch.fetch_wait_s_max", 3),
    "expert.tier.linger.ms": ("3000", "fetch.linger_s", 3),
    "expert.proxy.send.stall.ms": ("7000", "accounts.send_stall_s", 7),
    "expert.fallback.after.ms": ("7000", "fallback.after_s", 7),
    "fallback.partitions.max": ("7", "fallback.partitions_max", 7),
    "authority.max.age.ms": ("7000", "fetch.authority_age_s_max", 7),
    "expert.frontier.max.age.ms": ("7000", "frontier_age_s_max", 7),
    "remote.list.offsets.request.timeout.ms": ("7000", "list_offsets_timeout_s", 7),
    "copy.disable": ("true", "copies", False),
}
LOGS = {"log.level": "debug", "log.format": "console"}
TLS = {
    "proxy.tls.certificate.file": "other/server.pem",
    "proxy.tls.key.file": "other/server.key",
    "proxy.tls.key.password": "secret",
    "proxy.tls.client.auth": "requested",
    "proxy.tls.client.ca.file": "other/server.pem",
}


def tls_lines(folder: Path, **other: str) -> str:
    """A pair in `folder`, another in `folder/other`, and the first one's lines."""
    if not (folder / "other").exists():
        (folder / "other").mkdir()
        server_certificate(folder)
        server_certificate(folder / "other")
    lines = {
        "proxy.tls.certificate.file": "server.pem",
        "proxy.tls.key.file": "server.key",
        "proxy.tls.client.ca.file": "server.pem",
        **{key.replace("_", "."): value for key, value in other.items()},
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def test_each_reloadable_key_has_a_case_here() -> None:
    marked = {key.name for key in SERVE_KEYS.keys if key.reload is not Reload.RESTART}
    assert marked == {*FOLLOWED, *LOGS, *TLS}


@for_each("key", FOLLOWED)
def test_it_is_followed(key: str, tmp_path: Path) -> None:
    text, followed_by, expected = FOLLOWED[key]
    see = attrgetter(followed_by)
    live = LiveSettings(load_lines(tmp_path, ""))
    server, frontiers = SimpleNamespace(settings=None), SimpleNamespace(age_s_max=None)
    live.server, live.frontiers = cast(Server, server), cast(Frontiers, frontiers)
    shared = live.fetch
    assert see(live) != expected
    live.follow(load_lines(tmp_path, f"{key}={text}\n"))
    assert see(live) == expected
    # What runs looks at these three: nobody has to say it again.
    assert server.settings is live.server_settings
    assert frontiers.age_s_max == live.frontier_age_s_max
    assert live.fetch is shared


@for_each("protocol", SecurityProtocol)
def test_a_sign_in_is_demanded_as_upstream_did_at_the_start(protocol: SecurityProtocol, tmp_path: Path) -> None:
    identity = "upstream.sasl.mechanism=PLAIN\nupstream.sasl.username=u\nupstream.sasl.password=p\n"
    live = LiveSettings(load_lines(tmp_path, f"upstream.security.protocol={protocol}\n{identity}"))
    expected = protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
    assert live.server_settings.limits.demands_sign_in is expected
    other = SecurityProtocol.PLAINTEXT if expected else SecurityProtocol.SASL_PLAINTEXT
    live.follow(load_lines(tmp_path, f"upstream.security.protocol={other}\n{identity}"))
    assert live.server_settings.limits.demands_sign_in is expected


@for_each("key", LOGS)
def test_the_log_is_followed(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[tuple[str, LogFormat, str | None]] = []

    def configure(level: str, form: LogFormat, *, worker: str | None) -> None:
        configured.append((level, form, worker))

    monkeypatch.setattr(live_settings, "configure_logs", configure)
    live = LiveSettings(load_lines(tmp_path, ""))
    live.follow(load_lines(tmp_path, "expert.tier.linger.ms=1\n"))
    assert configured == []
    changed = load_lines(tmp_path, f"{key}={LOGS[key]}\n")
    live.follow(share_of(changed, 1, 2))
    assert configured == [(changed.log.level, changed.log.format, "1")]


@for_each("key", ["proxy.tls.certificate.file", "proxy.tls.client.auth", "proxy.tls.client.ca.file"])
def test_tls_towards_clients_is_followed(key: str, tmp_path: Path) -> None:
    live = LiveSettings(load_lines(tmp_path, tls_lines(tmp_path)))
    before = live.server_settings.client_tls
    changed = {key: TLS[key]} | ({"proxy.tls.key.file": TLS["proxy.tls.key.file"]} if "certificate" in key else {})
    live.follow(load_lines(tmp_path, tls_lines(tmp_path, **changed)))
    after = live.server_settings.client_tls
    assert before is not None
    assert after is not None
    assert after is not before
    if key == "proxy.tls.client.auth":
        assert after.verify_mode != before.verify_mode
    if key == "proxy.tls.client.ca.file":
        assert after.get_ca_certs(binary_form=True) != before.get_ca_certs(binary_form=True)


def test_new_content_of_the_same_files_is_followed_and_the_same_is_not(tmp_path: Path) -> None:
    lines = tls_lines(tmp_path)
    live = LiveSettings(load_lines(tmp_path, lines))
    before = live.server_settings.client_tls
    live.follow(load_lines(tmp_path, lines + "expert.tier.linger.ms=1\n"))
    assert live.server_settings.client_tls is before
    server_certificate(tmp_path)
    live.follow(load_lines(tmp_path, lines))
    assert live.server_settings.client_tls is not before


def test_tls_is_neither_turned_on_nor_off(tmp_path: Path) -> None:
    with_tls = tls_lines(tmp_path)
    live = LiveSettings(load_lines(tmp_path, ""))
    live.follow(load_lines(tmp_path, with_tls))
    assert live.server_settings.client_tls is None
    live = LiveSettings(load_lines(tmp_path, with_tls))
    live.follow(load_lines(tmp_path, ""))
    assert live.server_settings.client_tls is not None


def test_a_certificate_that_openssl_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tls_lines(tmp_path)
    live = LiveSettings(load_lines(tmp_path, lines))
    before = live.server_settings

    def refuse(*_: Any) -> None:
        raise ssl.SSLError("key too small")

    monkeypatch.setattr(live_settings, "server_ssl_context", refuse)
    server_certificate(tmp_path)
    changed = load_lines(tmp_path, lines + "proxy.connections.max=7\nlog.level=debug\n")
    with pytest.raises(ssl.SSLError):
        live.follow(changed)
    assert live.server_settings is before


def test_a_client_shows_its_certificate_when_it_must(tmp_path: Path) -> None:
    pem = [path.read_bytes() for path in server_certificate(tmp_path)]
    server = server_ssl_context(
        ServerTls(
            certificate_chain_pem=pem[0],
            private_key_pem=pem[1],
            client_ca_certificates_pem=pem[0],
            client_auth=ClientAuth.REQUIRED,
        )
    )
    known = ClientTls(ca_certificates_pem=pem[0], certificate_chain_pem=pem[0], private_key_pem=pem[1])
    assert handshake(client_ssl_context(known), server, "localhost").getpeercert()
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "localhost")
