"""A scan gives the very rows that consumers of both isolation levels read from the broker."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tidegate
from table.history.scan import Scan
from tests.support.digests import Digests, TopicDigest
from tests.support.filled_topics import ISOLATIONS, FilledTopic
from tests.support.for_each import for_each
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.integration

for_each_isolation = for_each("isolation", list(ISOLATIONS))


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker's configuration, and the topics that are read."""

    config: dict[str, str]
    topics: tuple[FilledTopic, ...]


@pytest.fixture(scope="module")
def stage(kafka: KafkaCluster, codecs: FilledTopic, transactions: FilledTopic) -> Stage:
    config = {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "broker.config": str(kafka.server_properties_path(1)),
    }
    return Stage(config, (codecs, transactions))


def digests(scan: Scan, topic: FilledTopic) -> Digests:
    digest = TopicDigest(topic.ends)
    for row in rows(scan):
        digest.add(*row)
    return digest.result()


def rows(scan: Scan) -> Iterator[tuple]:  # type: ignore[type-arg]  # as TopicDigest.add takes them
    for batch in scan.batches():
        for row in batch.to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            timestamp_ms = round(row["timestamp"].timestamp() * 1000)
            yield row["partition"], row["offset"], timestamp_ms, row["key"], row["value"], headers


@for_each_isolation
def test_its_rows_are_a_consumers(stage: Stage, isolation: str) -> None:
    for topic in stage.topics:
        scan = tidegate.scan(stage.config, topic.name, isolation=isolation, tail="broker")
        expected = topic.direct[isolation]  # type: ignore[index]  # of a Literal
        assert digests(scan, topic) == expected
        assert scan.count() == sum(each.records for each in expected.values())


def test_without_the_tail_it_says_what_is_left_out(stage: Stage) -> None:
    topic = stage.topics[0]
    scan = tidegate.scan(stage.config, topic.name, columns=["offset"])
    left_out = scan.explain().not_tiered_offsets
    scan.to_table()
    assert scan.stats.not_tiered_offsets == left_out > 0
    assert scan.stats.offsets + left_out == sum(topic.ends.values())


def test_a_file_of_the_configuration_does_as_well(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "tidegate.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in stage.config.items()))
    topic = stage.topics[0]
    assert tidegate.scan(file, topic.name, where="offset < 10").count() == 10 * len(topic.ends)
