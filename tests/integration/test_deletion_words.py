"""`tidegate deletions` beside a copier and a real broker: what waits is seen, held, released and approved."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_tier_deletion import RECORDS, delete_through, fill
from tests.support.differential_steps import delete_topic
from tests.support.kafka import fresh_name
from tests.support.plain_kafka import quick_copies, run_standalone, standalone
from tests.support.tier_proofs import copied_offsets, files_of, segments_of
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

CUT, GRACE_MS = 630, 3_600_000
HELD, WAITS = "an operator holds it", "copy.delete.grace.ms"


def test_words_are_heard_by_a_copier_that_runs_also_of_a_topic_that_is_gone(
    plain_kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = fresh_name("words")
    plain_kafka.create_topic(topic, 1, {"retention.ms": "-1"})
    end = fill(plain_kafka, topic, RECORDS, 1_700_000_000_000)
    properties = quick_copies(topic, copy_delete_grace_ms=str(GRACE_MS))

    def run(*words: str) -> str:
        done = run_standalone(plain_kafka, tmp_path, f"deletions {words[0]}", *words[1:], properties=properties)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run("list", topic, "--json"))["deletions"]
        return found

    def check_held_and_released(shown: str, before: str = "") -> None:
        assert run("hold", topic) == f"held: {shown}\n"
        assert [(each["why"], each["until_ms"]) for each in listed()] == [(before + HELD, None)]
        assert run("release", topic) == f"released: {shown}\n"
        assert [each["why"] for each in listed()] == [before + WAITS]

    with standalone(plain_kafka, tmp_path, properties) as served:
        served.wait_log("ready: bootstrap")
        wait_until(lambda: copied_offsets(served) == {(topic, 0): end - 1}, "everything is copied")
        segments = segments_of(plain_kafka, topic)[0]
        gone = [each.segment_id for each in segments if each.end_offset < CUT]
        assert 0 < len(gone) < len(segments)
        assert delete_through(served, topic, CUT) == CUT
        wait_until(lambda: [each["segments"] for each in listed()] == [len(gone)], "the deletion to wait")
        check_held_and_released(f"{topic}:0")
        assert set(gone) <= files_of(plain_kafka, topic).keys()
        run("approve", topic)
        wait_until(lambda: set(gone).isdisjoint(files_of(plain_kafka, topic)), "what is approved to go")

        delete_topic(plain_kafka, topic)
        is_gone = "its topic is gone: "
        wait_until(lambda: [each["why"] for each in listed()] == [is_gone + WAITS], "the topic to be marked")
        check_held_and_released(f"{topic}:0 (its topic is gone)", is_gone)
        assert len(files_of(plain_kafka, topic)) == len(segments) - len(gone)
        run("approve", topic)
        wait_until(lambda: not files_of(plain_kafka, topic), "the gone topic's objects to go")
