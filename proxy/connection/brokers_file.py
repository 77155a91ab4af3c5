"""The brokers that were known last, in a file: a restart listens for them before any of them has answered.

Clients that remember where brokers are do not ask anybody before they connect: Java clients before 4.0 know no other
way back (KIP-899). So what a restart needs must not wait for an answer that names the brokers.

Rule 1. `brokers.json` in `catalog.snapshot.path`, beside the catalog and not in it: it is a few lines that change
        when brokers do, is needed before the catalog has been read, and is true whatever becomes of the metadata
        topic. Without that path there is none, and the listeners come with the first answer of a broker.
Rule 2. It holds addresses to which clients send their credentials, so it is in our user's hands alone, and is used
        only with the `upstream.bootstrap.servers` that it was written with: with others it may be another cluster.
Rule 3. It also holds the ports that brokers were given where any would do, also of brokers that have left.
Rule 4. Trouble with it costs nothing but this: a log line, once a spell.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from protocol.wire.addresses import NodeAddress
from proxy.settings import NODE_ID_MAX
from storage.owned_file import OwnedFile

_log = structlog.get_logger(__name__)

FILE_NAME: Final = "brokers.json"
FORMAT_VERSION: Final = 1
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Some 40,000 brokers."""

PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """The brokers, and the ports that some were given when any would do."""

    brokers: tuple[NodeAddress, ...] = ()
    ports: Mapping[int, int] = field(default_factory=dict)


class KnownBrokersFile:
    """Keeps the file. Owned by the trio thread.

    Args:
        folder: `catalog.snapshot.path`; None: nothing is kept.
        bootstrap_servers: `upstream.bootstrap.servers`, in any order.
    """

    def __init__(self, folder: Path | None, bootstrap_servers: Iterable[str]) -> None:
        self._file = None if folder is None else OwnedFile(folder / FILE_NAME)
        self._bootstrap_servers = sorted(bootstrap_servers)
        self._noted = self._written = KnownBrokers()
        self._changed = trio.Event()
        self._is_failing = False

    async def read(self) -> KnownBrokers:
        """Return what the last run knew; nothing when there is no file, or one that must not be used."""
        if self._file is None:
            return KnownBrokers()
        try:
            found = await trio.to_thread.run_sync(self._read, self._file)
        except (OSError, ValueError) as error:
            _log.warning("known_brokers_not_used", reason=str(error))
            found = KnownBrokers()
        self._noted = self._written = found
        return found

    def note(self, brokers: Iterable[NodeAddress], ports: Mapping[int, int]) -> None:
        """Write this soon, unless it is what the file holds."""
        self._noted = KnownBrokers(tuple(sorted(brokers, key=lambda node: node.node_id)), dict(ports))
        if self._noted != self._written:
            self._changed.set()

    async def run(self) -> None:
        """Write what was noted, whenever that has changed."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await self.write()

    async def write(self) -> None:
        """Write what was noted, unless the file holds it."""
        noted = self._noted
        if self._file is None or noted == self._written:
            return
        try:
            # A disk can hang, and nobody waits for it.
            await trio.to_thread.run_sync(self._write, self._file, noted, abandon_on_cancel=True)
        except OSError as error:
            if not self._is_failing:
                _log.warning("known_brokers_not_written", reason=str(error))
            self._is_failing = True
        else:
            self._written, self._is_failing = noted, False

    def _read(self, owned: OwnedFile) -> KnownBrokers:
        file = owned.open()
        if file is None:
            return KnownBrokers()
        with file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise ValueError(f"{owned.path}: more than {FILE_BYTES_MAX} bytes")
        try:
            found = json.loads(text)
            if found["format"] != FORMAT_VERSION:
                raise ValueError(f"it is of format {found['format']}, and this version reads {FORMAT_VERSION}")
            brokers = KnownBrokers(
                tuple(map(_broker, found["brokers"])),
                {_between(int(node_id), NODE_ID_MAX): _port(port) for node_id, port in found["ports"].items()},
            )
            written_with = found["bootstrap_servers"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{owned.path}: {error!r}") from error
        if written_with != self._bootstrap_servers:
            raise ValueError(f"{owned.path}: it was written with other upstream.bootstrap.servers: {written_with}")
        return brokers

    def _write(self, owned: OwnedFile, known: KnownBrokers) -> None:
        content = {
            "format": FORMAT_VERSION,
            "bootstrap_servers": self._bootstrap_servers,
            "brokers": [{"node_id": node.node_id, "host": node.host, "port": node.port} for node in known.brokers],
            "ports": {str(node_id): port for node_id, port in sorted(known.ports.items())},
        }
        with owned.draft() as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
        owned.keep_draft()


def _broker(entry: Any) -> NodeAddress:
    host = entry["host"]
    if not isinstance(host, str) or not host:
        raise ValueError(f"{host!r} is not a host")
    return NodeAddress(_between(entry["node_id"], NODE_ID_MAX), host, _port(entry["port"]))


def _port(value: Any) -> int:
    return _between(value, PORT_MAX)


def _between(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number up to {most}")
    return value
