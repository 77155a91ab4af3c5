"""A folder that a real broker's LocalTieredStorage wrote, served as a bucket and read as plain objects, to the byte.

versitygw takes each folder below the one it is given for a bucket, and files that others wrote there for objects.
"""

from contextlib import closing

import pytest

from storage.errors import RemoteResourceNotFoundError
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.aiven_tier import finished_segments
from tests.support.digests import read_with_confluent
from tests.support.filled_topics import FilledTopic
from tests.support.kafka import TieredTopic
from tests.support.s3_server import S3Server
from tests.support.tidegate import own_tidegate
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("versitygw")


def properties(gateway: S3Server) -> dict[str, str]:
    """What stands in Tidegate's own file; the broker's goes on with `rsm.config.dir`."""
    keys = {f"rsm.config.{key}": value for key, value in gateway.config(ROOT_DIRECTORY_NAME).items()}
    return {"remote.log.storage.manager.class.name": "tidegate.PlainObjects", **keys}


def index_of(manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes | None:
    try:
        return manager.fetch_index(metadata, index_type)
    except RemoteResourceNotFoundError:
        return None


def test_every_object_that_the_broker_wrote_is_read_as_it_is(
    kafka: KafkaCluster, tiered: TieredTopic, gateway: S3Server
) -> None:
    segments = [each for each in finished_segments(kafka) if each.topic_id_partition.topic == tiered.name]
    files = LocalTieredStorage({"dir": str(kafka.tier_dir)})
    with closing(PlainObjects(gateway.config(ROOT_DIRECTORY_NAME))) as objects:
        for segment in segments:
            size_bytes = segment.segment_size_bytes
            log = files.fetch_log_segment(segment, 0)
            with closing(objects.open_log_segment(segment).open_stream(0, size_bytes)) as stream:
                assert stream.read(size_bytes) == log
            assert objects.fetch_log_segment(segment, size_bytes // 2) == log[size_bytes // 2 :]
            for index_type in IndexType:
                assert index_of(objects, segment, index_type) == index_of(files, segment, index_type)
            sizes = [each.size_bytes for each in files.inspect_segment(segment).objects]
            assert [each.size_bytes for each in objects.inspect_segment(segment).objects] == sizes
        found = {(each.segment_id, each.size_bytes) for each in files.list_objects(tiered.name)}
        assert {(each.segment_id, each.size_bytes) for each in objects.list_objects(tiered.name)} == found
    assert len(segments) >= 4


def test_consumers_read_what_the_broker_itself_gives_them(
    kafka: KafkaCluster, tiered: TieredTopic, transactions: FilledTopic, gateway: S3Server
) -> None:
    """The second topic has transaction indexes, in some of its segments."""
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    expected = read_with_confluent(kafka.bootstrap_servers, tiered.name, ends, "read_uncommitted")
    with own_tidegate(kafka, properties(gateway)) as tidegate:
        address = tidegate.bootstrap_servers
        assert read_with_confluent(address, tiered.name, ends, "read_uncommitted") == expected
        for isolation, direct in transactions.direct.items():
            assert read_with_confluent(address, transactions.name, transactions.ends, isolation) == direct
        assert tidegate.metric("tidegate_gets_total", object="log") > 0
