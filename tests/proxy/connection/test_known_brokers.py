"""The brokers that were known last: kept in a file, used by the next run, and by nobody else."""

import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from protocol.wire.addresses import NodeAddress
from proxy.connection.brokers_file import FILE_BYTES_MAX, FILE_NAME, KnownBrokers, KnownBrokersFile
from tests.support.cases import case

ONE, TWO = NodeAddress(1, "kafka-1", 9092), NodeAddress(2, "kafka-2", 9092)
SERVERS = ("a:9092", "b:9092")
NOTHING = KnownBrokers()


async def keep(folder: Path, brokers: list[NodeAddress], ports: dict[int, int]) -> None:
    kept = KnownBrokersFile(folder, SERVERS)
    kept.note(brokers, ports)
    await kept.write()


async def test_the_next_run_knows_brokers_and_ports(tmp_path: Path) -> None:
    await keep(tmp_path / "made", [TWO, ONE], {2: 40002, 7: 40007})
    kept = KnownBrokersFile(tmp_path / "made", reversed(SERVERS))
    assert await kept.read() == KnownBrokers((ONE, TWO), {2: 40002, 7: 40007})
    # It names where clients send their credentials.
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "made" / FILE_NAME).stat().st_mode) == 0o600


async def test_what_has_not_changed_is_not_written(tmp_path: Path) -> None:
    await keep(tmp_path, [ONE], {})
    written = (tmp_path / FILE_NAME).stat().st_ino
    kept = KnownBrokersFile(tmp_path, SERVERS)
    await kept.read()
    kept.note([ONE], {})
    await kept.write()
    assert (tmp_path / FILE_NAME).stat().st_ino == written
    kept.note([ONE, TWO], {})
    await kept.write()
    assert (tmp_path / FILE_NAME).stat().st_ino != written


async def test_other_bootstrap_servers_may_be_another_cluster(tmp_path: Path) -> None:
    await keep(tmp_path, [ONE], {})
    with structlog.testing.capture_logs() as logs:
        assert await KnownBrokersFile(tmp_path, ("c:9092",)).read() == NOTHING
    assert [entry["event"] for entry in logs] == ["known_brokers_not_used"]
    assert "upstream.bootstrap.servers" in logs[0]["reason"]


def changed(**changes: Any) -> Callable[[dict[str, Any]], str]:
    return lambda content: json.dumps({**content, **changes})


DAMAGES: Sequence[Callable[[dict[str, Any]], str]] = (
    lambda content: json.dumps(content)[:-9],
    lambda _: "[" * 100_000,
    lambda _: "[]",
    lambda _: "{}",
    lambda _: " " * (FILE_BYTES_MAX + 1),
    changed(format=2),
    changed(brokers=[{"node_id": 1, "host": "", "port": 9092}]),
    changed(brokers=[{"node_id": 1, "host": 7, "port": 9092}]),
    changed(brokers=[{"node_id": -1, "host": "k", "port": 9092}]),
    changed(brokers=[{"node_id": 1, "host": "k", "port": 65536}]),
    changed(brokers=[{"node_id": 1, "host": "k"}]),
    changed(ports={"x": 1}),
    changed(ports={"1": True}),
    changed(ports=[]),
)


async def test_a_damaged_file_is_unused_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    for number, damage in enumerate(DAMAGES):
        path.unlink(missing_ok=True)
        await keep(tmp_path, [ONE], {1: 40001})
        path.write_text(damage(json.loads(path.read_text())))
        kept = KnownBrokersFile(tmp_path, SERVERS)
        with case(number), structlog.testing.capture_logs() as logs:
            assert await kept.read() == NOTHING
            kept.note([TWO], {})
            await kept.write()
            assert [entry["event"] for entry in logs] == ["known_brokers_not_used"]
            assert await KnownBrokersFile(tmp_path, SERVERS).read() == KnownBrokers((TWO,))
