"""A first FILE out of a broker's own."""

from pathlib import Path

import pytest

from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tidegate import cli
from tidegate.config import load

Captured = pytest.CaptureFixture[str]
BROKER = """remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
rsm.config.dir=/tier
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT
listeners=CONTROLLER://:9091,INSIDE://:9092,OUTSIDE://:9093
advertised.listeners=INSIDE://broker:9092,OUTSIDE://broker.example.org:9093
"""
AIVEN = """remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=io.aiven.kafka.tieredstorage.RemoteStorageManager
rsm.config.chunk.size=4194304
rsm.config.storage.backend.class=io.aiven.kafka.tieredstorage.storage.s3.S3Storage
rsm.config.storage.s3.bucket.name=tier
rsm.config.storage.s3.region=us-east-1
listeners=SSL://broker:9093
"""


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "server.properties"
    path.write_text(BROKER)
    return path


def test_the_broker_says_where_it_is(broker: Path, capsys: Captured) -> None:
    assert cli.main(["init", "--broker-config", "server.properties"]) == 0
    config = load(Path("tidegate.properties"), {})
    assert [*map(str, config.upstream.bootstrap_servers)] == ["broker:9092"]
    assert config.files["broker.config"] == broker
    assert Path("tidegate.properties").stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "kafka-acls.sh --bootstrap-server broker:9092 --add --allow-principal User:ANONYMOUS --operation Read "
        "--operation DescribeConfigs --topic __remote_log_metadata",
        "kafka-acls.sh --bootstrap-server broker:9092 --add --allow-principal User:ANONYMOUS --operation Describe "
        "--topic '*'",
    ]


def test_a_sign_in_names_a_variable_for_the_password(broker: Path, capsys: Captured) -> None:
    words = ["--broker-config", str(broker), "--security-protocol", "SASL_PLAINTEXT", "--username", "us"]
    assert cli.main(["init", "own.properties", *words]) == 0
    config = load(Path("own.properties"), {"UPSTREAM_PASSWORD": "secret"})
    assert [*map(str, config.upstream.bootstrap_servers)] == ["broker.example.org:9093"]
    sasl = config.upstream.security.sasl
    assert sasl is not None
    assert (sasl.username, sasl.password) == ("us", "secret")
    assert "User:us" in capsys.readouterr().out.splitlines()[-1]


def test_a_tier_of_the_plug_in_behind_tls(broker: Path) -> None:
    broker.write_text(AIVEN)
    pem, _ = server_certificate(broker.parent)
    assert cli.main(["init", "--broker-config", str(broker), "--ca", pem.name]) == 0
    config = load(Path("tidegate.properties"), {})
    assert [*map(str, config.upstream.bootstrap_servers)] == ["broker:9093"]
    tls = config.upstream.security.tls
    assert tls is not None
    assert tls.ca_certificates_pem == pem.read_bytes()


def test_a_terminal_is_asked_for_what_is_not_given(broker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter([str(broker), "", "127.0.0.2:19092", "SASL_PLAINTEXT", "", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert cli.main(["init"]) == 0
    written = dict(line.split("=", 1) for line in Path("tidegate.properties").read_text().splitlines())
    assert (written["upstream.bootstrap.servers"], written["proxy.listen"]) == ("broker:9092", "127.0.0.2:19092")
    assert (written["upstream.sasl.mechanism"], written["upstream.sasl.username"]) == ("SCRAM-SHA-512", "tidegate")
    assert [*typed] == []


@for_each(
    "text, words, said",
    [
        (BROKER, [], "--broker-config is needed"),
        (BROKER, ["--broker-config", "nowhere"], "nowhere: "),
        (BROKER, ["--broker-config", "server.properties", "--listen", "x"], "proxy.listen = x"),
        (
            BROKER,
            ["--broker-config", "server.properties", "--bootstrap", "b:1", "--security-protocol", "TLS"],
            "upstream.security.protocol",
        ),
        (BROKER, ["--broker-config", "server.properties", "--security-protocol", "SSL"], "names no listener"),
        ("broker.id=1\n", ["--broker-config", "server.properties"], "this broker has no tier"),
        (BROKER.replace("manager.class.name", "x"), ["--broker-config", "server.properties"], "what reads the tier"),
        (BROKER.replace("rsm.config.dir=/tier\n", ""), ["--broker-config", "server.properties"], "rsm.config.dir"),
        (BROKER.replace("LocalTieredStorage", "Other"), ["--broker-config", "server.properties"], "storage.Other"),
        (
            AIVEN.replace("chunk.size=4194304", "chunk.size=0"),
            ["--broker-config", "server.properties"],
            "rsm.config.chunk.size",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    text: str, words: list[str], said: str, broker: Path, capsys: Captured
) -> None:
    broker.write_text(text)
    assert cli.main(["init", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert (told.out, ".new" in told.err) == ("", False)
    assert [each.name for each in broker.parent.iterdir()] == ["server.properties"]


def test_a_file_that_is_there_is_written_over_by_force_alone(broker: Path, capsys: Captured) -> None:
    Path("tidegate.properties").write_text("mine\n")
    assert cli.main(["init", "--broker-config", str(broker)]) == 2
    assert "is there already; --force writes over it" in capsys.readouterr().err
    assert Path("tidegate.properties").read_text() == "mine\n"
    assert cli.main(["init", "--broker-config", str(broker), "--force"]) == 0
    assert Path("tidegate.properties").read_text().startswith("upstream.bootstrap.servers=")
