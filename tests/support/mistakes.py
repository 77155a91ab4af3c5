"""What an operator gets wrong: a stage with a right configuration, and a table of mistakes made in it.

    @mistake("what the one message holds", "and this")
    def proxy_port_taken(stage: Stage) -> None:
        stage.properties["proxy.listen"] = stage.listener()

`USAGE`: the configuration is refused as a whole; `WRONG`: `check` says so; `WARNING`: it warns, and the rest is right.
"""

import fcntl
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage.config import ConfigError
from tests.support.certificates import Made, make_certificate
from tests.support.s3_server import S3Server
from tests.support.scripted_http import scripted_http
from tests.support.secured_kafka import SecuredKafka
from tidegate import exit_codes
from tidegate.commands.check import run as run_check
from tidegate.config import Config, load
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST, properties_text

AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
BUCKET = "tier"
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
        }
        stage.be("tidegate", "PLAIN", "SASL_SSL")
        yield stage


Make = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Mistake:
    """`said`: what the one message holds; `code`: the exit code."""

    name: str
    make: Make
    said: tuple[str, ...]
    code: int


MISTAKES: list[Mistake] = []


def mistake(*said: str, code: int = WRONG) -> Callable[[Make], Make]:
    """Add to the table."""

    def add(make: Make) -> Make:
        MISTAKES.append(Mistake(make.__name__, make, said, code))
        return make

    return add


def setting(name: str, *said: str, code: int = USAGE, **keys: str) -> None:
    """A mistake that is a value, or a few; keys with _ for a dot."""

    def make(stage: Stage) -> None:
        stage.properties |= {key.replace("_", "."): value for key, value in keys.items()}

    MISTAKES.append(Mistake(name, make, said, code))


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
