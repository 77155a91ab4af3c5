"""Opening the tier over fake brokers: what it reads, and each thing that keeps it from reading, in one line."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.errors import TierError
from tests.support.command_world import CommandWorld
from tests.support.segments import filled_segment, metadata_of, topic_partition
from tidegate import exit_codes
from tidegate.commands.ls import LsOptions
from tidegate.commands.ls import run as ls
from tidegate.commands.metadata import records_of
from tidegate.commands.tier import OpenTier, open_tier, run_on_tier

Captured = pytest.CaptureFixture[str]

ORDERS = topic_partition("orders")


class World(CommandWorld):
    """The metadata topic has two partitions, one of them empty, and two segments."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch, metadata_partitions=2)
        for start in (0, 1000):
            self.announce(start)

    def announce(self, start_offset: int) -> None:
        self.publish(*records_of(metadata_of(ORDERS, filled_segment(start_offset))))

    def run(self, work: Callable[[OpenTier], int] = lambda tier: 0) -> int:
        async def on_tier(tier: OpenTier) -> int:
            return work(tier)

        return run_on_tier(self.config(), on_tier)

    def is_refused(self, captured: Captured, *said: str) -> None:
        assert self.run() == exit_codes.FOUND_WRONG
        told = captured.readouterr().err
        assert told.startswith("tidegate: ")
        assert told.count("\n") == 1
        for each in said:
            assert each in told


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


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
        world.announce(2000)
        await tier.catch_up()
        assert len(tier.segments(ORDERS)) == 3
        assert tier.positions() == {0: 6, 1: 0}
        return exit_codes.DONE

    assert run_on_tier(world.config(), work) == exit_codes.DONE


def test_a_serves_snapshot_saves_the_reading_and_stays_as_it_is(world: World, tmp_path: Path) -> None:
    """A snapshot of another cluster is left alone: nothing is set aside by a tool."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "catalog.snapshot").write_bytes(b"nothing that anybody can read")
    world.lines = f"catalog.snapshot.path={folder}\n"
    before = sorted(folder.iterdir())
    assert world.run(lambda tier: len(tier.segments(ORDERS))) == 2
    assert sorted(folder.iterdir()) == before


def test_each_thing_that_keeps_it_from_reading_is_one_line(world: World, capsys: Captured) -> None:
    world.lines = "remote.log.metadata.manager.class.name=tidegate.InMemory\n"  # of one process
    world.is_refused(capsys, "remote.log.metadata.manager.class.name=tidegate.InMemory", "or leave the key out")
    world.lines = ""
    denied = ErrorCode.topic_authorization_failed
    world.cluster.hooks["metadata fetch"] = lambda: setattr(world.metadata, "error_code", denied)
    world.is_refused(capsys, f"ACL Read on Topic {METADATA_TOPIC} is missing", "`tidegate check FILE`")
    del world.cluster.topics[METADATA_TOPIC]
    world.is_refused(capsys, f"topic {METADATA_TOPIC} does not exist", "ACL Describe")
    world.cluster.stop(1)
    world.is_refused(capsys, "cannot connect to a:1", "`tidegate check FILE`")


def test_what_the_catalog_lacks_is_a_warning_and_exit_code_1(world: World, capsys: Captured) -> None:
    world.publish(b"no record")
    code = ls(world.config(), LsOptions(place=None), io.StringIO())
    assert code == exit_codes.FOUND_WRONG
    assert f"warning: 1 records of {METADATA_TOPIC} cannot be decoded" in capsys.readouterr().err


async def test_a_topic_that_falls_silent_is_given_up(world: World) -> None:
    """Partition 1 says that it has a record, and never gives it."""
    world.cluster.log(METADATA_TOPIC, 1).end_offset = 1
    silent = pytest.RaisesExc(TierError, match="gave none of the 1 records that are left for 1 s")
    with pytest.RaisesGroup(silent, flatten_subgroups=True):
        async with open_tier(world.config(), silence_s=1):
            raise AssertionError("it was opened")
