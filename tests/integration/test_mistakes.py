"""What an operator gets wrong, made really, and what `tidegate check` says: one message, the key at fault, what to do.

One broker with an authorizer and an S3 server are shared; everything else is a socket, a file or a limit of this
process. The configuration is right but for the mistake. What the file alone shows: tests/storage/config.
"""

import io
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog
import trio

from protocol.client.errors import connect_reason
from proxy.connection.server import CrowdListener
from proxy.connection.slots import Spells
from storage.config import ConfigError
from tests.support.certificates import server_certificate
from tests.support.s3_server import S3Server
from tests.support.scripted_http import response, s3_error, scripted_http
from tests.support.secured_kafka import METADATA_TOPIC, READ, SecuredKafka
from tests.support.tidegate import RunningTidegate
from tests.support.versitygw import versitygw
from tidegate import exit_codes
from tidegate.commands.check import run as run_check
from tidegate.config import load
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST, properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "versitygw")]

AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
BUCKET = "tier"
UNREACHABLE_NAME = "no-such-host.invalid"  # RFC 2606: no resolver finds it


@dataclass
class Stage:
    """A right configuration, and what a mistake needs to be made in it."""

    kafka: SecuredKafka
    s3: S3Server
    folder: Path
    open: ExitStack
    properties: dict[str, str] = field(default_factory=dict)

    def be(self, user: str, mechanism: str, protocol: str, port_of: str | None = None) -> None:
        """Sign in so, at the listener of `port_of`."""
        self.properties |= self.kafka.identity(user, mechanism, protocol)
        self.properties["upstream.bootstrap.servers"] = self.kafka.address(port_of or protocol)

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

    def cache(self, mode: int = 0o700) -> Path:
        folder = self.folder / "cache"
        (folder / "blocks").mkdir(parents=True)
        folder.chmod(mode)
        self.properties["cache.path"] = str(folder)
        return folder

    def check(self, environ: Mapping[str, str]) -> tuple[int, list[str]]:
        """Exit code, and what is wrong: a sentence each."""
        file = self.folder / "tidegate.properties"
        file.write_text(properties_text(self.properties), encoding="utf-8")
        try:
            config = load(file, environ)
        except ConfigError as error:
            return exit_codes.USAGE, [*error.problems]
        out = io.StringIO()
        code = run_check(config, out)
        lines = out.getvalue().splitlines()
        return code, [line.removeprefix("WRONG").strip() for line in lines if line.startswith("WRONG")]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("store")
    with versitygw(folder, tmp_path_factory.mktemp("versitygw")) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(autouse=True)
def nobodys_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


@contextmanager
def right_stage(guarded: SecuredKafka, s3: S3Server, folder: Path) -> Iterator[Stage]:
    ports = iter([free_port(), free_port(), free_port()])
    with ExitStack() as stack:
        stage = Stage(guarded, s3, folder, stack)
        stage.properties = {
            "broker.config": str(guarded.cluster.server_properties_path(1)),
            "proxy.listen": f"{HOST}:{next(ports)}",
            "proxy.broker.ports": f"1:{next(ports)}",
            "admin.listen": f"{HOST}:{next(ports)}",
        }
        stage.be("tidegate", "PLAIN", "SASL_PLAINTEXT")
        yield stage


Mistake = Callable[[Stage], None]
CASES: list[tuple[str, Mistake, tuple[str, ...], int]] = []
USAGE, WRONG = exit_codes.USAGE, exit_codes.FOUND_WRONG


def mistake(*said: str, code: int = WRONG) -> Callable[[Mistake], Mistake]:
    """Return what the one message holds, and the exit code."""

    def add(make: Mistake) -> Mistake:
        CASES.append((make.__name__, make, said, code))
        return make

    return add


def setting(name: str, *said: str, code: int = WRONG, **keys: str) -> None:
    """A mistake that is a value, or a few; keys with _ for a dot."""

    def make(stage: Stage) -> None:
        stage.properties |= {key.replace("_", "."): value for key, value in keys.items()}

    CASES.append((name, make, said, code))


# This machine.


@mistake("cannot listen on 127.0.0.1:", "which proxy.listen names: Address already in use; stop what listens there")
def proxy_port_taken(stage: Stage) -> None:
    stage.properties["proxy.listen"] = stage.listener()


