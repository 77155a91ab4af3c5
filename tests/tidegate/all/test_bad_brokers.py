"""The whole application before brokers that say what cannot be: it starts, and goes on serving through the others.

How it failed: it exited within ten seconds, and at each restart; of a length by SIGABRT without a line.
"""

from pathlib import Path

import pytest
import trio

from protocol.client.messages import METADATA
from tests.support.in_process import in_thread
from tests.support.raw_client import RawClient
from tests.support.waiting import until
from tests.support.wire_kafka import wire_kafka
from tests.tidegate.test_application import config_of
from tidegate.application import Application
from tidegate.serve import run

pytestmark = pytest.mark.usefixtures("restored_logging")

NO_NAMES = ("127..0.01", "a" * 64 + ".example", "two words", "nul\0inside", ".leading", "\ud7ff.example.", "x" * 300)


def brokers_through(application: Application) -> dict[int, tuple[str, int]]:
    """As a client sees them."""
    with RawClient(*application.bootstrap) as client:
        return {int(each.node_id): (each.host, each.port) for each in client.metadata([]).brokers}


@pytest.mark.parametrize("name", NO_NAMES, ids=ascii)
async def test_a_broker_whose_name_is_none_is_out_of_reach_and_no_more(name: str, tmp_path: Path) -> None:
    async with wire_kafka() as kafka:
        ours = kafka.addresses[1]
        kafka.addresses |= {2: (name, 9092), 3: ("127.0.0.1", 70_000), 4: ("127.0.0.1", -1)}
        async with run(config_of(tmp_path, upstream_port=ours[1])) as application:
            await until(lambda: application.cluster.brokers, "Metadata")
            assert application.cluster.brokers[2].host == name
            told: dict[int, tuple[str, int]] = {}
            for _ in range(3):
                told = await in_thread(lambda: brokers_through(application))
                with RawClient(*told[1]) as client:
                    assert await in_thread(client.api_versions)
                await application.cluster.refresh()
            # One that cannot be reached closes its client's connection, as if it were down.
            stream = await trio.open_tcp_stream(*told[2])
            async with stream:
                assert await stream.receive_some() == b""


async def test_an_answer_of_four_billion_brokers_ends_one_connection(tmp_path: Path) -> None:
    async with wire_kafka() as kafka:
        broker, good = kafka.brokers[1], kafka.brokers[1].handlers[METADATA.key]
        asked: list[object] = []

        def answer(request: object) -> object:
            asked.append(request)
            return good(request) if len(asked) > 3 else b"\0\0\0\2\0" + bytes(4) + b"\xfe\xff\xff\xff\x0f" + bytes(40)

        broker.on(METADATA, answer)  # type: ignore[arg-type]  # what a handler gives, by way of another
        async with run(config_of(tmp_path, upstream_port=kafka.addresses[1][1])) as application:
            await until(lambda: application.cluster.brokers, "an answer that can be read")
            assert await in_thread(lambda: brokers_through(application))
