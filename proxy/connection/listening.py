"""The listeners towards clients: the bootstrap listener, and how a broker is told from another."""

import trio

from proxy.config.model import Config
from proxy.connection.address_book import LISTEN_BACKLOG, AddressBook, Target
from proxy.connection.known_brokers import KnownBrokers
from proxy.connection.server import Server
from proxy.connection.sni_addressing import SniAddressBook, SniPattern
from proxy.readiness import Readiness
from proxy.upstream.cluster import Cluster


async def listen(
    config: Config, cluster: Cluster, server: Server, known: KnownBrokers, readiness: Readiness, nursery: trio.Nursery
) -> tuple[AddressBook | SniAddressBook, tuple[str, int]]:
    """Have clients accepted, for the known brokers too; the listeners of brokers, and the bootstrap listener's address.

    Raises:
        OSError: it cannot be bound; the message names address and key.
    """
    proxy = config.proxy
    try:
        listeners = await trio.open_tcp_listeners(
            proxy.listen.port, host=proxy.listen.host or None, backlog=LISTEN_BACKLOG
        )
    except OSError as error:
        raise OSError(f"cannot listen on {proxy.listen}, which proxy.listen names: {error}") from error
    host, port = listeners[0].socket.getsockname()[:2]
    target = Target(None, tuple((server.host, server.port) for server in config.upstream.bootstrap_servers))
    if proxy.tls_sni_pattern is None:
        book = server.addresses = AddressBook(proxy, nursery, server.serve, readiness=readiness, ports=known.ports)
        await book.follow(known.brokers)
        nursery.start_soon(server.serve, listeners, target)
        return book, (str(host), int(port))
    names = server.addresses = SniAddressBook(
        SniPattern(proxy.tls_sni_pattern),
        int(port) if proxy.advertised_port_start is None else proxy.advertised_port_start,
        bootstrap=target,
        known_address=lambda node_id: address_of(cluster, node_id),
    )
    await names.follow(known.brokers)
    nursery.start_soon(server.serve_by_name, listeners, names.target_for)
    return names, (str(host), int(port))


def address_of(cluster: Cluster, node_id: int) -> tuple[str, int] | None:
    """What the broker advertises, if there is one of this id."""
    node = cluster.brokers.get(node_id)
    return None if node is None else (node.host, node.port)


def node_at(cluster: Cluster, host: str, port: int) -> int | None:
    """The broker that advertises this address, if one does."""
    return next((node.node_id for node in cluster.brokers.values() if (node.host, node.port) == (host, port)), None)
