"""Standard error that nobody reads: a log driver that waits for its disk, a terminal that is held."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hostile_clients import crowd
from tests.support.kafka import TieredTopic
from tests.support.raw_client import RawClient, address_of
from tests.support.serving import before_kafka
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text
from tools.demo.tidegate_process import bootstrap_address

MALFORMED = b"GET / HTTP/1.1\r\n\r\n"
TURNS, AT_ONCE = 20, 40
"""At level debug twice the lines that a pipe holds (64 KiB)."""
END_S_MAX = 60.0


def test_an_honest_client_reads_on_and_the_end_comes(kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path) -> None:
    """How it failed: after 64 KiB of warnings the loop stood still, and so did all clients."""
    with unread_serve(kafka, tmp_path) as (process, address), RawClient(*address) as honest:
        for _ in range(TURNS):
            with crowd(address, AT_ONCE) as clients:
                for client in clients:
                    client.send_bytes(MALFORMED)
                for client in clients:
                    assert client.is_closed_by_peer()
            assert [topic.name for topic in honest.metadata([tiered.name]).topics] == [tiered.name]
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S_MAX) == 0


@contextmanager
def unread_serve(kafka: KafkaCluster, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", tuple[str, int]]]:
    """The process, and where clients reach it. Its lines are read until it is ready."""
    file = folder / "tidegate.properties"
    settings = {**before_kafka(kafka), "log.level": "debug"}
    file.write_text(properties_text(settings), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "tidegate", "serve", str(file)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            while "\nready: " not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            yield process, address_of(bootstrap_address(said))
        finally:
            process.kill()
