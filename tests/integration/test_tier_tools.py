"""The tools of the tier, as commands, against a real broker and its tier behind a real S3 server.

What is right is known without the tools: the records are written here, a segment is a file of the broker's tier, whose
name has its first offset and its id. Damage is done to these files and taken back.
"""

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage.checks.finding import WHAT_TO_DO, FindingKind
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from storage.metadata.encoding import encode
from storage.model import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState, TopicIdPartition, uuid_to_text
from storage.sizes import shown_size
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.program import run_command, tidegate_python
from tests.support.s3_server import S3Server
from tests.support.segments import filled_segment, metadata_of, topic_partition
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

pytestmark = pytest.mark.needs("versitygw")

FIRST_TIMESTAMP_MS = 1_700_000_000_000
RECORDS = 200
BINARY = bytes([0, 255, 254])


def record_of(number: int) -> Record:
    """Record 7 is not text, record 8 has neither key nor value."""
    value: bytes | None = {7: BINARY, 8: None}.get(number, f"value {number}".encode())
    key = None if number == 8 else f"key-{number % 10}".encode()
    return Record(0, key, value, (("number", str(number).encode()),), FIRST_TIMESTAMP_MS + 1000 * number)


@dataclass(frozen=True, slots=True)
class Stage:
    """`logs`: the segments' files in the tier, by first offset."""

    file: Path
    topic: str
    logs: dict[int, Path]
    end: int

    @property
    def place(self) -> str:
        return f"{self.topic}:0"

    @property
    def starts(self) -> list[int]:
        return sorted(self.logs)

    def segment_id(self, start: int) -> str:
        """`<first offset>-<id>.log`, where an id may hold a hyphen."""
        return self.logs[start].name.partition("-")[2].removesuffix(".log")


