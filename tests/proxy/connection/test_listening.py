"""The bootstrap listener: bound at once, by port or by name, and a taken port is a sentence."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import trio

from protocol.client.cluster_view import BrokerNode
from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import AddressBook
from proxy.connection.brokers_file import KnownBrokers
from proxy.connection.server import Server
from proxy.connection.server_names import SniAddressBook
from proxy.readiness import Readiness
from proxy.upstream.cluster import Cluster
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines
from tidegate.front import listen

KNOWN = KnownBrokers((NodeAddress(3, "broker-3", 9092),))
CLUSTER = cast(Cluster, SimpleNamespace(brokers={7: BrokerNode(7, "broker-7", 9092, None)}))


class ScriptedServer:
    """Tells how it was asked to accept."""

    def __init__(self) -> None:
        self.addresses: object = None
        self.asked: list[str] = []

    async def serve(self, listeners: list[trio.SocketListener], _target: object) -> None:
        self.asked.append("serve")
        await self._close(listeners)

    async def serve_by_name(self, listeners: list[trio.SocketListener], _target_for: object) -> None:
        self.asked.append("serve_by_name")
        await self._close(listeners)

    async def _close(self, listeners: list[trio.SocketListener]) -> None:
        for listener in listeners:
            await listener.aclose()


async def test_a_listener_for_each_broker_or_one_for_all(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    names = "proxy.tls.certificate.file=server.pem\nproxy.tls.key.file=server.key\nproxy.tls.sni.pattern=b-$(nodeId)\n"
    ports = "proxy.broker.port.start=0\n"
    for lines, kind, way in ((ports, AddressBook, "serve"), (names, SniAddressBook, "serve_by_name")):
        server = ScriptedServer()
        config = load_lines(tmp_path, f"proxy.listen=127.0.0.1:0\n{lines}")
        async with trio.open_nursery() as nursery:
            book, (host, port) = await listen(config, CLUSTER, cast(Server, server), KNOWN, Readiness(), nursery)
        assert isinstance(book, kind)
        assert server.addresses is book
        # The brokers that the last run knew are there at once, or clients that remember them would be refused.
        if isinstance(book, AddressBook):
            assert sorted(server.asked) == [way] * 2
            assert book.advertised.keys() == {3}
        else:
            assert server.asked == [way]
            target = book.target_for("b-3")
            assert target is not None
            assert list(target.addresses) == [("broker-3", 9092)]
        assert host == "127.0.0.1"
        assert port > 0
