"""Opening the tier over fake brokers: what it reads, and each thing that keeps it from reading, in one line."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from proxy.commands.ls import LsOptions
from proxy.commands.ls import run as ls
from proxy.commands.tier import OpenTier, TierError, open_tier, run_on_tier
from proxy.config import Config
from proxy.process import exit_codes
from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from storage.writing.metadata_records import encode
from tests.support.config_files import load_lines
from tests.support.fake_kafka import FakeKafka, FakeTopic
from tests.support.segments import filled_segment, metadata_of, topic_partition

LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
ORDERS = topic_partition("orders")


@dataclass
class World:
    """One broker with a metadata topic of two partitions, one of them empty, and two segments."""

    cluster: FakeKafka
    folder: Path
    lines: str = ""
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    def prepare(self) -> None:
        self.cluster.add(1, "a", 1)
        self.cluster.topics[METADATA_TOPIC] = FakeTopic(b"metadata topicid", [1, 1])
        (self.folder / "tier" / "kafka-tiered-storage").mkdir(parents=True)
        for start in (0, 1000):
            self.segments.append(metadata_of(ORDERS, filled_segment(start)))
            self.announce(self.segments[-1])

    def announce(self, segment: RemoteLogSegmentMetadata) -> None:
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
        values = [encode(replace(segment, state=started))]
        values.append(encode(RemoteLogSegmentMetadataUpdate(segment.segment_id, 1, finished, 1)))
        for value in values:
            self.cluster.log(METADATA_TOPIC).put(value)

    def config(self) -> Config:
        lines = (
            f"upstream.bootstrap.servers=a:1\nremote.log.storage.manager.class.name={LOCAL}\n"
            f"rsm.config.dir={self.folder / 'tier'}\n{self.lines}"
        )
        return load_lines(self.folder, lines, minimal=False)

    def run(self, work: Callable[[OpenTier], int] = lambda tier: 0) -> int:
        async def on_tier(tier: OpenTier) -> int:
            return work(tier)

        return run_on_tier(self.config(), on_tier)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    cluster = FakeKafka()
    monkeypatch.setattr("proxy.upstream.connection.open_transport", cluster.open_transport)
    made = World(cluster, tmp_path)
    made.prepare()
    return made


def test_the_catalog_is_whole_and_the_ids_are_known(world: World) -> None:
    def work(tier: OpenTier) -> int:
        assert tier.catalog.partitions() == [ORDERS]
        assert sorted(each.start_offset for each in tier.segments(ORDERS)) == [0, 1000]
        assert (tier.cluster_id, tier.metadata.description.topic_id) == ("fake", b"metadata topicid")
        assert tier.positions() == {0: 4, 1: 0}
        assert tier.problems() == []
        return 7

    assert world.run(work) == 7


def test_what_comes_later_is_there_after_catching_up(world: World) -> None:
    async def work(tier: OpenTier) -> int:
        world.announce(metadata_of(ORDERS, filled_segment(2000)))
        await tier.catch_up()
        assert len(tier.segments(ORDERS)) == 3
        assert tier.positions() == {0: 6, 1: 0}
        return exit_codes.DONE

    assert run_on_tier(world.config(), work) == exit_codes.DONE


def test_a_serves_snapshot_saves_the_reading_and_stays_as_it_is(world: World, tmp_path: Path) -> None:
    """Of another cluster it is left alone: nothing is set aside by a tool."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "catalog.snapshot").write_bytes(b"nothing that anybody can read")
    world.lines = f"catalog.snapshot.path={folder}\n"
    before = sorted(folder.iterdir())
    assert world.run(lambda tier: len(tier.segments(ORDERS))) == 2
    assert sorted(folder.iterdir()) == before


def assert_told(world: World, captured: pytest.CaptureFixture[str], *said: str) -> None:
    assert world.run() == exit_codes.FOUND_WRONG
    told = captured.readouterr().err
    assert told.startswith("tidegate: ")
    assert told.count("\n") == 1
    for each in said:
        assert each in told


def test_a_missing_read_acl_is_named_at_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    log = world.cluster.log(METADATA_TOPIC)
    world.cluster.hooks["metadata fetch"] = lambda: setattr(log, "error_code", ErrorCode.topic_authorization_failed)
    assert_told(world, capsys, f"ACL Read on Topic {METADATA_TOPIC} is missing", "`tidegate check FILE`")


def test_an_absent_metadata_topic_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    del world.cluster.topics[METADATA_TOPIC]
    assert_told(world, capsys, f"topic {METADATA_TOPIC} does not exist", "ACL Describe")


def test_brokers_that_do_not_answer_are_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.cluster.stop(1)
    assert_told(world, capsys, "cannot connect to a:1", "`tidegate check FILE`")


def test_a_catalog_of_one_process_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.lines = "remote.log.metadata.manager.class.name=tidegate.InMemory\n"
    assert_told(world, capsys, "remote.log.metadata.manager.class.name=tidegate.InMemory", "or leave the key out")


def test_what_the_catalog_lacks_is_a_warning_and_exit_code_1(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.cluster.log(METADATA_TOPIC).put(b"no record")
    code = ls(world.config(), LsOptions(place=None), io.StringIO())
    assert code == exit_codes.FOUND_WRONG
    assert f"warning: 1 records of {METADATA_TOPIC} cannot be decoded" in capsys.readouterr().err


async def test_a_topic_that_falls_silent_is_given_up(world: World) -> None:
    """Partition 1 says that it has a record, and never gives it."""
    world.cluster.log(METADATA_TOPIC, 1).end_offset = 1
    silent = pytest.RaisesExc(TierError, match="gave none of the 1 records that are left for 0 s")
    with pytest.RaisesGroup(silent, flatten_subgroups=True):
        async with open_tier(world.config(), silence_s=0):
            raise AssertionError("it was opened")
