"""What the tier has of topics that are not copied any more: its retention goes on, and it goes with its topic."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from storage.metadata.encoding import encode
from storage.model import RemoteLogSegmentState
from tests.integration.test_tier_deletion import delete_through, fill
from tests.integration.test_tier_tools import line_of, records_of_state
from tests.support.differential_steps import alter_configs, delete_topic
from tests.support.kafka import fresh_name
from tests.support.plain_kafka import own_plain_cluster, quick_copies, run_standalone, standalone
from tests.support.segments import filled_segment, metadata_of, topic_partition
from tests.support.serving import Serving
from tests.support.tier_proofs import copied_offsets, files_of, segments_of, shared_rows
from tests.support.waiting import wait_until
from tidegate import exit_codes
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

LONG_AGO_MS = 1_700_000_000_000
RECORDS = 1500
NEVER = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def own() -> Iterator[KafkaCluster]:
    """Whatever is in its tier these tests have put there."""
    with own_plain_cluster() as cluster:
        yield cluster


def properties_of(*topics: str, **more: str) -> dict[str, str]:
    return quick_copies(",".join(topics), copy_group_id="left-topics", **more)


def problems_of(served: Serving) -> str:
    return "; ".join(served.copy_problems())


def has_all(served: Serving, topic: str) -> bool:
    """The four partitions, and no other."""
    return copied_offsets(served).keys() == {(topic, number) for number in range(4)}


def says(served: Serving, sentence: str) -> bool:
    return sentence in problems_of(served)


def copy_once(kafka: KafkaCluster, folder: Path, properties: dict[str, str]) -> int:
    done = run_standalone(kafka, folder, "copy", "--once", properties=properties)
    return done.returncode


def test_a_topic_that_is_taken_out_or_refused_is_deleted_from_like_any_other(own: KafkaCluster, tmp_path: Path) -> None:
    """Failed before: nobody had its partitions, and what the tier held of it was kept for ever."""
    out, compacted, copied = fresh_name("out"), fresh_name("compacted"), fresh_name("copied")
    for topic in (out, compacted, copied):
        own.create_topic(topic, 1, NEVER)
        fill(own, topic, RECORDS, LONG_AGO_MS)
    assert copy_once(own, tmp_path, properties_of(out, compacted, copied)) == exit_codes.DONE
    alter_configs(own, compacted, {"cleanup.policy": "compact"})
    segments = {topic: segments_of(own, topic)[0] for topic in (out, compacted)}
    cut = segments[out][1].end_offset + 1
    with standalone(own, tmp_path, properties_of(compacted, copied)) as served:
        served.wait_log("ready: bootstrap")
        fill(own, out, 100, LONG_AGO_MS)
        assert delete_through(served, out, cut) == cut
        wait_until(lambda: segments_of(own, out)[0] == segments[out][2:], "what was deleted to go")
        assert f"topic {compacted} is not copied: it has cleanup.policy=compact" in problems_of(served)
        assert "nothing of it is deleted" not in problems_of(served)
        rows = {row["topic"]: (row["copied"], row["copied_offset"]) for row in shared_rows(served)}
        assert rows.keys() == {out, compacted, copied}
        assert rows[out] == (False, RECORDS - 1)
        assert served.metric("tidegate_copy_unowned_partitions") == 0
    assert copy_once(own, tmp_path, properties_of(copied, copy_retention_ms="1000")) == exit_codes.DONE
    assert [files_of(own, topic) for topic in (out, compacted, copied)] == [{}, {}, {}]
    for topic in (out, compacted, copied):
        delete_topic(own, topic)


def test_who_is_to_copy_other_topics_than_another_of_the_group_has_nothing_of_those(
    own: KafkaCluster, tmp_path: Path
) -> None:
    """Else it would be given partitions that the other one is to copy, and nobody would copy them."""
    ours, theirs = fresh_name("ours"), fresh_name("theirs")
    with ExitStack() as stack:
        found: dict[str, Serving] = {}
        for topic in (ours, theirs):
            own.create_topic(topic, 4, NEVER)
            fill(own, topic, 100, LONG_AGO_MS)
            (tmp_path / topic).mkdir()
            found[topic] = stack.enter_context(standalone(own, tmp_path / topic, properties_of(topic), command="copy"))
        for running in found.values():
            running.wait_log("ready: copying")
        said = "nothing of it is deleted: other copiers of the group have another copy.topics"
        for topic, running in found.items():
            wait_until(partial(has_all, running, topic), f"{topic} to be had")
            wait_until(partial(says, running, said), f"who copies {topic} to say so")
        found[ours].terminate()
        assert found[ours].process.wait(60) == 0
        wait_until(lambda: len(shared_rows(found[theirs])) == 8, "the other topic's to be taken")
        assert said not in problems_of(found[theirs])
    for topic in (ours, theirs):
        delete_topic(own, topic)
        assert copy_once(own, tmp_path, properties_of(ours)) == exit_codes.DONE
        assert files_of(own, topic) == {}


def test_what_another_cluster_had_is_held_until_it_is_released(own: KafkaCluster, tmp_path: Path) -> None:
    """Nothing tells it from deleted topics: no broker of this cluster has a topic of such an id."""
    partition, other = topic_partition(fresh_name("elsewhere")), fresh_name("here")
    segment = metadata_of(partition, filled_segment())
    own.create_topic(other, 1, NEVER)
    fill(own, other, 100, LONG_AGO_MS)
    properties = properties_of(other)
    assert copy_once(own, tmp_path, properties) == exit_codes.DONE  # which makes the metadata topic

    def run(command: str, *words: str) -> str:
        done = run_standalone(own, tmp_path, command, *words, properties=properties)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    head = json.loads(run("metadata dump").splitlines()[0])
    head["dump"]["cluster_id"] = "the cluster that burned down"
    states = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    lines = [line_of(number, encode(records_of_state(segment, state))) for number, state in enumerate(states)]
    dump = tmp_path / "dump.jsonl"
    dump.write_text("\n".join(map(json.dumps, [head, *lines])))
    assert "2 records published\nall of them are held" in run("metadata import", str(dump), "--yes")
    for _ in range(2):
        assert copy_once(own, tmp_path, properties) == exit_codes.DONE
        assert "its topic is gone: an operator holds it" in run("deletions list", partition.topic)
    run("deletions release", partition.topic)
    assert copy_once(own, tmp_path, properties) == exit_codes.DONE
    assert partition.topic not in run("ls")
    delete_topic(own, other)
    assert copy_once(own, tmp_path, properties) == exit_codes.DONE


def test_a_tiers_only_topic_goes_with_its_topic_also_if_no_copier_ran(own: KafkaCluster, tmp_path: Path) -> None:
    """Failed before: it stayed until another topic had been copied, and with `--once` for ever."""
    topic = fresh_name("only")
    own.create_topic(topic, 1, NEVER)
    fill(own, topic, RECORDS, LONG_AGO_MS)
    properties = properties_of(topic)
    assert copy_once(own, tmp_path, properties) == exit_codes.DONE
    assert files_of(own, topic)
    delete_topic(own, topic)
    assert copy_once(own, tmp_path, properties | {"copy.delete.grace.ms": "3600000"}) == exit_codes.DONE
    assert files_of(own, topic), "it waits"
    listed = run_standalone(own, tmp_path, "deletions list", topic, properties=properties)
    assert "its topic is gone: copy.delete.grace.ms" in listed.stdout
    assert copy_once(own, tmp_path, properties) == exit_codes.DONE
    assert files_of(own, topic) == {}
