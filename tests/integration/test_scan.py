"""A scan of a tier in any format gives the very rows that consumers of both isolation levels read from the broker."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from tests.support.aiven_tier import publish_tier
from tests.support.cases import case
from tests.support.differential_topics import HOLES
from tests.support.differential_world import DifferentialWorld
from tests.support.digests import read_with_confluent, scanned
from tests.support.filled_topics import ISOLATIONS, FilledTopic
from tests.support.for_each import for_each
from tests.support.program import run_command
from tests.support.s3_server import S3Server
from tests.support.versitygw import versitygw
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

pytestmark = pytest.mark.integration

Config = dict[str, str]

THE_BROKERS, OUR_OWN = "LocalTieredStorage", "PlainObjects"
COMPRESSED_AND_ENCRYPTED = {"the plug-in's, compressed and encrypted": {"compression": True, "encryption": True}}
AS_THE_PLUG_IN: Mapping[str, Mapping[str, bool]] = {
    "the plug-in's": {},
    "the plug-in's, compressed": {"compression": True},
    **COMPRESSED_AND_ENCRYPTED,
}
FORMATS = (THE_BROKERS, OUR_OWN, *AS_THE_PLUG_IN)

for_each_isolation = for_each("isolation", ISOLATIONS)
for_each_format = for_each("written", FORMATS)
for_each_read = for_each("written, isolation", [(each, level) for each in FORMATS for level in ISOLATIONS])


@dataclass(frozen=True, slots=True)
class Stage:
    """Tiers of the same segments by who wrote them, each as a configuration, and the topics that are read."""

    tiers: Mapping[str, Config]
    topics: tuple[FilledTopic, ...]


@pytest.fixture(scope="module")
def stage(
    kafka: KafkaCluster,
    codecs: FilledTopic,
    transactions: FilledTopic,
    gateway: S3Server,
    s3_endpoint: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    topics = codecs, transactions
    names, folder = [topic.name for topic in topics], tmp_path_factory.mktemp("keys")
    return Stage(tiers(kafka, gateway, s3_endpoint, names, folder, AS_THE_PLUG_IN), topics)


def tiers(
    kafka: KafkaCluster,
    gateway: S3Server,
    server: S3Server,
    topics: Collection[str],
    folder: Path,
    as_the_plug_in: Mapping[str, Mapping[str, bool]],
) -> dict[str, Config]:
    """The brokers' own, the same objects in the bucket as which `gateway` serves them, and the plug-in's on `server`,
    whose key files go to `folder`."""
    upstream = {"upstream.bootstrap.servers": kafka.bootstrap_servers}
    bucket = {f"rsm.config.{key}": value for key, value in gateway.config(ROOT_DIRECTORY_NAME).items()}
    found = {
        THE_BROKERS: upstream | {"broker.config": str(kafka.server_properties_path(1))},
        OUR_OWN: upstream | {"remote.log.storage.manager.class.name": "tidegate.PlainObjects"} | bucket,
    }
    for written, options in as_the_plug_in.items():
        found[written] = upstream | publish_tier(kafka, server, topics, folder, **options).properties()
    return found


@for_each_read
def test_its_rows_are_a_consumers(stage: Stage, written: str, isolation: str) -> None:
    for topic in stage.topics:
        scan = tidegate.scan(stage.tiers[written], topic.name, isolation=isolation, tail="broker")
        expected = topic.direct[isolation]  # type: ignore[index]  # of a Literal
        assert scanned(scan.batches(), {topic.name: topic.ends}) == {topic.name: expected}
        assert scan.stats.segments > len(topic.ends)
        assert scan.count() == sum(each.records for each in expected.values())


def test_rows_of_every_kind_of_log_are_a_consumers(
    differential: DifferentialWorld, s3_endpoint: S3Server, tmp_path: Path
) -> None:
    """Given several leader epochs, holes of a compacted log, a log start in the midst of a batch, aborted transactions
    and one that hangs, when all topics are scanned at once, then the rows are those of a consumer at the broker."""
    ends: dict[str, dict[int, int]] = {}
    for known in differential.partitions:
        ends.setdefault(known.topic, {})[known.partition] = known.offsets.high_watermark
    assert HOLES in ends
    cluster = differential.cluster
    direct = {
        level: {topic: read_with_confluent(cluster.bootstrap_servers, topic, ends[topic], level) for topic in ends}
        for level in ISOLATIONS
    }
    with versitygw(cluster.tier_dir, tmp_path / "gateway", keeps_metadata=False) as gateway:
        found = tiers(cluster, gateway, s3_endpoint, ends, tmp_path, COMPRESSED_AND_ENCRYPTED)
        for written, config in found.items():
            for level, expected in direct.items():
                with case(written, level):
                    scan = tidegate.scan(config, [*ends], isolation=level, tail="broker")
                    assert scanned(scan.batches(), ends) == expected


@for_each_format
def test_without_the_tail_it_says_what_is_left_out(stage: Stage, written: str) -> None:
    topic = stage.topics[0]
    scan = tidegate.scan(stage.tiers[written], topic.name, columns=["offset"])
    left_out = scan.explain().not_tiered_offsets
    scan.to_table()
    assert scan.stats.not_tiered_offsets == left_out > 0
    assert scan.stats.offsets + left_out == sum(topic.ends.values())


@for_each_isolation
def test_a_file_and_the_command_do_as_well(
    stage: Stage, isolation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "tidegate.properties", tmp_path / "rows.arrow"
    file.write_text(properties_text(stage.tiers[THE_BROKERS]))
    for topic in stage.topics:
        assert tidegate.scan(file, topic.name, where="offset < 10").count() > 0
        given = ["--isolation", isolation, "--tail", "broker", "--output", str(output)]
        code, _, err = run_command(capsys, "scan", str(file), topic.name, *given)
        assert code == 0, err
        expected = topic.direct[isolation]  # type: ignore[index]  # of a Literal
        with pa.ipc.open_stream(output) as rows:
            assert scanned(rows, {topic.name: topic.ends}) == {topic.name: expected}