@mistake("clients will not hear of broker 1", "give it port 65536; name its port in proxy.broker.ports")
def port_beyond_the_last(stage: Stage) -> None:
    del stage.properties["proxy.broker.ports"]
    stage.properties["proxy.broker.port.start"] = "65535"


@mistake("which proxy.listen names: Cannot assign requested address; this machine has no such address")
def anothers_address(stage: Stage) -> None:
    """One port for all brokers, which would each complain too. Broker 1 is 127.0.0.1 in hexadecimal: a name that leads
    here without DNS."""
    del stage.properties["proxy.broker.ports"]
    certificate, key = server_certificate(stage.folder, "0x7f000001")
    stage.properties |= {
        "proxy.listen": "192.0.2.1:19092",
        "proxy.tls.sni.pattern": "0x7f00000$(nodeId)",
        "proxy.tls.certificate.file": str(certificate),
        "proxy.tls.key.file": str(key),
    }


@mistake("proxy.advertised.host tells clients", "not to be found by DNS; correct the name, or DNS")
def host_that_nobody_knows(stage: Stage) -> None:
    stage.properties["proxy.advertised.host"] = UNREACHABLE_NAME


@mistake(
    "proxy.tls.certificate.file is for localhost, 127.0.0.1", "not for 127.0.0.2, which proxy.advertised.host tells"
)
def certificate_for_another_host(stage: Stage) -> None:
    stage.properties |= {
        "proxy.advertised.host": "127.0.0.2",
        "proxy.tls.certificate.file": str(stage.kafka.certificate),
        "proxy.tls.key.file": str(stage.kafka.key),
    }


@mistake("cache.path", "cannot be written by this user", "name a folder that belongs to it")
def read_only_folder(stage: Stage) -> None:
    """root writes into what nobody may write, but not into the kernel's own folders."""
    stage.properties["cache.path"] = "/sys/kernel/tidegate"


# Brokers.


@mistake("connection refused: nothing listens there", "check upstream.bootstrap.servers 127.0.0.1:")
def nobody_listens(stage: Stage) -> None:
    stage.properties["upstream.bootstrap.servers"] = f"{HOST}:{free_port()}"


setting(
    "unknown_host",
    f"cannot connect to {UNREACHABLE_NAME}:9092: the host's name cannot be resolved",
    "check upstream.bootstrap.servers",
    upstream_bootstrap_servers=f"{UNREACHABLE_NAME}:9092",
)


@mistake("it answers in HTTP, not in Kafka's protocol: check the port", "upstream.bootstrap.servers")
def port_of_a_web_server(stage: Stage) -> None:
    server = stage.open.enter_context(closing(socket.create_server((HOST, 0))))
    stage.open.enter_context(_answering(server, response(400)))
    stage.properties["upstream.bootstrap.servers"] = f"{HOST}:{server.getsockname()[1]}"


@mistake("it may be a KRaft controller's port; name brokers' ports in its place")
def port_of_a_controller(stage: Stage) -> None:
    stage.properties |= {
        "upstream.security.protocol": "PLAINTEXT",
        "upstream.bootstrap.servers": f"{HOST}:{stage.kafka.cluster.plan.controller_port}",
    }
    for name in ("mechanism", "username", "password"):
        del stage.properties[f"upstream.sasl.{name}"]


@mistake("TLS handshake with 127.0.0.1:", "it may be a listener without TLS: check upstream.security.protocol")
def tls_to_a_plain_listener(stage: Stage) -> None:
    stage.be("tidegate", "PLAIN", "SASL_SSL", "SASL_PLAINTEXT")


@mistake("check upstream.security.protocol")
def plain_text_to_a_tls_listener(stage: Stage) -> None:
    stage.be("tidegate", "PLAIN", "SASL_PLAINTEXT", "SASL_SSL")


@mistake("the listener may want a sign-in (SASL); check upstream.security.protocol")
def no_sign_in_where_one_is_wanted(stage: Stage) -> None:
    stage.properties["upstream.security.protocol"] = "PLAINTEXT"
    for name in ("mechanism", "username", "password"):
        del stage.properties[f"upstream.sasl.{name}"]


@mistake("CERTIFICATE_VERIFY_FAILED", "check upstream.ssl.ca.location")
def authority_not_known(stage: Stage) -> None:
    stage.be("tidegate", "PLAIN", "SASL_SSL")
    del stage.properties["upstream.ssl.ca.location"]


