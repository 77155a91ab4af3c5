"""`tidegate diff` and `gc` on a real broker, a running Tidegate and a tier on a real S3 server.

The broker reads its own tier, and Tidegate the same segments from the bucket: so a byte that is flipped in one place is
a difference between them.
"""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.formats.aiven.object_keys import ObjectSuffix, main_path, object_key
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from storage.formats.segment_files import partition_directory_name, segment_object_name
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from storage.object_store.s3.store import S3Store
from storage.object_store.s3.upload import S3Upload
from tests.support.aiven_tier import KEY_PREFIX, AivenTier, publish_tier
from tests.support.kafka import TieredTopic
from tests.support.metadata_records import named_uuid
from tests.support.program import run_command
from tests.support.s3_server import S3Server
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.versitygw import versitygw
from tidegate import exit_codes
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("versitygw")]

Captured = pytest.CaptureFixture[str]

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Stage:
    """What all tests here share."""

    kafka: KafkaCluster
    topic: TieredTopic
    tier: AivenTier
    server: S3Server
    bucket: Path
    tidegate: RunningTidegate

    def run(self, capsys: Captured, *arguments: str) -> tuple[int, dict[str, Any]]:
        """One command with --json: exit code and document, which is empty if none was printed."""
        name, *others = arguments
        file = str(self.tidegate.process.properties_path)
        code, out, _ = run_command(capsys, name, file, *others, "--json")
        return code, json.loads(out) if out else {}


@pytest.fixture(scope="module")
def stage(kafka: KafkaCluster, tiered: TieredTopic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    work = tmp_path_factory.mktemp("cluster-tools")
    (work / "buckets").mkdir()
    with versitygw(work / "buckets", work / "gateway") as server:
        tier = publish_tier(kafka, server, [tiered.name], work)
        properties = {
            **tier.properties(),
            "proxy.listen": f"{HOST}:{free_port()}",
            "proxy.broker.port.start": "0",
            "cache.path": str(work / "cache"),
        }
        with own_tidegate(kafka, properties) as tidegate:
            yield Stage(kafka, tiered, tier, server, work / "buckets" / tier.bucket, tidegate)


def test_no_answer_differs_and_a_flipped_byte_is_found(stage: Stage, capsys: Captured) -> None:
    arguments = ("diff", "--topic", stage.topic.name, "--samples", "50", "--seed", "1", "--per-second", "1000")
    code, document = stage.run(capsys, *arguments)
    assert (code, document["differences"], document["corrupt"]) == (exit_codes.DONE, [], [])
    assert document["with_records"] >= 3 * len(stage.tier.segments)
    assert document["record_bytes"] > 1_000_000
    assert document["broker_remote_reads"] >= 4 * len(stage.tier.segments)
    assert document["same_errors"] == {"OFFSET_OUT_OF_RANGE (1)": len(stage.topic.offsets)}
    segment = stage.tier.segments[1]
    log = stage.kafka.tier_dir / ROOT_DIRECTORY_NAME / partition_directory_name(segment.topic_id_partition)
    path = log / segment_object_name(segment, "log")
    good = path.read_bytes()
    try:
        path.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
        code, document = stage.run(capsys, *arguments)
    finally:
        path.write_bytes(good)
    assert code == exit_codes.FOUND_WRONG
    at = {(each["partition"], each["fetch_offset"]) for each in document["differences"]}
    assert (segment.topic_id_partition.partition, segment.start_offset) in at
    said = next(each for each in document["differences"] if each["fetch_offset"] == segment.start_offset)["found"]
    assert said[0].startswith(f"records: byte 200 (in the batch at offset {segment.start_offset}) is another")
    assert document["corrupt"], "the broker's own bytes are wrong, and that is reported as well"


def test_orphans_and_stale_uploads_go_and_nothing_else_does(stage: Stage, tmp_path: Path, capsys: Captured) -> None:
    plan = str(tmp_path / "plan.json")
    kept = stage.tier.segments[0]
    old, young = (_key(kept, name, ObjectSuffix.LOG) for name in ("old", "young"))
    with closing(S3Store(stage.server.settings(stage.tier.bucket))) as store:
        before = {head.key for head in store.list("")}
        for key in (old, young):
            store.put(key, b"nobody's")
        aged_s = os.stat(stage.bucket / old).st_mtime - 2 * DAY_S
        os.utime(stage.bucket / old, (aged_s, aged_s))
        stale, running = _key(kept, "stale", ObjectSuffix.LOG), f"{KEY_PREFIX}{main_path(kept)}.log"
        for key in (stale, running):
            upload = S3Upload(store.boto3_client(), stage.tier.bucket, key, {}, _none, tell_left_open=_none)
            upload.begin()
            upload.part(1, bytes(1000))

        code, document = stage.run(capsys, "gc", "--plan", plan)
        assert (code, len(document["refusals"])) == (exit_codes.FOUND_WRONG, 1)
        assert "of the objects are orphans, more than 5 %" in document["refusals"][0]
        assert not Path(plan).exists()

        code, document = stage.run(capsys, "gc", "--max-orphans", "50", "--plan", plan)
        assert (code, [each["name"] for each in document["orphans"]]) == (exit_codes.DONE, [old])
        assert document["objects"]["referred"]["count"] == len(before)
        assert document["uploads"] == {"orphan": 0, "referred": 1, "young": 1, "foreign": 0, "strange": 0}

        by_plan = ("gc", "--max-orphans", "50", "--plan", plan, "--yes")
        assert stage.run(capsys, *by_plan) == (exit_codes.USAGE, {})
        assert {head.key for head in store.list("")} == before | {old, young}
        code, document = stage.run(capsys, *by_plan, "--i-own-this-tier")
        assert (code, document["deleted_objects"], document["failures"]) == (exit_codes.DONE, 1, {})
        assert {head.key for head in store.list("")} == before | {young}

        at_once = ("gc", "--max-orphans", "50", "--older-than", "0s", "--plan", plan)
        assert stage.run(capsys, *at_once)[0] == exit_codes.DONE
        code, document = stage.run(capsys, *at_once, "--yes", "--i-own-this-tier")
        assert (code, document["deleted_objects"], document["aborted_uploads"]) == (exit_codes.DONE, 1, 1)
        assert {head.key for head in store.list("")} == before
        assert {upload.key for upload in store.list_uploads(KEY_PREFIX)} == {running}


def _none(_: object) -> AbstractContextManager[None]:
    """Errors are as they come, and nobody gives these uploads up."""
    return nullcontext()


def _key(beside: RemoteLogSegmentMetadata, name: str, suffix: ObjectSuffix) -> str:
    """The key of an object of this partition that no record names."""
    partition = beside.topic_id_partition
    unknown = RemoteLogSegmentMetadata(RemoteLogSegmentId(partition, named_uuid(name)), 0, 9, 0, 1, 0, 8, {0: 0})
    return object_key(KEY_PREFIX, main_path(unknown), suffix)