@pytest.fixture(scope="module")
def stage(kafka: KafkaCluster, gateway: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A topic with one partition, all but its last segment in the tier."""
    topic = fresh_name("tools")
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(batches=6)})
    produce(kafka, topic, map(record_of, range(RECORDS)), batch_num_messages=5)
    offsets = wait_settled(kafka, topic)[0]
    lines = {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "broker.config": str(kafka.server_properties_path(1)),
        "remote.log.storage.manager.class.name": "tidegate.PlainObjects",
        **{f"rsm.config.{key}": value for key, value in gateway.config(ROOT_DIRECTORY_NAME).items()},
    }
    file = tmp_path_factory.mktemp("tools") / "tidegate.properties"
    file.write_text(properties_text(lines))
    found = kafka.tier_dir.glob(f"{ROOT_DIRECTORY_NAME}/{topic}-0-*/*.log")
    logs = {int(path.name.partition("-")[0]): path for path in found}
    assert len(logs) >= 3
    return Stage(file, topic, logs, offsets.latest_tiered_offset)


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Tool:
    """Runs a command as a user would."""

    def __init__(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        self._stage = stage
        self._capsys = capsys

    def __call__(self, command: str, *arguments: str) -> Outcome:
        return Outcome(*run_command(self._capsys, *command.split(), str(self._stage.file), *arguments))


@pytest.fixture
def tool(stage: Stage, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(stage, capsys)


@contextmanager
def damaged(path: Path, content: bytes | None) -> Iterator[None]:
    """An object with other content, or none."""
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    yield
    path.write_bytes(before)


def test_ls_drills_down_to_the_segments(tool: Tool, stage: Stage) -> None:
    topics = {each["topic"]: each for each in tool("ls", "--json").document["topics"]}
    size_bytes = sum(path.stat().st_size for path in stage.logs.values())
    expected = {"partitions": 1, "segments": len(stage.logs), "size_bytes": size_bytes, "holes": 0}
    assert {name: topics[stage.topic][name] for name in expected} == expected
    [partition] = tool("ls", stage.topic, "--json").document["partitions"]
    assert (partition["start_offset"], partition["end_offset"], partition["holes"]) == (0, stage.end, [])
    assert partition["max_timestamp_ms"] == FIRST_TIMESTAMP_MS + 1000 * stage.end
    segments = tool("ls", stage.place, "--json").document["segments"]
    ends = [*(start - 1 for start in stage.starts[1:]), stage.end]
    assert [(each["start_offset"], each["end_offset"]) for each in segments] == list(
        zip(stage.starts, ends, strict=True)
    )
    assert [each["segment_id"] for each in segments] == [stage.segment_id(start) for start in stage.starts]
    table = tool("ls", stage.place)
    assert (table.code, table.err) == (0, "")
    assert [line.split()[0] for line in table.out.splitlines()[1:]] == [each["segment_id"] for each in segments]


def test_ls_tells_sizes_as_stored(tool: Tool, stage: Stage) -> None:
    """Failed before: what is billed was in no place but `verify`."""
    assert [each["stored_bytes"] for each in tool("ls", stage.topic, "--json").document["partitions"]] == [None]
    stored = {}
    for start, log in stage.logs.items():
        files = log.parent.glob(f"{log.name.removesuffix('.log')}.*")
        stored[start] = sum(path.stat().st_size for path in files)
        assert stored[start] > log.stat().st_size
    segments = tool("ls", stage.place, "--stored", "--json").document["segments"]
    assert {each["start_offset"]: each["stored_bytes"] for each in segments} == stored
    [partition] = tool("ls", stage.topic, "--stored", "--json").document["partitions"]
    topics = {each["topic"]: each for each in tool("ls", "--stored", "--json").document["topics"]}
    assert partition["stored_bytes"] == topics[stage.topic]["stored_bytes"] == sum(stored.values())
    assert shown_size(partition["stored_bytes"]) in tool("ls", stage.topic, "--stored").out


def test_stat_tells_of_every_object_and_index(tool: Tool, stage: Stage) -> None:
    start = stage.starts[1]
    log = stage.logs[start]
    by_offset = tool("stat", f"{stage.place}:{start + 1}", "--json")
    found = tool("stat", stage.segment_id(start), "--json").document
    assert by_offset.document == found
    assert found["problems"] == []
    sizes = {Path(each["name"]).name: each["size_bytes"] for each in found["objects"]}
    assert sizes == {path.name: path.stat().st_size for path in log.parent.glob(f"{log.name.removesuffix('.log')}.*")}
    index = log.with_suffix(".index").read_bytes()
    offsets = found["indexes"]["OFFSET"]
    assert offsets["entries"] == len(index) // 8
    assert offsets["last"]["offset"] == start + int.from_bytes(index[-8:-4])
    assert offsets["last"]["position"] == int.from_bytes(index[-4:])
    assert found["indexes"]["LEADER_EPOCH"]["first"]["start_offset"] == 0
    shown = tool("stat", f"{stage.place}:{start}")
    assert shown.code == 0
    assert log.name in shown.out
    with damaged(log.with_suffix(".timeindex"), None):
        without = tool("stat", f"{stage.place}:{start}")
    assert without.code == 1
    assert "timeindex: it is missing" in without.out


def test_cat_prints_the_records_that_were_written(tool: Tool, stage: Stage) -> None:
    everything = tool("cat", stage.place, "--json")
    assert (everything.code, everything.err) == (0, "")
    found = everything.lines
    assert [each["offset"] for each in found] == list(range(stage.end + 1))
    assert found[5] == {
        "topic": stage.topic,
        "partition": 0,
        "offset": 5,
        "timestamp_ms": FIRST_TIMESTAMP_MS + 5000,
        "timestamp": "2023-11-14T22:13:25.000Z",
        "key": "key-5",
        "value": "value 5",
        "headers": [{"key": "number", "value": "5"}],
    }
    assert (found[7]["value"], found[7]["value_encoding"]) == (base64.b64encode(BINARY).decode(), "base64")
    assert (found[8]["key"], found[8]["value"]) == (None, None)


def test_verify_finds_what_is_damaged_and_nothing_else(tool: Tool, stage: Stage) -> None:
    healthy = tool("verify", stage.topic, "--json")
    assert (healthy.code, healthy.err) == (0, ""), healthy.out
    document = healthy.document
    assert document["findings"] == []
    assert (document["partitions"], document["segments"]) == (1, len(stage.logs))
    assert document["records"] == stage.end + 1

    flipped, cut, gone = (stage.logs[start] for start in stage.starts[:3])
    log = bytearray(flipped.read_bytes())
    log[-1] ^= 1
    index = cut.with_suffix(".index")
    with damaged(flipped, bytes(log)), damaged(index, index.read_bytes()[:-3]), damaged(gone, None):
        found = tool("verify", stage.place, "--json")
        shown = tool("verify", stage.place)
        shallow = tool("verify", stage.place, "--shallow", "--json").document
        sampled = tool("verify", stage.place, "--sample", "1", "--json").document
    kinds = {(each["segment"], each["kind"]) for each in found.document["findings"]}
    first, second, third = (stage.segment_id(start) for start in stage.starts[:3])
    assert kinds == {(first, "batch corrupt"), (second, "index"), (third, "object missing")}
    assert (found.code, shown.code) == (1, 1)
    assert f"{stage.place} " in shown.out
    assert f"index: {WHAT_TO_DO[FindingKind.INDEX]}\n" in shown.out
    assert "3 findings: 1 batch corrupt, 1 index, 1 object missing" in shown.out
    assert {each["kind"] for each in shallow["findings"]} == {"index", "object missing"}
    assert sampled["segments"] == 1


def test_a_dump_has_every_record_and_is_imported_byte_for_byte(tool: Tool, stage: Stage, tmp_path: Path) -> None:
    """A segment that never was is announced by an import, and deleted by another, so that nobody else sees it."""
    dumped = tool("metadata dump", "--json")
    assert (dumped.code, dumped.err) == (0, "")
    head, *records = dumped.lines
    assert head["dump"]["metadata_partitions"] > 1
    ours = [each for each in records if each["record"]["topic"] == stage.topic]
    assert [each["record"]["segment_id"] for each in ours if each["type"] == "segment"] == [
        stage.segment_id(start) for start in stage.starts
    ]

    partition = topic_partition(fresh_name("imported"))
    segment = metadata_of(partition, filled_segment())
    states = list(RemoteLogSegmentState)
    values = [encode(records_of_state(segment, state)) for state in states]
    made, gone = tmp_path / "made.jsonl", tmp_path / "gone.jsonl"
    for path, chosen in ((made, values[:2]), (gone, values[2:])):
        lines = [json.dumps(line_of(number, value)) for number, value in enumerate(chosen)]
        path.write_text("\n".join([json.dumps(head), *lines, ""]))

    dry = tool("metadata import", str(made))
    assert (dry.code, "dry run" in dry.out) == (0, True)
    assert "2 records (1 segment, 1 update) of 1 segments, 1 topics" in dry.out
    assert head["dump"]["cluster_id"] in dry.out
    document = tool("metadata import", str(made), "--json").document
    assert document["into"] == document["from"] == head["dump"]
    assert (document["records"], document["types"], document["published"]) == (2, {"segment": 1, "update": 1}, 0)
    assert (document["topics"], document["segments"], document["segments_known_already"]) == ([partition.topic], 1, 0)
    assert tool("metadata import", str(made), "--yes").out.endswith("2 records published\n")
    again = tool("metadata import", str(made), "--yes")
    assert (again.code, "--append publishes them" in again.err) == (1, True)
    [listed] = tool("ls", f"{partition.topic}:0", "--json").document["segments"]
    current = [each for each in tool("metadata dump", "--current").lines[1:] if is_of(each, partition)]
    last = tool("metadata import", str(gone), "--yes", "--append", "--json").document
    assert (last["published"], last["segments_known_already"]) == (2, 1)

    assert (listed["segment_id"], listed["state"]) == (uuid_to_text(segment.segment_id.id), "COPY_SEGMENT_FINISHED")
    assert [base64.b64decode(each["value"]) for each in current] == values[:2]
    after = [each for each in tool("metadata dump").lines[1:] if is_of(each, partition)]
    assert [base64.b64decode(each["value"]) for each in after] == values
    assert [each["timestamp_ms"] for each in after] == [1000, 1001, 1000, 1001]
    assert len({each["metadata_partition"] for each in after}) == 1
    assert tool("ls", partition.topic).code == 1


def test_who_reads_no_more_of_the_output_is_no_error(stage: Stage) -> None:
    """As with `tidegate … | head`: by the time that something is written, nobody is there."""
    command = [tidegate_python(), "-m", "tidegate", "ls", str(stage.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def records_of_state(segment: Any, state: RemoteLogSegmentState) -> Any:
    if state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
        return replace(segment, state=state)
    return RemoteLogSegmentMetadataUpdate(segment.segment_id, segment.event_timestamp_ms, state, segment.broker_id)


def line_of(number: int, value: bytes) -> dict[str, Any]:
    return {
        "metadata_partition": 0,
        "offset": number,
        "timestamp_ms": 1000 + number,
        "key": None,
        "value": base64.b64encode(value).decode(),
    }


def is_of(line: dict[str, Any], partition: TopicIdPartition) -> bool:
    return bool(line["record"]["topic"] == partition.topic)
