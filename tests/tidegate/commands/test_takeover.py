"""`tidegate takeover` over folders as a broker leaves them, without a broker; with one: tests/integration."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.metadata.encoding import encode
from storage.metadata.event_log import MetadataEvent
from storage.metadata.record_batches import build_batches
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_to_text
from tests.support.config_files import load_lines
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeKafka, FakeTopic
from tests.support.segments import SyntheticSegment, build_segment, data_batch, object_path, publish, topic_partition
from tests.support.serving import LOCAL_TIER
from tidegate import exit_codes
from tidegate.commands.metadata import records_of
from tidegate.commands.takeover import TakeoverOptions, run

Captured = pytest.CaptureFixture[str]

ORDERS, OTHER = topic_partition("orders"), topic_partition("other")
TIER_EPOCHS = ((0, 0), (2, 20))


RESTORED = "0\n3\n0 0\n2 20\n6 40\n"


@dataclass
class World:
    """A broker that is down: of 60 records of `orders` it has the last 20; the tier has 40 of epochs 0 and 2."""

    folder: Path
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data.mkdir(parents=True)
        (self.data / "meta.properties").write_text("version=1\n")
        (self.data / ".kafka_cleanshutdown").write_text("{}")
        self.add_partition(ORDERS, [data_batch(40, record_count=20, leader_epoch=6)], "0\n1\n6 40\n")
        for start, epoch in ((0, 0), (20, 2)):
            batches = [data_batch(start, record_count=20, leader_epoch=epoch)]
            self.add_segment(ORDERS, build_segment(batches, lineage=[e for e in TIER_EPOCHS if e[1] <= start]))
        self.set_log_starts("__consumer_offsets 3 7", "orders 0 40")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def tier_dir(self) -> Path:
        return self.folder / "tier"

    def add_partition(self, partition: TopicIdPartition, batches: Sequence[bytes], epochs: str) -> Path:
        path = self.data / f"{partition.topic}-{partition.partition}"
        path.mkdir()
        (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_to_text(partition.topic_id)}\n")
        (path / "leader-epoch-checkpoint").write_text(epochs)
        segment = build_segment(batches)
        # The rest was allotted and not written.
        (path / f"{segment.base_offset:020}.log").write_bytes(segment.log + bytes(1000))
        return path

    def add_segment(self, partition: TopicIdPartition, segment: SyntheticSegment) -> None:
        self.segments.append(publish(self.tier_dir, partition, segment))

    def set_log_starts(self, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in lines)
        (self.data / "log-start-offset-checkpoint").write_text(f"0\n{len(lines)}\n{text}")

    def write_metadata(self) -> None:
        records = [record for segment in self.segments for record in records_of(segment)]
        events = [MetadataEvent(0, -1, 0, None, encode(record)) for record in records]
        metadata = self.data / f"{METADATA_TOPIC}-0"
        metadata.mkdir(exist_ok=True)
        topic_id = uuid_to_text(topic_partition(METADATA_TOPIC).topic_id)
        (metadata / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        (metadata / f"{0:020}.log").write_bytes(b"".join(build_batches(events)))

    def take_over(self, *, code: int, mode: str = "standalone", **options: Any) -> str:
        self.write_metadata()
        config = load_lines(
            self.folder,
            f"mode={mode}\nupstream.bootstrap.servers=127.0.0.1:1\nrsm.config.dir={self.tier_dir}\n"
            f"remote.log.storage.manager.class.name={LOCAL_TIER}\n",
            minimal=False,
        )
        out = io.StringIO()
        wanted = replace(TakeoverOptions(log_dirs=[self.data], is_offline=True), **options)
        assert run(config, wanted, out) == code, out.getvalue()
        return out.getvalue()

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("*") if path.is_file()}

    def epochs(self, folder: str = "orders-0") -> str:
        return (self.data / folder / "leader-epoch-checkpoint").read_text()

    def log_starts(self) -> list[str]:
        return (self.data / "log-start-offset-checkpoint").read_text().splitlines()[2:]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_dry_run_says_what_it_would_write(world: World) -> None:
    told = world.take_over(code=exit_codes.DONE)
    before = world.files()
    assert told.splitlines()[1].split() == ["orders:0", "6@40", "0@0", "2@20", "6@40", "40", "0"]
    assert "1 partitions are to be restored; this was a dry run: --yes does it" in told
    assert "remote.log.metadata.topic.num.partitions=1 " in told
    assert world.take_over(code=exit_codes.DONE) == told
    assert world.files() == before


def test_epochs_and_log_start_are_restored_and_what_was_there_is_kept(world: World) -> None:
    told = world.take_over(code=exit_codes.DONE, writes=True)
    assert "1 partitions restored" in told
    assert world.epochs() == RESTORED
    assert world.log_starts() == ["__consumer_offsets 3 7", "orders 0 0"]
    backups = {name: content for name, content in world.files().items() if name.endswith(".tidegate-backup")}
    assert backups == {
        "orders-0/leader-epoch-checkpoint.tidegate-backup": b"0\n1\n6 40\n",
        "log-start-offset-checkpoint.tidegate-backup": b"0\n2\n__consumer_offsets 3 7\norders 0 40\n",
    }
    files = world.files()
    assert "nothing is left to do" in world.take_over(code=exit_codes.DONE, writes=True)
    assert world.files() == files


def test_the_log_start_is_the_tiers(tmp_path: Path) -> None:
    for named, expected in (
        ((), "orders 0 0"),
        (("orders 0 7",), "orders 0 7"),  # DeleteRecords inside the first segment
        (("orders 0 25",), "orders 0 0"),  # where the broker's log began
    ):
        world = World(tmp_path / expected / str(named))
        world.set_log_starts(*named)
        world.take_over(code=exit_codes.DONE, writes=True)
        assert world.log_starts() == [expected], named


def test_what_delete_records_has_committed_stays_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case, committed, named, expected in (
        ("nothing", None, 40, 0),
        ("in the first segment", 7, 40, 7),
        ("in the second", 25, 40, 25),
        ("the broker knows more", 7, 12, 12),
        ("the broker knows less", 25, 7, 25),
    ):
        world, kafka = World(tmp_path / case), FakeKafka()
        monkeypatch.setattr("proxy.upstream.connection.open_transport", kafka.open_transport)
        kafka.add(1, "127.0.0.1", 1)
        group = FakeGroup(kafka)
        if committed is not None:
            group.offsets["orders", 0] = committed, uuid_to_text(ORDERS.topic_id)
        kafka.topics[METADATA_TOPIC] = FakeTopic(topic_partition(METADATA_TOPIC).topic_id, [1])
        for segment in world.segments:
            for record in records_of(segment):
                kafka.log(METADATA_TOPIC).put(encode(record))
        world.set_log_starts(f"orders 0 {named}")

        document = json.loads(world.take_over(code=exit_codes.DONE, writes=True, is_offline=False, as_json=True))

        assert world.log_starts() == [f"orders 0 {expected}"], case
        assert document["committed_log_starts_known"], case


def test_a_log_that_begins_where_the_tier_does_keeps_its_start(world: World) -> None:
    batches = [data_batch(0, record_count=30, leader_epoch=0)]
    world.add_partition(OTHER, batches, "0\n1\n0 0\n")
    world.add_segment(OTHER, build_segment(batches))
    world.take_over(code=exit_codes.DONE, topic="other", writes=True)
    assert world.log_starts() == ["__consumer_offsets 3 7", "orders 0 40"]
    assert world.epochs() == "0\n1\n6 40\n"


def test_one_conflict_keeps_all_partitions_as_they_are(world: World) -> None:
    world.add_partition(OTHER, [data_batch(10, record_count=30, leader_epoch=5)], "0\n1\n5 10\n")
    world.add_segment(OTHER, build_segment([data_batch(0, record_count=20, leader_epoch=0)]))
    before = world.files()
    told = world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
    assert "WRONG   other:0: offset 10 is of leader epoch 0 in the tier and of 5 at the broker\n" in told
    assert "nothing was written" in told
    assert {name: world.files()[name] for name in before} == before


def test_gaps_and_half_copied_segments_are_told(world: World) -> None:
    world.segments.pop()
    told = world.take_over(code=exit_codes.DONE)
    assert "warning orders:0: offsets 20 to 39 are neither in the tier nor at the broker" in told


def test_a_topic_of_another_id_is_not_taken(world: World, capsys: Captured) -> None:
    other_id = uuid_to_text(OTHER.topic_id)
    (world.data / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {other_id}\n")
    world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
    assert "no partition in these folders is in the tier by its topic id" in capsys.readouterr().err


def test_a_checkpoint_object_that_is_gone_is_a_problem(world: World) -> None:
    object_path(world.tier_dir, world.segments[-1], "leader_epoch_checkpoint").unlink()
    assert "WRONG   orders:0: " in world.take_over(code=exit_codes.FOUND_WRONG, writes=True)


def test_folders_that_are_not_a_brokers_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    orders, metadata = Path("orders-0/partition.metadata"), Path(f"{METADATA_TOPIC}-0")
    damages: list[tuple[Callable[[Path], object], str]] = [
        (lambda data: (data / "meta.properties").unlink(), "has no meta.properties"),
        (lambda data: (data / ".kafka_cleanshutdown").unlink(), "did not stop in order"),
        (lambda data: (data / f"orders-1.{'0' * 32}-future").mkdir(), "on its way from another log folder"),
        (lambda data: (data / "log-start-offset-checkpoint").write_text("0\n5\n"), "is no checkpoint of offsets"),
        (lambda data: (data / orders).write_text("version: 0\n"), "has no topic_id"),
        (lambda data: (data / orders).write_text("topic_id: x\n"), "partition.metadata: "),
        (lambda data: (data / metadata).rename(data / f"{METADATA_TOPIC}-1"), "not in these folders as a whole"),
        (lambda data: (data / metadata / f"{0:020}.log").write_bytes(bytes(99)), "00.log: "),
    ]
    worlds = [World(tmp_path / str(number)) for number in range(len(damages))]
    for world in worlds:
        world.write_metadata()
    monkeypatch.setattr(World, "write_metadata", lambda _self: None)
    for world, (damage, message) in zip(worlds, damages, strict=True):
        damage(world.data)
        world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        assert message in capsys.readouterr().err


def test_a_tier_of_the_brokers_is_none_of_ours(world: World) -> None:
    assert "mode=replica" in world.take_over(code=exit_codes.USAGE, mode="replica")
