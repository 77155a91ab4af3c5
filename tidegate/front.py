"""How clients and operators reach a process: by listeners of its own, or through a supervisor (`tidegate.workers`)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from proxy.connection.address_book import AddressBook, Book, Target, open_listeners
from proxy.connection.brokers_file import KnownBrokers, KnownBrokersFile
from proxy.connection.connection import Advertiser
from proxy.connection.server import Server, TargetFor
from proxy.connection.server_names import SniAddressBook, SniPattern
from proxy.readiness import Readiness
from proxy.tasks import Tasks
from proxy.upstream.cluster import Cluster
from tidegate.admin import OwnPages, Pages, serve_admin
from tidegate.client_view import watch_client_view
from tidegate.config.load import load
from tidegate.config.model import Config
from tidegate.live_settings import LiveSettings
from tidegate.start_lines import tell_start

# The listeners towards clients: the bootstrap listener, and how brokers are distinguished.


class Acceptor(Protocol):
    """Who has the connections that listeners accept; see `proxy.connection.server.Server`."""

    addresses: Advertiser | None

    async def serve(self, listeners: Sequence[trio.SocketListener], target: Target) -> None: ...

    async def serve_by_name(self, listeners: Sequence[trio.SocketListener], target_for: TargetFor) -> None: ...


async def listen(
    config: Config, cluster: Cluster, server: Acceptor, known: KnownBrokers, readiness: Readiness, nursery: trio.Nursery
) -> tuple[AddressBook | SniAddressBook, tuple[str, int]]:
    """Accept clients, for the known brokers too; return the listeners of brokers, and the bootstrap listener's address.

    Raises:
        OSError: it cannot be bound; the message names address and key.
    """
    proxy = config.proxy
    listeners = await open_listeners(proxy.listen, "proxy.listen")
    host, port = listeners[0].socket.getsockname()[:2]
    target = bootstrap_target(config)
    if proxy.tls_sni_pattern is None:
        book = server.addresses = AddressBook(proxy, nursery, server.serve, readiness=readiness, ports=known.ports)
        await book.follow(known.brokers)
        nursery.start_soon(server.serve, listeners, target)
        return book, (str(host), int(port))
    names = server.addresses = server_names(config, cluster, int(port))
    await names.follow(known.brokers)
    nursery.start_soon(server.serve_by_name, listeners, names.target_for)
    return names, (str(host), int(port))


def bootstrap_target(config: Config) -> Target:
    """Any broker."""
    return Target(None, tuple((server.host, server.port) for server in config.upstream.bootstrap_servers))


def server_names(config: Config, cluster: Cluster, bound_port: int) -> SniAddressBook:
    """Return what clients get where one port stands for all brokers."""
    assert config.proxy.tls_sni_pattern is not None
    told_port = config.proxy.advertised_port_start
    return SniAddressBook(
        SniPattern(config.proxy.tls_sni_pattern),
        bound_port if told_port is None else told_port,
        bootstrap=bootstrap_target(config),
        known_address=lambda node_id: address_of(cluster, node_id),
    )


def address_of(cluster: Cluster, node_id: int) -> tuple[str, int] | None:
    """Return what the broker advertises, if there is one of this id."""
    node = cluster.brokers.get(node_id)
    return None if node is None else (node.host, node.port)


@dataclass(frozen=True, slots=True)
class Listening:
    """`known`: where the brokers are kept for the next start."""

    addresses: Book
    bootstrap: tuple[str, int]
    known: KnownBrokersFile


class Front(Protocol):
    """What faces clients and operators."""

    def load(self) -> Config:
        """The configuration as it is now; raises ConfigError."""
        ...

    async def listen(self, cluster: Cluster, server: Server, readiness: Readiness, tasks: Tasks) -> Listening:
        """Serve clients from now on; raises OSError."""
        ...

    async def show(self, pages: OwnPages, tasks: Tasks) -> tuple[str, int]:
        """Show the pages; return where. Raises OSError."""
        ...


class OwnFront:
    """Implements `Front` with listeners of its own."""

    def __init__(self, config: Config, settings: LiveSettings, workers: int = 1) -> None:
        self._config, self._settings, self._workers = config, settings, workers

    def load(self) -> Config:
        return load(self._config.files[""], os.environ)

    async def listen(self, cluster: Cluster, server: Acceptor, readiness: Readiness, tasks: Tasks) -> Listening:
        tell_start(self._config, readiness, self._workers)
        servers = map(str, self._config.upstream.bootstrap_servers)
        known = KnownBrokersFile(self._config.catalog.snapshot_path, servers)
        addresses, bootstrap = await listen(self._config, cluster, server, await known.read(), readiness, tasks.nursery)
        tasks.keep("known brokers", known.run)
        client_view = partial(watch_client_view, self._config.proxy, lambda: self._settings.tls, cluster, readiness)
        tasks.keep("client view", client_view)
        return Listening(addresses, bootstrap, known)

    async def show(self, pages: Pages, tasks: Tasks) -> tuple[str, int]:
        address: tuple[str, int] = await tasks.nursery.start(serve_admin, self._config.admin, pages)
        return address
