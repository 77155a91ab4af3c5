"""What `tidegate serve` tells the way of a request: listeners, and the limits on clients.

A key is a field here (`storage.config.keys`); `tidegate.config` loads the file, and checks keys against each other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Final

from storage.config.keys import Reload, key
from storage.config.model import HostPort
from storage.config.value_kinds import (
    BOOLEAN,
    FILE,
    GIB,
    KIB,
    MIB,
    TEXT,
    TIB,
    Kind,
    integer,
    one_of,
    optional,
    parse_host_port,
    parse_port,
    size,
)
from storage.host_names import HOST_LENGTH_MAX, parse_host

Network = IPv4Network | IPv6Network
"""One address is a network too."""

NODE_ID_MAX: Final = 2**31 - 1

BROKER_PORTS_MAX: Final = 10_000

NETWORKS_MAX: Final = 1000

NODE_ID_VARIABLE: Final = "$(nodeId)"

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")

WORKERS_MAX: Final = 64


def _parse_advertised_host(value: str) -> str:
    # Any one digit may stand for the variable: what is left must be a host name.
    parse_host(value.replace(NODE_ID_VARIABLE, "1"))
    return value[1:-1] if value.startswith("[") else value


def _parse_sni_pattern(value: str) -> str:
    if value.count(NODE_ID_VARIABLE) != 1:
        raise ValueError(f"must hold {NODE_ID_VARIABLE} exactly once")
    # Checked with the longest node id. A number at the end would make an IP address of it, which no SNI can hold.
    longest = value.replace(NODE_ID_VARIABLE, str(NODE_ID_MAX))
    labels = longest.split(".")
    if len(longest) > HOST_LENGTH_MAX or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError("must be a host name with any node id in it (international names as xn--…)")
    return value


def _parse_listen(value: str) -> HostPort:
    return parse_host_port(value, minimum_port=0)


def _parse_broker_ports(value: str) -> Mapping[int, int]:
    ports: dict[int, int] = {}
    for item in value.split(","):
        node_id, colon, port = item.strip().partition(":")
        if not colon or re.fullmatch(r"\d{1,10}", node_id) is None or int(node_id) > NODE_ID_MAX:
            raise ValueError("must be id:port, separated by commas")
        if int(node_id) in ports:
            raise ValueError(f"names broker {node_id} twice")
        if parse_port(port) in ports.values():
            raise ValueError(f"gives port {port} to two brokers")
        ports[int(node_id)] = int(port)
        if len(ports) > BROKER_PORTS_MAX:
            raise ValueError(f"at most {BROKER_PORTS_MAX} brokers")
    return MappingProxyType(ports)


def _parse_networks(value: str) -> tuple[Network, ...]:
    try:
        networks = tuple(ip_network(item.strip()) for item in value.split(","))
    except ValueError:
        raise ValueError("must be IP addresses or networks (192.0.2.0/24), separated by commas") from None
    if len(networks) > NETWORKS_MAX:
        raise ValueError(f"at most {NETWORKS_MAX} of them")
    return networks


def _parse_hosts(value: str) -> tuple[str, ...]:
    hosts = [item.strip() for item in value.split(",") if item.strip()]
    if not hosts:
        raise ValueError("must be host names, separated by commas")
    return tuple(host if host == "*" else parse_host(host).lower() for host in hosts)


def _parse_workers(value: str) -> int:
    if value.lower() == "auto":
        return 0
    if re.fullmatch(r"\d{1,4}", value) is None or not 1 <= int(value) <= WORKERS_MAX:
        raise ValueError(f"must be auto or a number from 1 to {WORKERS_MAX}")
    return int(value)


WORKERS: Final = Kind(f"`auto`, or integer, 1 to {WORKERS_MAX}", _parse_workers)

ADVERTISED_HOST: Final = Kind("host", _parse_advertised_host)

SNI_PATTERN: Final = Kind("host", _parse_sni_pattern)

LISTEN: Final = Kind("host:port", _parse_listen)

BROKER_PORTS: Final = Kind("id:port, …", _parse_broker_ports)

HOSTS: Final = Kind("host, …", _parse_hosts)

NETWORKS: Final = Kind("address or network, …", _parse_networks)


class ReadPreference(StrEnum):
    """Where an offset is read that both the broker's disk and the tier hold."""

    LOCAL = "local"
    TIER = "tier"


