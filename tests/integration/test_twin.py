"""Standalone mode against a twin broker that kept everything: random questions over raw sockets, zero may differ.

`TIDEGATE_TWIN_QUESTIONS` is how many (1,500; long/test_twin.py asks 20,000), `TIDEGATE_TWIN_SEED` repeats a run.
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.support.differential import asker
from tests.support.differential_questions import Questions
from tests.support.twin_world import TwinWorld, twin_world

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEED = int(os.environ.get("TIDEGATE_TWIN_SEED") or random.SystemRandom().randrange(2**32))
QUESTIONS = int(os.environ.get("TIDEGATE_TWIN_QUESTIONS") or 1500)
SHOWN_MAX = 10

TIER_READS = "kafka_server_brokertopicmetrics_remotefetchrequests_total"


@pytest.fixture(scope="module")
def twins() -> Iterator[TwinWorld]:
    with twin_world(SEED, generated=3, restarts=1) as world:
        yield world


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
