"""What an operator gets wrong: a stage with a right configuration, and tables of mistakes made in it.

    @HERE.mistake("what the one message holds", "and this")
    def proxy_port_taken(stage: Stage) -> None:
        stage.properties["proxy.listen"] = stage.listener()

`USAGE`: the configuration is refused as a whole; `WRONG`: `check` says so; `WARNING`: it warns, and the rest is right.
What `check` says of it ends with an id; a running `serve` knows it by this id, with the same words, in every place.
"""

import fcntl
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrics.troubles import TroubleId
from storage.config import ConfigError
from tests.support.certificates import Made, make_certificate
from tests.support.raw_client import RawClient
from tests.support.s3_server import S3Server
from tests.support.scripted_http import scripted_http
from tests.support.secured_kafka import READ, SecuredKafka, password
from tests.support.serving import Serving, serving
from tidegate import exit_codes
from tidegate.commands.check import run as run_check
from tidegate.config import Config, load
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST, properties_text

AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
BUCKET = "tier"
CLIENT_KEYS = "rlmm.config.remote.log.metadata.common.client."
UNREACHABLE_NAME = "no-such-host.invalid"  # RFC 2606: no resolver finds it
USAGE, WRONG, WARNING = exit_codes.USAGE, exit_codes.FOUND_WRONG, exit_codes.DONE


@dataclass
class Stage:
    """A right configuration, and what a mistake needs to be made in it."""

    kafka: SecuredKafka
    s3: S3Server
    folder: Path
    open: ExitStack
    properties: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    head: str = ""
    """What FILE begins with, and holds as it stands."""

    def be(self, user: str, mechanism: str, protocol: str, port_of: str | None = None) -> None:
        """Sign in so, at the listener of `port_of`."""
        self.properties |= self.kafka.identity(user, mechanism, protocol)
        self.properties["upstream.bootstrap.servers"] = self.kafka.address(port_of or protocol)

    def be_nobody(self, protocol: str) -> None:
        """Without a sign-in."""
        self.properties["upstream.security.protocol"] = protocol
        for name in ("mechanism", "username", "password"):
            del self.properties[f"upstream.sasl.{name}"]

    def store(self, **changes: str) -> None:
        """Aiven's plug-in over the bucket; `changes` with _ for a dot, an empty value takes the key away."""
        keys = self.s3.config(BUCKET) | {name.replace("_", "."): value for name, value in changes.items()}
        self.properties["remote.log.storage.manager.class.name"] = AIVEN
        self.properties |= {f"rsm.config.{key}": value for key, value in keys.items() if value}

    def listener(self, answer: bytes | None = None) -> str:
        """The address of a server that answers so to whatever comes; None: of a socket that only listens."""
        if answer is None:
            sock = self.open.enter_context(closing(socket.create_server((HOST, 0))))
            return f"{HOST}:{sock.getsockname()[1]}"
        server = self.open.enter_context(scripted_http())
        server.answer(answer)
        return server.endpoint_url.removeprefix("http://")

    def answerer(self, answer: bytes) -> str:
        """The address of a server that answers so to the first bytes of a connection, whatever their protocol."""
        server = socket.create_server((HOST, 0))
        self.open.enter_context(_answering(server, answer))
        return f"{HOST}:{server.getsockname()[1]}"

    def cache_of_another(self) -> None:
        """Name a folder for the cache that somebody else has locked."""
        folder = self.folder / "cache"
        (folder / "blocks").mkdir(parents=True, mode=0o700)
        folder.chmod(0o700)
        lock = self.open.enter_context(
            closing(os.fdopen(os.open(folder / "blocks" / "lock", os.O_CREAT | os.O_RDWR, 0o600)))
        )
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.properties["cache.path"] = str(folder)

    def certificate(self, *names: str, days: float = 36_500, issuer: Made | None = None) -> None:
        """Clients are shown a certificate for these names."""
        self.show(make_certificate("tidegate", names, days=days, issuer=issuer))

    def show(self, made: Made, key: Made | None = None) -> None:
        """Clients are shown this certificate."""
        for name, data in (("certificate", made.pem), ("key", (key or made).key_pem)):
            (self.folder / f"{name}.pem").write_bytes(data)
            self.properties[f"proxy.tls.{name}.file"] = str(self.folder / f"{name}.pem")

    def serve(self) -> AbstractContextManager[Serving]:
        """Run with this FILE."""
        return serving(self.folder, self.properties, self.environ, head=self.head)

    def load(self) -> Config:
        """Read FILE.

        Raises:
            ConfigError: as every command ends with.
        """
        file = self.folder / "tidegate.properties"
        file.write_bytes((self.head + properties_text(self.properties)).encode("latin-1"))
        return load(file, self.environ)

    def check(self) -> tuple[int, list[str], list[str]]:
        """Exit code, what is wrong, and what it warns of: a sentence each."""
        try:
            config = self.load()
        except ConfigError as error:
            return USAGE, [*error.problems], []
        out = io.StringIO()
        code = run_check(config, out)
        lines = out.getvalue().splitlines()
        wrong, warned = (
            [line.removeprefix(word).strip() for line in lines if line.startswith(word)]
            for word in ("WRONG", "warning")
        )
        return code, wrong, warned


