"""Numbers are true: a known load through Tidegate, and each counter against what others counted.

Who counts besides Tidegate: the raw client (requests, bytes of its socket, record bytes) and an HTTP server before the
S3 server (GETs and their bytes, by status). The broker's segments are there once more in S3, neither compressed nor
encrypted, so that bytes in the store are bytes of records. Read-ahead is off but where it is what is counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from protocol.wire.errors import ErrorCode
from storage.model import RemoteLogSegmentMetadata
from tests.support.aiven_tier import AivenTier, publish_tier
from tests.support.kafka import TieredTopic, fresh_name, orders, tiered_topic
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import S3Server
from tests.support.samples import Scrape
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.integration

VERSION = 17
RECORDS = 20_000
BLOCK_BYTES = 64 * 1024
SEGMENT_BYTES_MAX = 2 * 1024 * 1024
"""More than a segment has: a Fetch of so much gets all of one."""

PATIENT = {"remote.fetch.max.wait.ms": "5000"}
NO_READ_AHEAD = {"readahead.stream.max.bytes": "0"}
ASK_ALWAYS = {"authority.max.age.ms": "0"}
BOTH_NAMES = {"metrics.kip405.names": "both"}

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = "1", "2", "3", "18"
TOPIC_METER = "kafka_server_brokertopicmetrics_"
TIMER = "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems"

Wanted = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def series(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@dataclass(frozen=True, slots=True)
class Counted:
    """What Tidegate's counters have grown by since this was made."""

    tidegate: RunningTidegate
    before: Scrape

    def grown(self, names: Wanted) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        now = Scrape.of(self.tidegate.page("/metrics"))
        return {key: now.sum(key[0], **dict(key[1])) - self.before.sum(key[0], **dict(key[1])) for key in names}

    def becomes(self, wanted: Wanted) -> None:
        """Counters may move a moment after the client has its bytes, and must be right then."""
        try:
            wait_until(lambda: self.grown(wanted) == wanted, "the counters")
        except AssertionError:
            assert self.grown(wanted) == dict(wanted)


@dataclass(frozen=True, slots=True)
class Tier:
    """The topic's segments in S3, and what counts before it."""

    topic: TieredTopic
    topic_id: bytes
    published: AivenTier
    front: S3Front

    def properties(self, *more: Mapping[str, str]) -> dict[str, str]:
        keys = {"expert.cache.block.bytes": str(BLOCK_BYTES), **NO_READ_AHEAD, **PATIENT, **ASK_ALWAYS, **BOTH_NAMES}
        for each in more:
            keys |= each
        return {**self.published.properties(endpoint_url=self.front.endpoint_url), **keys}

    def segments(self, partition: int) -> list[RemoteLogSegmentMetadata]:
        return [each for each in self.published.segments if each.topic_id_partition.partition == partition]

    def target(self, partition: int, offset: int) -> FetchTarget:
        return self.topic.name, self.topic_id, partition, offset, SEGMENT_BYTES_MAX

    def targets(self, partition: int) -> list[FetchTarget]:
        """The beginning of every segment."""
        return [self.target(partition, segment.start_offset) for segment in self.segments(partition)]

    def hot(self, partition: int) -> FetchTarget:
        return self.target(partition, self.topic.offsets[partition].local_log_start_offset)