setting(
    "wrong_password",
    "PLAIN for 'tidegate' failed",
    "check upstream.sasl.mechanism, upstream.sasl.username and upstream.sasl.password",
    upstream_sasl_password="open-sesame",
)


@mistake(
    "ACL Describe on Topic tiered-secret",
    "is missing",
    "kafka-acls.sh --bootstrap-server",
    "--operation Describe --topic tiered-secret",
)
def no_right_to_describe_a_topic(stage: Stage) -> None:
    stage.kafka.allow("checker", READ, METADATA_TOPIC)
    stage.open.callback(stage.kafka.withdraw, "checker", READ, METADATA_TOPIC)
    stage.be("checker", "PLAIN", "SASL_PLAINTEXT")


# The tier.


setting("wrong_folder", "there is no such folder", "check rsm.config.dir", rsm_config_dir="/nowhere")


@mistake("NoSuchBucket", "check rsm.config.storage.s3.bucket.name")
def wrong_bucket(stage: Stage) -> None:
    stage.store(storage_s3_bucket_name="anothers")


@mistake("NoSuchKey", "check rsm.config.key.prefix and rsm.config.storage.s3.bucket.name")
def wrong_prefix(stage: Stage) -> None:
    stage.store(key_prefix="anothers/")


@mistake("NoCredentialsError: no credentials were found; set rsm.config.storage.aws.access.key.id")
def no_credentials(stage: Stage) -> None:
    stage.store(storage_aws_access_key_id="", storage_aws_secret_access_key="")


@mistake("SignatureDoesNotMatch", "check rsm.config.storage.aws.access.key.id and its secret")
def wrong_secret_key(stage: Stage) -> None:
    stage.store(storage_aws_secret_access_key="open-sesame")


@mistake("nobody answers there; check rsm.config.storage.s3.endpoint.url")
def wrong_endpoint(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{HOST}:{free_port()}")


@mistake("TLS failed; check http:// or https:// in rsm.config.storage.s3.endpoint.url")
def https_to_an_http_store(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=stage.s3.endpoint_url.replace("http://", "https://"))


@mistake("RequestTimeTooSkewed", "this machine's clock is wrong: set it (NTP)")
def wrong_clock(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{stage.listener(s3_error(403, 'RequestTimeTooSkewed'))}")


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


def test_a_right_configuration_is_not_complained_of(
    guarded: SecuredKafka, gate: RunningTidegate, s3: S3Server, tmp_path: Path
) -> None:
    """Nor are ports of a Tidegate that runs here."""
    with right_stage(guarded, s3, tmp_path) as right:
        assert right.check({}) == (exit_codes.DONE, [])
        right.properties |= {"proxy.listen": gate.bootstrap_servers, "admin.listen": gate.process.admin_address}
        assert right.check({}) == (exit_codes.DONE, [])


def test_a_mistake_has_one_message_that_says_what_to_do(guarded: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    for name, make, said, code in CASES:
        (tmp_path / name).mkdir()
        with right_stage(guarded, s3, tmp_path / name) as stage:
            make(stage)
            found_code, messages = stage.check({})
            assert (len(messages), found_code) == (1, code), f"{name}: {messages}"
            for words in said:
                assert words in messages[0], name


def test_a_host_that_does_not_answer_is_told_from_one_that_refuses() -> None:
    silent, refused = (connect_reason(OSError(number, "")) for number in (110, 111))
    assert silent != refused
    assert "a firewall drops packets" in silent


@pytest.mark.autojump
async def test_no_descriptors_left_is_one_line_a_spell() -> None:
    """Really out of them: a limit at what is open. Failed before: ten lines a second."""
    [bound] = await trio.open_tcp_listeners(0, host=HOST)
    listener = CrowdListener(bound, Spells(trio.current_time))
    with closing(socket.create_connection(bound.socket.getsockname())):
        with structlog.testing.capture_logs() as logs, no_descriptors():
            with trio.move_on_after(1) as waiting:
                await listener.accept()
        assert waiting.cancelled_caught
        [line] = logs
        assert (line["event"], line["log_level"]) == ("connections_not_accepted", "error")
        assert "LimitNOFILE" in line["reason"]
        assert line["key"] == "proxy.connections.max"
        await (await listener.accept()).aclose()
        await listener.aclose()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more, whatever its threads close: the limit is below all that is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
