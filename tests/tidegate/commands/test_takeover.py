"""`tidegate takeover` over folders as a broker leaves them, beside brokers that are down or made up; with real ones:
tests/integration."""

import io
import json
import shutil
import socketserver
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from protocol.client.messages import METADATA as METADATA_API
from protocol.client.messages import Values
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.takeover.cluster_facts import PartitionFacts
from storage.metadata.encoding import encode
from storage.metadata.reading import MetadataEvent
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_to_text
from tests.support.config_files import load_lines
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeKafka, FakeLog, FakeTopic
from tests.support.segments import SyntheticSegment, build_segment, data_batch, object_path, publish, topic_partition
from tests.support.serving import LOCAL_TIER
from tidegate import exit_codes
from tidegate.commands.metadata import dump, record_line, records_of
from tidegate.commands.takeover import TakeoverOptions, run
from tidegate.commands.takeover_dump import read_dump
from tidegate.config import Config

Captured = pytest.CaptureFixture[str]

ORDERS, OTHER, METADATA = topic_partition("orders"), topic_partition("other"), topic_partition(METADATA_TOPIC)
TIER_EPOCHS = ((0, 0), (2, 20))


RESTORED = "0\n3\n0 0\n2 20\n6 40\n"


@dataclass
class World:
    """A broker that is down: of 60 records of `orders` it has the last 20; the tier has 40 of epochs 0 and 2."""

    folder: Path
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    committed: int | None = None
    replicas: tuple[int, ...] = (1, 2)
    address: tuple[str, int] = ("127.0.0.1", 1)
    """Broker 1's."""

    def __post_init__(self) -> None:
        self.data.mkdir(parents=True)
        (self.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=fake\n")
        (self.data / ".kafka_cleanshutdown").write_text("{}")
        (self.data / ".lock").touch()
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

    @property
    def dump(self) -> Path:
        return self.folder / "metadata.jsonl"

    def write_dump(self) -> None:
        """As `tidegate metadata dump` does it. All partitions of the tier are at brokers 1 and 2."""
        records = [record for segment in self.segments for record in records_of(segment)]
        lines: list[object] = [{"dump": {"metadata_topic_id": uuid_to_text(METADATA.topic_id)}}]
        lines += [record_line(MetadataEvent(0, -1, 0, None, encode(record))) for record in records]
        partitions = {segment.topic_id_partition for segment in self.segments} | {ORDERS}
        for each in partitions:
            ids = {"topic_id": uuid_to_text(each.topic_id), "partition": each.partition, "topic": each.topic}
            lines.append({"partition": {**ids, "replicas": self.replicas, "log_start": self.committed}})
        counts = {"records": len(records), "partitions": len(partitions)}
        lines.append({"complete": {"cluster_id": "fake", "brokers": [[1, *self.address]], "ends": [7, 0], **counts}})
        self.dump.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def config(self, mode: str) -> Config:
        return load_lines(
            self.folder,
            f"mode={mode}\nupstream.bootstrap.servers=127.0.0.1:1\nrsm.config.dir={self.tier_dir}\n"
            f"remote.log.storage.manager.class.name={LOCAL_TIER}\n",
            minimal=False,
        )

    def take_over(self, *, code: int, mode: str = "standalone", **options: Any) -> str:
        if not self.dump.exists():
            self.write_dump()
        out = io.StringIO()
        wanted = replace(TakeoverOptions(dump=self.dump, log_dirs=[self.data]), **options)
        assert run(self.config(mode), wanted, out) == code, out.getvalue()
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
    assert "brokers 2 hold replicas too: none of them may start before this command said ok there" in told
    assert "remote.log.metadata.topic.num.partitions=2 " in told
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


def test_what_delete_records_has_committed_stays_deleted(tmp_path: Path) -> None:
    for case, committed, named, expected in (
        ("nothing", None, 40, 0),
        ("in the first segment", 7, 40, 7),
        ("in the second", 25, 40, 25),
        ("the broker knows more", 7, 12, 12),
        ("the broker knows less", 25, 7, 25),
    ):
        world = World(tmp_path / case, committed=committed)
        world.set_log_starts(f"orders 0 {named}")
        world.take_over(code=exit_codes.DONE, writes=True)
        assert world.log_starts() == [f"orders 0 {expected}"], case


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


def test_folders_without_anything_of_the_tier_are_told(world: World, capsys: Captured) -> None:
    world.replicas = (2, 3)
    shutil.rmtree(world.data / "orders-0")
    world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
    assert "no partition of broker 1 is in the tier by its topic id" in capsys.readouterr().err


def test_a_checkpoint_object_that_is_gone_is_a_problem(world: World) -> None:
    object_path(world.tier_dir, world.segments[-1], "leader_epoch_checkpoint").unlink()
    assert "WRONG   orders:0: " in world.take_over(code=exit_codes.FOUND_WRONG, writes=True)


def test_folders_that_are_not_a_brokers_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    orders = Path("orders-0/partition.metadata")
    damages: list[tuple[Callable[[Path], object], str]] = [
        (lambda data: (data / "meta.properties").unlink(), "has no meta.properties"),
        (lambda data: (data / "meta.properties").write_text("version=1\n"), "names no broker"),
        (lambda data: (data / ".kafka_cleanshutdown").unlink(), "did not stop in order"),
        (lambda data: (data / f"orders-1.{'0' * 32}-future").mkdir(), "on its way from another log folder"),
        (lambda data: (data / "log-start-offset-checkpoint").write_text("0\n5\n"), "is no checkpoint of offsets"),
        (lambda data: (data / orders).write_text("version: 0\n"), "has no topic_id"),
        (lambda data: (data / orders).write_text("topic_id: x\n"), "partition.metadata: "),
    ]
    for number, (damage, message) in enumerate(damages):
        world = World(tmp_path / str(number))
        damage(world.data)
        world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        assert message in capsys.readouterr().err


def test_a_replica_without_the_newest_records_must_not_lead(tmp_path: Path) -> None:
    """Whatever became of them: nobody runs who could give them again."""
    other_id = f"version: 0\ntopic_id: {uuid_to_text(OTHER.topic_id)}\n"
    for number, damage in enumerate[Callable[[Path], object]](
        (
            shutil.rmtree,
            lambda folder: next(folder.glob("*.log")).unlink(),
            lambda folder: next(folder.glob("*.log")).rename(folder / f"{30:020}.log").write_bytes(b""),
            lambda folder: (folder / "partition.metadata").write_text(other_id),
        )
    ):
        world = World(tmp_path / str(number))
        damage(world.data / "orders-0")
        before = world.files()
        told = world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        assert "this replica must not lead" in told
        assert world.files() == before


def test_a_dump_that_is_not_whole_or_not_the_newest_is_refused(tmp_path: Path, capsys: Captured) -> None:
    def end(world: World, partition: TopicIdPartition, records: int) -> None:
        batches = [data_batch(0, record_count=records)]
        world.add_partition(replace(partition, topic=METADATA_TOPIC), batches, "0\n1\n0 0\n")

    def change(world: World, old: str, new: str) -> None:
        world.dump.write_text(world.dump.read_text().replace(old, new))

    damages: list[tuple[Callable[[World], object], str]] = [
        (lambda world: world.dump.write_text("".join(lines_of(world)[:-1])), "did not write the committed log starts"),
        (lambda world: world.dump.write_text("".join(lines_of(world)[1:])), "the first line of a dump says"),
        (lambda world: world.dump.write_text("".join(lines_of(world)[:1] + lines_of(world)[2:])), "has 3 and 1"),
        (lambda world: world.dump.write_text(world.dump.read_text() * 2), "line 8 cannot be read"),
        (lambda world: world.dump.write_text("".join(lines_of(world)[::-1])), "line 1 cannot be read"),
        (lambda world: change(world, '"replicas"', '"x"'), "line 6 cannot be read"),
        (lambda world: change(world, "fake", "other"), "are of cluster fake, and"),
        (lambda world: end(world, METADATA, 8), "ends at offset 8, and 7 was the end when the dump was made"),
        (lambda world: end(world, OTHER, 1), f"is of another {METADATA_TOPIC} than the dump"),
    ]
    for number, (damage, message) in enumerate(damages):
        world = World(tmp_path / str(number))
        world.write_dump()
        damage(world)
        world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        assert message in capsys.readouterr().err, number
        assert world.epochs() == "0\n1\n6 40\n"


def test_a_partition_of_which_the_dump_knows_no_replicas_is_a_problem(world: World) -> None:
    world.write_dump()
    gone = f'"partition": {{"topic_id": "{uuid_to_text(ORDERS.topic_id)}"'
    other = f'"partition": {{"topic_id": "{uuid_to_text(OTHER.topic_id)}"'
    world.dump.write_text(world.dump.read_text().replace(gone, other))
    told = world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
    assert "WRONG   orders:0: the dump does not say who holds it" in told


def test_folders_of_two_brokers_are_not_taken_together(world: World, tmp_path: Path, capsys: Captured) -> None:
    other = World(tmp_path / "other")
    (other.data / "meta.properties").write_text("node.id=2\ncluster.id=fake\n")
    world.take_over(code=exit_codes.FOUND_WRONG, writes=True, log_dirs=[world.data, other.data])
    assert "these folders are of more than one broker" in capsys.readouterr().err


def lines_of(world: World) -> list[str]:
    return world.dump.read_text().splitlines(keepends=True)


def test_the_brokers_that_run_were_all_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 2 leads and 3 follows; both run. Where broker 1 has nothing, the leader gives it again."""
    for case, starts, has_folder, message in (
        ("all", 0, True, "1 partitions restored"),
        ("none", 40, True, "broker 2 runs and was not taken over (its log of orders:0 begins at 40, the tier at 0)"),
        ("rebuilt", 0, False, "note    orders:0: broker 2 leads it, and rebuilds the replica here"),
        ("rebuilt from less", 40, False, "this replica must not lead"),
    ):
        world, kafka = World(tmp_path / case), FakeKafka()
        monkeypatch.setattr("proxy.upstream.connection.open_transport", kafka.open_transport)
        for node_id in (2, 3):
            kafka.add(node_id, "127.0.0.1", node_id - 1)
        log = FakeLog(starts, end_offset=60)
        kafka.topics["orders"] = FakeTopic(ORDERS.topic_id, [2], logs={0: log}, followers=(1, 3))
        if not has_folder:
            shutil.rmtree(world.data / "orders-0")
        before = world.files()
        told = world.take_over(code=exit_codes.FOUND_WRONG if starts else exit_codes.DONE, writes=True)
        assert message in told, case
        assert ("broker 3 runs and was not taken over" in told) == bool(starts)
        assert (world.files() == before) == (bool(starts) or not has_folder)


def test_a_broker_that_runs_and_cannot_be_asked_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def of_another_cluster(kafka: FakeKafka) -> None:
        answers = kafka.brokers[2].handlers[METADATA_API.key]
        kafka.brokers[2].on(METADATA_API, lambda asked: {**cast("Values", answers(asked)), "cluster_id": "other"})

    def not_told(kafka: FakeKafka) -> None:
        kafka.topics["orders"].error_code = ErrorCode.topic_authorization_failed

    def disk_broken(kafka: FakeKafka) -> None:
        kafka.log("orders").error_code = ErrorCode.kafka_storage_error

    faults: list[tuple[Callable[[FakeKafka], None], str]] = [
        (disk_broken, "runs and does not say where its log of orders:0 begins: KAFKA_STORAGE_ERROR"),
        (not_told, "ACL Describe on Topic orders is missing"),
        (of_another_cluster, "the brokers that run are of cluster other"),
    ]
    for number, (damage, message) in enumerate(faults):
        world, kafka = World(tmp_path / str(number)), FakeKafka()
        monkeypatch.setattr("proxy.upstream.connection.open_transport", kafka.open_transport)
        kafka.add(2, "127.0.0.1", 1)
        kafka.topics["orders"] = FakeTopic(ORDERS.topic_id, [2])
        damage(kafka)
        world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        assert message in capsys.readouterr().err
        assert world.epochs() == "0\n1\n6 40\n"


def test_whoever_listens_where_a_broker_was_is_one_that_runs(world: World, capsys: Captured) -> None:
    """It may be one that has just been started, and gives no metadata yet."""

    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        world.address = ("127.0.0.1", server.socket.getsockname()[1])
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        world.take_over(code=exit_codes.FOUND_WRONG, writes=True)
        server.shutdown()
    assert "upstream gives no metadata" in capsys.readouterr().err
    assert world.epochs() == "0\n1\n6 40\n"


def test_a_dump_tells_who_holds_what_and_where_it_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tidegate metadata dump` writes it, of all records and of the current ones."""
    kafka = FakeKafka()
    monkeypatch.setattr("proxy.upstream.connection.open_transport", kafka.open_transport)
    kafka.add(2, "127.0.0.1", 1)
    FakeGroup(kafka, node_id=2).offsets["orders", 0] = 25, uuid_to_text(ORDERS.topic_id)
    kafka.topics["orders"] = FakeTopic(ORDERS.topic_id, [2], followers=(1, 3))
    kafka.topics[METADATA_TOPIC] = FakeTopic(METADATA.topic_id, [2])
    for segment in world.segments:
        for record in records_of(segment):
            kafka.log(METADATA_TOPIC).put(encode(record))
    for current in (False, True):
        out = io.StringIO()
        assert dump(world.config("standalone"), out, current=current) == exit_codes.DONE
        world.dump.write_text(out.getvalue())
        found = read_dump(world.dump, 100)
        assert found.facts == {ORDERS: PartitionFacts(ORDERS, (2, 1, 3), 25)}
        assert found.catalog.list_segments(ORDERS.topic_id, 0) == world.segments
        assert (found.cluster_id, found.brokers, found.ends) == ("fake", {2: ("127.0.0.1", 1)}, [4])


def test_a_tier_of_the_brokers_is_none_of_ours(world: World) -> None:
    assert "mode=replica" in world.take_over(code=exit_codes.USAGE, mode="replica")