@contextmanager
def right_stage(kafka: SecuredKafka, s3: S3Server, folder: Path) -> Iterator[Stage]:
    """Nothing is wrong yet. The brokers' file has JKS stores and a super user; `metadata.identity` passes them over."""
    nodes = [broker.node_id for broker in kafka.cluster.brokers]
    with ExitStack() as stack:
        stage = Stage(kafka, s3, folder, stack)
        stage.properties = {
            "broker.config": str(kafka.cluster.server_properties_path(1)),
            "metadata.identity": "upstream",
            "proxy.listen": f"{HOST}:{free_port()}",
            "proxy.broker.ports": ",".join(f"{node_id}:{free_port()}" for node_id in nodes),
            "admin.listen": f"{HOST}:{free_port()}",
            "log.format": "json",
        }
        stage.be("tidegate", "PLAIN", "SASL_SSL")
        yield stage


Make = Callable[[Stage], None]


Act = Callable[[Stage, Serving], None]
NEVER_READY = frozenset({TroubleId.CATALOG_NOT_READ, TroubleId.TIER_UNAVAILABLE, TroubleId.UPSTREAM_UNAVAILABLE})
"""From the start on, these keep it from being ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """
    `said`: what the one message holds. `code`: the exit code of `check`.
    `ends`: `serve` ends with the message, too, though the configuration is none that it refuses.
    `only_check`: why a running `serve` does not tell of it.
    `follows`: troubles that it has by this one, and that `check` does not look for any more.
    `shown_by`: what makes a running `serve` notice. `needs`: as the mark has it.
    """

    name: str
    make: Make
    said: tuple[str, ...]
    code: int = WRONG
    ends: bool = False
    only_check: str = ""
    follows: tuple[TroubleId, ...] = ()
    shown_by: Act | None = None
    needs: str = ""

    @property
    def is_refused(self) -> bool:
        """Return whether no `serve` runs with it."""
        return self.ends or self.code == USAGE


class Table(list[Mistake]):
    """Mistakes about one thing."""

    def mistake(self, *said: str, **how: Any) -> Callable[[Make], Make]:
        """Add one; `how`: fields of it."""

        def add(make: Make) -> Make:
            self.append(Mistake(name=make.__name__, make=make, said=said, **how))
            return make

        return add

    def setting(self, name: str, *said: str, **keys: Any) -> None:
        """Add one that is a value, or a few; keys with _ for a dot, and fields of the mistake."""
        fields = ("code", "ends", "only_check", "follows")
        how = {"code": USAGE} | {field: keys.pop(field) for field in fields if field in keys}

        def make(stage: Stage) -> None:
            stage.properties |= {key.replace("_", "."): value for key, value in keys.items()}

        self.append(Mistake(name=name, make=make, said=said, **how))


def leaders_of(stage: Stage) -> list[int]:
    """By partition of the tiered topic."""
    topic = stage.kafka.topic.name
    partitions = stage.kafka.admin.list_topics(topic).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def read_from_its_start(stage: Stage, serve: Serving) -> None:
    """Ask as a client for what only the tier holds."""
    topic = stage.kafka.topic.name
    stage.kafka.allow("reader", READ, topic)
    stage.open.callback(stage.kafka.withdraw, "reader", READ, topic)
    ports = dict(each.split(":") for each in stage.properties["proxy.broker.ports"].split(","))
    serve.wait_log("ready: ")
    with RawClient(HOST, int(ports[str(leaders_of(stage)[0])])) as client:
        assert client.sasl_plain("reader", password("reader")) == 0
        (partition,) = client.patient_fetch(12, [(topic, None, 0, 0, 1 << 20)]).partitions
    assert partition.error_code == 0


def _answering(server: socket.socket, answer: bytes) -> ExitStack:
    """Answers each connection so, in a thread, until it is left."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    stack = ExitStack()
    stack.callback(thread.join)
    stack.callback(server.close)
    stack.callback(server.shutdown, socket.SHUT_RDWR)
    return stack
