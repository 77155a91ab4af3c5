"""The kinds of value that only listeners have. Parsers raise ValueError as `storage.config.kinds` says."""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from types import MappingProxyType
from typing import Final

from proxy.config.model import Network
from storage.config.kinds import HOST_LENGTH_MAX, Kind, parse_host, parse_host_port, parse_port
from storage.config.model import HostPort

NODE_ID_MAX: Final = 2**31 - 1
BROKER_PORTS_MAX: Final = 10_000
NETWORKS_MAX: Final = 1000

NODE_ID_VARIABLE: Final = "$(nodeId)"

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


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


ADVERTISED_HOST: Final = Kind("host", _parse_advertised_host)
SNI_PATTERN: Final = Kind("host", _parse_sni_pattern)
LISTEN: Final = Kind("host:port", _parse_listen)
BROKER_PORTS: Final = Kind("id:port, …", _parse_broker_ports)
NETWORKS: Final = Kind("address or network, …", _parse_networks)
