"""Standalone mode against a twin broker that kept everything: random questions over raw sockets, zero may differ.

`TIDEGATE_TWIN_QUESTIONS` is how many (1,500; long/test_twin.py asks 20,000), `TIDEGATE_TWIN_SEED` repeats a run.
"""

import os
import random
from collections.abc import Iterator

import pytest

from pipeline.driver import load_config, open_tier
from pipeline.planning.options import TopicSelection
from tests.support import needs
from tests.support.client_programs import CLIENTS, ClientPrograms
from tests.support.differential import asker
from tests.support.differential_questions import Questions
from tests.support.digests import Isolation, read_with_confluent
from tests.support.filled_topics import FIRST_TIMESTAMP_MS, ISOLATIONS, TIMESTAMP_STEP_MS
from tests.support.twin_world import ABORTS, TwinWorld, twin_world

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEED = int(os.environ.get("TIDEGATE_TWIN_SEED") or random.SystemRandom().randrange(2**32))
QUESTIONS = int(os.environ.get("TIDEGATE_TWIN_QUESTIONS") or 1500)
SHOWN_MAX = 10
ERRS_BY_ITSELF = ("kafkajs", ABORTS, "read_committed")
"""Where a response lists several aborted transactions of one producer, kafkajs drops records that were committed and
gives some that were not, at a broker as well; which ones depends on where answers end."""

TIER_READS = "kafka_server_brokertopicmetrics_remotefetchrequests_total"


@pytest.fixture(scope="module")
def twins() -> Iterator[TwinWorld]:
    with twin_world(SEED, generated=3, restarts=1) as world:
        yield world


@pytest.fixture(scope="module")
def programs(twins: TwinWorld) -> Iterator[ClientPrograms]:
    with ClientPrograms(twins.twin.bootstrap_servers, twins.tidegate.bootstrap) as running:
        yield running


def ask(world: TwinWorld, seed: int, count: int) -> str:
    """Ask, and tell what differs."""
    reads_before = world.tidegate.metric(TIER_READS)
    with asker(*world.addresses, tier_fails=True, is_twin=True) as both:
        questions = Questions(seed, world.partitions, both.versions())
        outcome = both.ask([world.adapted(questions.question(number)) for number in range(count)])
    reads = world.tidegate.metric(TIER_READS) - reads_before
    print(
        f"\ntwin: seed {seed}; {outcome.questions:,} questions, {outcome.fetched_partitions:,} partitions fetched "
        f"({outcome.with_records:,} with records, {outcome.with_aborts:,} aborts, {outcome.with_errors:,} errors), "
        f"{reads:,.0f} tier reads, {outcome.shared_budget:,} of other lengths, {outcome.asked_again} asked again, "
        f"{len(outcome.differences)} differ"
    )
    assert reads > outcome.fetched_partitions / 5
    return "\n".join(outcome.differences[:SHOWN_MAX])


def test_no_answer_differs_from_a_twin_that_kept_everything(
    twins: TwinWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        differences = ask(twins, SEED, QUESTIONS)
    assert not differences, f"TIDEGATE_TWIN_SEED={SEED}\n{differences}\n{twins.tidegate.log()[-5000:]}"


@pytest.mark.parametrize(
    "client",
    [pytest.param(each, marks=pytest.mark.needs(*([each] if needs.is_kind(each) else []))) for each in CLIENTS],
)
def test_every_client_reads_as_from_the_twin(client: str, programs: ClientPrograms, twins: TwinWorld) -> None:
    """Whole topics in both isolation levels, and look-ups by time in what only the tier has."""
    for topic in (ABORTS, "twin-none", "twin-zstd"):
        ends = {each.partition: each.last_stable_offset for each in twins.partitions if each.topic == topic}
        for isolation in ISOLATIONS:
            direct = read_with_confluent(twins.twin.bootstrap_servers, topic, ends, isolation)
            lasts = {partition: digest.last for partition, digest in direct.items()}
            asked = {"scenario": "digest", "topic": topic, "isolation": isolation, "lasts": lasts}
            said = programs.ask(client, asked)
            assert "failure" not in said.direct, said.direct
            if (client, topic, isolation) == ERRS_BY_ITSELF:
                assert said.direct["partitions"]["0"]["records"] != direct[0].records, "it can be compared by now"
                continue
            assert said.through == said.direct, (topic, isolation)
    times = [0, *(FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * number for number in (0, 100, 300, 600))]
    asked = {"scenario": "timestamps", "topic": "twin-none", "lasts": {0: 599, 1: 599}, "timestamps_ms": times}
    said = programs.ask(client, {**asked, "records": 10})
    assert said.through == said.direct
    assert "failure" not in said.direct, said.direct


def test_the_spark_source_plans_all_that_the_tier_has(twins: TwinWorld) -> None:
    """Asked are the brokers themselves, which know nothing of it."""
    topics = tuple(sorted({each.topic for each in twins.partitions}))
    with open_tier(load_config(str(twins.tidegate.file), {})) as tier:
        views = {view.key: view for view in tier.view.partitions(TopicSelection(topics=topics), read_committed=False)}
    assert views.keys() == {(each.topic, each.partition) for each in twins.partitions}
    for known in twins.partitions:
        view, copied_to = views[known.topic, known.partition], known.last_stable_offset
        assert (view.log_start_offset, view.tier_end_offset, view.holes) == (0, copied_to, ())
        assert view.end_offset == known.offsets.high_watermark


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_every_record_is_read_in_order(twins: TwinWorld, isolation: Isolation) -> None:
    topics = {each.topic for each in twins.partitions}
    for topic in sorted(topics):
        ends = {each.partition: each.last_stable_offset for each in twins.partitions if each.topic == topic}
        theirs = read_with_confluent(twins.twin.bootstrap_servers, topic, ends, isolation)
        ours = read_with_confluent(twins.tidegate.bootstrap, topic, ends, isolation)
        assert ours == theirs, topic