def blocks_of(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    return sum(-(-segment.segment_size_bytes // BLOCK_BYTES) for segment in segments)


@pytest.fixture(scope="module")
def tier(kafka: KafkaCluster, s3_endpoint: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    """Two partitions of small batches, each with two or three segments in the tier."""
    records = orders(RECORDS, 2)
    topic = tiered_topic(kafka, fresh_name("true-numbers"), partitions=2, records=records, batch_num_messages=50)
    published = publish_tier(kafka, s3_endpoint, [topic.name], tmp_path_factory.mktemp("tier"))
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        topic_id = client.topic_id(topic.name)
    with s3_front(s3_endpoint.endpoint_url) as front:
        yield Tier(topic, topic_id, published, front)


@pytest.fixture
def fresh(kafka: KafkaCluster, tier: Tier) -> Iterator[RunningTidegate]:
    """A Tidegate with nothing in its caches."""
    with own_tidegate(kafka, tier.properties()) as tidegate:
        yield tidegate


def counting(tidegate: RunningTidegate) -> Counted:
    return Counted(tidegate, Scrape.of(tidegate.page("/metrics")))


def front_since(front: S3Front) -> Callable[[str], tuple[int, int]]:
    """GETs and their bytes that the server answered well from now on, by the path's end."""
    before = {suffix: len(front.gets(f"*{suffix}")) for suffix in (".log", ".indexes", ".rsm-manifest")}

    def counted(suffix: str) -> tuple[int, int]:
        answers = front.gets(f"*{suffix}")[before[suffix] :]
        assert {answer.status for answer in answers} <= {200, 206}, answers
        return len(answers), sum(answer.body_bytes for answer in answers)

    return counted


def leader(tidegate: RunningTidegate) -> RawClient:
    """A connection to the listener that stands for the only broker, when the one that asked for it is counted."""
    port = broker_ports(tidegate)[1]
    wait_until(lambda: tidegate.metric("tidegate_connections_active") == 0, "the first connection has ended")
    return RawClient("127.0.0.1", port)


def read(client: RawClient, targets: Sequence[FetchTarget]) -> list[FetchedPartition]:
    """One Fetch for each target; the store is awaited, so each has records."""
    answers = [client.fetch(VERSION, [target]).partitions[0] for target in targets]
    assert all(answer.error_code == ErrorCode.NONE and answer.records for answer in answers)
    return answers


def record_bytes(answers: Sequence[FetchedPartition]) -> int:
    return sum(len(answer.records) for answer in answers)


def test_relayed_requests_bytes_and_connections_are_what_the_client_counts(tier: Tier, fresh: RunningTidegate) -> None:
    port = broker_ports(fresh)[1]
    wait_until(lambda: fresh.metric("tidegate_connections_active") == 0, "the first connection has ended")
    counted = counting(fresh)
    client = RawClient("127.0.0.1", port)
    client.api_versions()
    client.metadata([tier.topic.name])
    client.list_offsets(9, [(tier.topic.name, 0, -1)])
    answers = [client.fetch(VERSION, [tier.hot(0)]).partitions[0] for _ in range(3)]
    assert record_bytes(answers) > 0
    opened = client.fetch(VERSION, [tier.hot(1)], session=(0, 0))
    assert opened.session_id != 0
    relayed = {
        series("tidegate_requests_total", api_key=API_VERSIONS, route="rewrite"): 1,
        series("tidegate_requests_total", api_key=METADATA, route="rewrite"): 1,
        series("tidegate_requests_total", api_key=LIST_OFFSETS, route="relay"): 1,
        series("tidegate_requests_total", api_key=FETCH, route="relay"): 4,
        series("tidegate_requests_total"): 7,
        series("tidegate_relayed_bytes_total", direction="client_to_upstream"): client.sent_bytes,
        series("tidegate_relayed_bytes_total", direction="upstream_to_client"): client.received_bytes,
        series("tidegate_served_tier_bytes_total"): 0,
        series("tidegate_probes_sent_total"): 0,
        series("tidegate_connections_accepted_total"): 1,
        series("tidegate_connections_active"): 1,
        series("tidegate_connections_closed_total"): 0,
        series("tidegate_fetch_sessions"): 1,
    }
    counted.becomes(relayed)
    client.fetch(VERSION, [], session=(opened.session_id, -1))
    client.close()
    counted.becomes(
        {
            series("tidegate_connections_active"): 0,
            series("tidegate_connections_accepted_total"): 1,
            series("tidegate_connections_closed_total", cause="client"): 1,
            series("tidegate_connections_closed_total"): 1,
            series("tidegate_fetch_sessions"): 0,
        }
    )


def test_tier_reads_gets_and_cache_in_a_cold_and_a_warm_pass(tier: Tier, fresh: RunningTidegate) -> None:
    topic, segments = tier.topic.name, tier.segments(0)
    blocks, log_bytes = blocks_of(segments), sum(segment.segment_size_bytes for segment in segments)
    with leader(fresh) as client:
        counted, at_store, received = counting(fresh), front_since(tier.front), client.received_bytes
        served = record_bytes(read(client, tier.targets(0)))
        assert received < client.received_bytes
        tier_reads = {
            series("tidegate_requests_total", api_key=FETCH, route="exchange"): len(segments),
            series("tidegate_requests_total"): len(segments),
            series(f"{TOPIC_METER}remotefetchrequests_total", topic=topic): len(segments),
            series(f"{TOPIC_METER}remotefetchrequests_total"): len(segments),
            series(f"{TOPIC_METER}remotefetchbytes_total", topic=topic): served,
            series(f"{TOPIC_METER}remotebytesin_total", topic=topic): served,
            series(f"{TOPIC_METER}remotefetcherrors_total"): 0,
            series("tidegate_served_tier_bytes_total"): served,
            series("tidegate_relayed_bytes_total"): 0,
            series("tidegate_probes_sent_total"): len(segments),
            series("tidegate_probes_reused_total"): 0,
            series("tidegate_probe_seconds_count"): len(segments),
            series("tidegate_deadline_misses_total"): 0,
            series(f"{TIMER}_count"): len(segments),
        }
        counted.becomes(tier_reads)
        log_gets, got_bytes = at_store(".log")
        cold = {
            series("tidegate_gets_total", store="s3", object="log", outcome="ok"): log_gets,
            series("tidegate_gets_total", store="s3", object="manifest", outcome="ok"): at_store(".rsm-manifest")[0],
            series("tidegate_gets_total", store="s3", object="index", outcome="ok"): at_store(".indexes")[0],
            series("tidegate_gets_total"): sum(at_store(each)[0] for each in (".log", ".rsm-manifest", ".indexes")),
            series("tidegate_get_bytes_total", store="s3", outcome="ok"): got_bytes,
            series("tidegate_get_bytes_total"): got_bytes,
            series("tidegate_get_first_byte_seconds_count", store="s3"): log_gets,
            series("tidegate_get_seconds_count", outcome="ok"): log_gets + at_store(".indexes")[0] + len(segments),
            series("tidegate_get_retries_total"): 0,
            series("tidegate_get_hedges_total"): 0,
            series("tidegate_cache_hits_total"): 0,
            series("tidegate_cache_misses_total", level="memory"): blocks,
            series("tidegate_cache_misses_total", level="disk"): 0,
            series("tidegate_cache_fills_total"): blocks,
            series("tidegate_cache_fill_bytes_total"): log_bytes,
            series("tidegate_cache_resident_bytes", level="memory"): log_bytes,
            series("tidegate_cache_fill_failures_total"): 0,
            series("tidegate_opened_segments"): len(segments),
        }
        counted.becomes(cold)
        assert at_store(".rsm-manifest")[0] == len(segments)
        assert got_bytes == log_bytes, "neither compressed nor encrypted"

        counted, at_store = counting(fresh), front_since(tier.front)
        assert record_bytes(read(client, tier.targets(0))) == served == log_bytes
        counted.becomes(tier_reads)
        warm = {
            series("tidegate_gets_total"): 0,
            series("tidegate_get_bytes_total"): 0,
            series("tidegate_cache_hits_total", level="memory"): blocks,
            series("tidegate_cache_hit_bytes_total", level="memory"): log_bytes,
            series("tidegate_cache_misses_total"): 0,
            series("tidegate_cache_fills_total"): 0,
            series("tidegate_cache_fill_wait_seconds_count"): 0,
        }
        counted.becomes(warm)
        assert at_store(".log") == (0, 0)


def test_deadlines_that_a_slow_store_misses(kafka: KafkaCluster, tier: Tier) -> None:
    topic = tier.topic.name
    with (
        own_tidegate(kafka, tier.properties({"remote.fetch.max.wait.ms": "0", "metrics.topics.max": "0"})) as tidegate,
        leader(tidegate) as client,
    ):
        counted, at_store = counting(tidegate), front_since(tier.front)
        with tier.front.held("*"):
            (late,) = client.fetch(VERSION, [tier.targets(0)[0]], max_wait_ms=100).partitions
            assert (late.error_code, late.records) == (ErrorCode.NONE, b"")
            counted.becomes(
                {
                    series("tidegate_deadline_misses_total", request="fetch"): 1,
                    series("tidegate_deadline_misses_total"): 1,
                    series("kafka_server_delayedremotefetchmetrics_expires_total"): 1,
                    series("kafka_server_delayedoperationpurgatory_purgatorysize"): 0,
                    series(f"{TOPIC_METER}remotefetchrequests_total", topic="__other__"): 1,
                    series(f"{TOPIC_METER}remotefetchbytes_total", topic="__other__"): 0,
                    series(f"{TOPIC_METER}remotefetcherrors_total"): 0,
                    series("tidegate_served_tier_bytes_total"): 0,
                    series("tidegate_gets_total"): 0,
                }
            )
            (found,) = client.list_offsets(10, [(topic, 1, 1)], timeout_ms=100)
            assert found.error_code == ErrorCode.REQUEST_TIMED_OUT
            misses = "kafka_server_delayedremotelistoffsetsmetrics_expires_total"
            counted.becomes(
                {
                    series("tidegate_deadline_misses_total", request="fetch"): 1,
                    series("tidegate_deadline_misses_total", request="list_offsets"): 1,
                    series(misses, topic="__other__"): 1,
                    series(misses): 1,
                }
            )
        # The fill went on; what it costs is counted when it has ended.
        wait_until(lambda: tidegate.metric("tidegate_gets_in_flight") == 0, "no GET is under way")
        counted.becomes({series("tidegate_gets_total", object="log", outcome="ok"): at_store(".log")[0]})
