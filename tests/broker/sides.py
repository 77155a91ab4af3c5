"""The same question at the broker and through Tidegate, by unmodified client libraries or by bare frames.

An answer through Tidegate is the same library's answer at the broker, so a library's own ways cancel out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest

from protocol.wire.errors import ErrorCode
from tests.integration.python.confluent_program import Confluent
from tests.support.client_scenarios import ClientLibrary, Request, _run
from tests.support.raw_client import FetchedPartition, FetchTarget, ListedOffset, RawClient
from tests.support.tidegate import TidegateInThread
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

Seen = TypeVar("Seen")

for_both_libraries = pytest.mark.parametrize("client", ["librdkafka", "kafka-python"])
kafka_python_is_quiet = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
"""It reads its schemas when it first needs them, in a way that Python 3.11 warns of."""

SERVED_BYTES: Final = "tidegate_served_tier_bytes_total"
HOST: Final = "127.0.0.1"
WAIT_S_MAX: Final = 240.0
"""Against hangs, not slowness: beside four busy loops a process alone needs half a minute to start."""
ASK_AGAIN: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REPLICA_NOT_AVAILABLE)


def wait_for(look: Callable[[], Seen], what: str) -> Seen:
    return wait_until(look, what, timeout_s=WAIT_S_MAX)


class Sides:
    """A broker, and a Tidegate before it."""

    def __init__(self, cluster: KafkaCluster, gate: TidegateInThread) -> None:
        self.cluster = cluster
        self.gate = gate
        self.direct: Final = HOST, cluster.broker(1).port

    def libraries(self, client: str) -> tuple[ClientLibrary, ClientLibrary]:
        """Connected to the broker, and to Tidegate."""
        return library(client, self.cluster.bootstrap_servers), library(client, self.gate.bootstrap_servers)

    def ask(self, client: str, scenario: str, topic: str, **members: Any) -> dict[str, Any]:
        """Play a scenario of client_scenarios.py on both sides; what comes of it on either."""
        direct, through = self.libraries(client)
        expected = _run(direct, Request(scenario, topic, **members))
        assert _run(through, Request(scenario, topic, **members)) == expected, members
        return expected

    @contextmanager
    def bare(self) -> Iterator[tuple[RawClient, RawClient]]:
        """A connection to the broker, and one to what stands for it at Tidegate."""
        with RawClient(*self.direct) as direct, RawClient(*self.gate.listener()) as through:
            yield direct, through


def library(client: str, bootstrap_servers: str) -> ClientLibrary:
    if client == "librdkafka":
        return Confluent(bootstrap_servers)
    from tests.integration.python.kafka_python_program import KafkaPython  # here, for what it warns of

    return KafkaPython(bootstrap_servers)


def fetched(
    client: RawClient, version: int, target: FetchTarget, isolation: int = 0, *, is_at_end: bool = False
) -> FetchedPartition:
    """Records or an error: what the tier gives late comes empty, and is asked for again."""

    # At the log's end a broker would wait for records.
    max_wait_ms = 0 if is_at_end else 500

    def look() -> FetchedPartition | None:
        (found,) = client.fetch(version, [target], isolation=isolation, max_wait_ms=max_wait_ms).partitions
        return found if found.records or found.error_code or is_at_end else None

    found = wait_for(look, f"an answer for {target}")
    assert found is not None
    return found


def listed(
    client: RawClient, version: int, targets: Sequence[tuple[str, int, int]], isolation: int = 0
) -> list[ListedOffset]:
    """Ask again what cannot be looked up yet, as clients do."""

    def look() -> list[ListedOffset] | None:
        found = client.list_offsets(version, targets, isolation=isolation)
        return None if any(each.error_code in ASK_AGAIN for each in found) else found

    found = wait_for(look, f"offsets of {targets}")
    assert found is not None
    return found
