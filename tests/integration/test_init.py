"""What `tidegate init` writes out of a real broker's file is accepted by `check`."""

from pathlib import Path

import pytest

from tests.support.kafka import TieredTopic
from tidegate import cli
from tools.demo.kafka_cluster import KafkaCluster, free_port

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


def test_check_finds_nothing_wrong(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, listen = str(tmp_path / "own.properties"), f"127.0.0.1:{free_port()}"
    words = ["--broker-config", str(kafka.server_properties_path(1)), "--listen", listen]
    assert cli.main(["init", file, *words]) == 0
    with Path(file).open("a") as written:
        written.write(f"admin.listen=127.0.0.1:{free_port()}\n")
    capsys.readouterr()
    assert cli.main(["check", file]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.endswith("nothing wrong\n")
    assert tiered.name