class ClientAuth(StrEnum):
    """Whether a client must show a certificate; Kafka's words of `ssl.client.auth`."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS towards clients. PEM, the key as in ClientTls; client CA certificates only if clients may authenticate."""

    certificate_chain_pem: bytes = field(repr=False)
    private_key_pem: bytes = field(repr=False)
    client_ca_certificates_pem: bytes | None = field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Listeners and the limits on clients.

    `broker_port_start` 0 means any free port. `broker_ports` (node id → port) overrides it broker by broker.
    `advertised_host` may hold `$(nodeId)`; `advertised_port_start` None: clients get the bound port.
    `tls` is what the keys `proxy.tls.*` say together. `tls_sni_pattern` holds `$(nodeId)` once and puts all brokers on
    one port; it is set only if `tls` is. `workers` 0: as many as there are cores, 8 at most. `protocol_trusted` None:
    no PROXY header is expected; else whose connections begin with one. Limits for each address are connections and
    connections a second; None: no limit.
    """

    listen: HostPort = key(
        "proxy.listen",
        LISTEN,
        "The bootstrap listener; port 0: any free one. A wildcard address needs `proxy.advertised.host`.",
        section="Listeners",
        default="127.0.0.1:19092",
    )
    advertised_host: str = key(
        "proxy.advertised.host",
        ADVERTISED_HOST,
        "The host that clients get for a broker; may hold `$(nodeId)`.",
        default_words="the listen host",
    )
    broker_port_start: int = key(
        "proxy.broker.port.start",
        integer(0, 65535),
        "Broker N listens at start + N − `proxy.broker.id.min`; 0: any free port, kept over restarts if it can be.",
        default_words="listen port + 1",
    )
    broker_id_min: int = key(
        "proxy.broker.id.min", integer(0, NODE_ID_MAX), "The node id that gets the first port.", default="0"
    )
    broker_ports: Mapping[int, int] = key(
        "proxy.broker.ports",
        BROKER_PORTS,
        "Ports of single brokers; overrides `proxy.broker.port.start`.",
        default_words="none",
    )
    advertised_port_start: int | None = key(
        "proxy.advertised.port.start",
        optional(integer(1, 65535)),
        "Shifts the broker ports that clients get, for a balancer or port mapping. With "
        "`proxy.tls.sni.pattern`: the port of all brokers.",
        default_words="the bound ports",
    )
    workers: int = key(
        "proxy.workers", WORKERS, "Processes that serve clients; `auto`: one for each core, 8 at most.", default="1"
    )
    read_prefer: ReadPreference = key(
        "proxy.read.prefer",
        one_of(ReadPreference),
        "`tier`: offsets that are in both places come from the tier too.",
        default="local",
        reload=Reload.AT_ONCE,
    )
    tls_certificate_file: Path | None = key(
        "proxy.tls.certificate.file",
        optional(FILE),
        "PEM file of the certificate (and chain) shown to clients. To turn TLS on takes a restart.",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_key_file: Path | None = key(
        "proxy.tls.key.file",
        optional(FILE),
        "PEM file of its private key; unset: the certificate's file.",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_key_password: str | None = key(
        "proxy.tls.key.password",
        optional(TEXT),
        "The private key's password.",
        secret=True,
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_client_ca_file: Path | None = key(
        "proxy.tls.client.ca.file",
        optional(FILE),
        "PEM file of the CA certificates of clients' ones.",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_client_auth: ClientAuth = key(
        "proxy.tls.client.auth",
        one_of(ClientAuth),
        "Whether a client must show a certificate.",
        default="none",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls: ServerTls | None = None
    tls_sni_pattern: str | None = key(
        "proxy.tls.sni.pattern",
        optional(SNI_PATTERN),
        "One port for all brokers: the host that clients get for broker N, as "
        "`broker-$(nodeId).kafka.example.org`. Any other name is for the bootstrap. Needs "
        "`proxy.tls.certificate.file`.",
    )
    protocol: bool = key(
        "proxy.protocol",
        BOOLEAN,
        "`true`: each connection begins with a balancer's PROXY header, and limits and logs go by its "
        "address. Needs `proxy.protocol.trusted`.",
        default="false",
    )
    protocol_trusted: tuple[Network, ...] | None = key(
        "proxy.protocol.trusted",
        optional(NETWORKS),
        "The balancers' addresses or networks, as `10.0.0.7, 192.0.2.0/24`: a connection from elsewhere is closed.",
    )
    connections_max: int | None = key(
        "proxy.connections.max",
        optional(integer(1, 1_000_000)),
        "Client connections, each with two open files, whose limit may allow fewer. A newcomer takes the place of one "
        "that has not signed in.",
        section="Limits on clients",
        default_words="4096 at most",
        reload=Reload.AT_ONCE,
    )
    connections_idle_ms_max: int = key(
        "proxy.connections.idle.max.ms",
        integer(1000, 2**31 - 1),
        "A connection idle for so long is closed; brokers close it earlier (`connections.max.idle.ms`, 10 minutes).",
        default="3600000",
        reload=Reload.AT_ONCE,
    )
    connections_max_per_ip: int | None = key(
        "proxy.connections.max.per.ip",
        optional(integer(1, 1_000_000)),
        "Connections of one address; behind NAT many clients have one.",
        default_words="no limit",
        reload=Reload.AT_ONCE,
    )
    connections_rate_per_ip: int | None = key(
        "proxy.connections.rate.per.ip",
        optional(integer(1, 1_000_000)),
        "New connections a second of one address; five seconds' worth may come at once.",
        default_words="no limit",
        reload=Reload.AT_ONCE,
    )
    request_frame_bytes_max: int = key(
        "proxy.frame.request.bytes.max",
        size(KIB, 2 * GIB - 1),
        "A larger request closes its connection; Kafka's `socket.request.max.bytes`.",
        default="100 MiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    unauthenticated_frame_bytes_max: int = key(
        "expert.proxy.frame.unauthenticated.bytes.max",
        size(KIB, 2 * GIB - 1),
        "A larger request before sign-in closes its connection, where `upstream.security.protocol` has SASL.",
        default="512 KiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    response_held_bytes_max: int = key(
        "expert.proxy.response.held.bytes.max",
        size(64 * MIB, 2 * GIB - 1),
        "The largest response that may be held whole; others are streamed. A batch that does not fit is put "
        "off alone (error 9).",
        default="128 MiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    inflight_requests_max: int = key(
        "expert.proxy.inflight.requests.max",
        integer(1, 100_000),
        "Requests of one connection that await their response.",
        default="128",
        reload=Reload.NEW_CONNECTIONS,
    )
    held_bytes_max: int = key(
        "expert.proxy.held.bytes.max",
        size(4 * MIB, TIB),
        "What is held in memory for all clients. Beyond it requests and responses wait; then connections end that keep "
        "others waiting.",
        default_words="from `memory.max.bytes`",
    )
    send_stall_ms: int = key(
        "expert.proxy.send.stall.ms",
        integer(100, 3_600_000),
        "A client's answer that makes no progress for so long gives its memory up if others need it.",
        default="30000",
        reload=Reload.AT_ONCE,
    )
    relay_rewrite_bytes_max: int = key(
        "expert.relay.rewrite.bytes.max",
        size(KIB, MIB),
        "Fetch responses up to this size are rewritten whole, larger ones in place.",
        default="64 KiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    upstream_connect_timeout_ms: int = key(
        "proxy.upstream.connect.timeout.ms",
        integer(0, 3_600_000),
        "How long a client is held while no broker answers. Keep it below librdkafka's 10 s "
        "(`api.version.request.timeout.ms`).",
        default="8000",
        reload=Reload.NEW_CONNECTIONS,
    )
    drain_delay_ms: int = key(
        "proxy.drain.delay.ms",
        integer(0, 3_600_000),
        "How long listeners go on accepting after SIGTERM, for balancers.",
        default="0",
        reload=Reload.AT_ONCE,
    )
    drain_timeout_ms: int = key(
        "proxy.drain.timeout.ms",
        integer(0, 3_600_000),
        "How long SIGTERM waits for answers under way.",
        default="30000",
        reload=Reload.AT_ONCE,
    )
