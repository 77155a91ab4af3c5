"""The broker's answers against Tidegate's: random questions over raw sockets, zero may differ.

`TIDEGATE_DIFFERENTIAL_QUESTIONS` is how many (5,000; `make differential` asks 100,000), `TIDEGATE_DIFFERENTIAL_SEED`
repeats a run with its topics, and `TIDEGATE_DIFFERENTIAL_ONLY` with it one question of a run. `TIDEGATE_PROXY_WORKERS`
is how many workers answer; whatever it says, two are asked a few hundred questions.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest

from proxy.fetch import fallback
from storage.config.registry import open_remote_storage_manager
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
)
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.differential import Asker, NoAnswerError, Outcome, asker
from tests.support.differential_questions import KINDS, Questions
from tests.support.differential_world import QUESTIONS, SEED, TIDEGATE_PROPERTIES, DifferentialWorld
from tests.support.in_process import in_process, in_thread
from tests.support.scripted_store import ScriptedStore
from tests.support.tidegate import own_tidegate

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

ONLY = os.environ.get("TIDEGATE_DIFFERENTIAL_ONLY") or ""

WORKERS_GIVEN = f"TIDEGATE_PROXY_WORKERS={given} " if (given := os.environ.get("TIDEGATE_PROXY_WORKERS")) else ""
"""How a failed run's command begins."""

PART_QUESTIONS = 5000
"""To a test: each ends well before the run is taken to hang."""

WORKERS_QUESTIONS = 400
"""With two workers; `make differential WORKERS=2` asks them all."""

FAILING_QUESTIONS = 1000
"""In a short run, with a tier that fails at random."""

PARTS: list[Sequence[int]] = (
    [[int(ONLY)]]
    if ONLY
    else [range(at, min(at + PART_QUESTIONS, QUESTIONS)) for at in range(0, QUESTIONS, PART_QUESTIONS)]
)
FAILING_PARTS = PARTS if ONLY or len(PARTS) > 1 else [PARTS[0][:FAILING_QUESTIONS]]
FAILING_PROPERTIES = {
    **TIDEGATE_PROPERTIES,
    # Nearly every read has to ask the store.
    "cache.memory.bytes": "1 MiB",
    "expert.cache.block.bytes": "64 KiB",
    "readahead.stream.max.bytes": "0",
    "fallback.partitions.max": "10000",
}
STORE_FAULTS: list[Exception] = [
    RetriableRemoteStorageError("reset"),
    StalledTransferError("stalled twice"),
    RemoteAccessDeniedError("AccessDenied"),
    RemoteStorageError("of no kind that is known"),
]
LOG_FAULTS: list[Exception] = [RemoteResourceNotFoundError("NoSuchKey"), CorruptObjectError("another CRC")]
"""Not of indexes: one that is lost is rebuilt, with entries elsewhere, and by them goes how far the list of aborted
transactions reaches; and of these objects nothing says that they have to have a transaction index."""

SHOWN_MAX = 10
LOG_SHOWN_MAX = 10_000
TIER_SHARE_MIN = 0.25
ASKED_AGAIN_SHARE_MAX = 0.01
TIER_READS = "kafka_server_brokertopicmetrics_remotefetchrequests_total"


@pytest.fixture
def both(differential: DifferentialWorld) -> Iterator[Asker]:
    with asker(differential.broker_address, differential.tidegate.address) as pairs:
        yield pairs


@pytest.mark.parametrize("numbers", PARTS, ids=lambda numbers: f"{numbers[0]}-{numbers[-1]}")
def test_no_answer_differs_from_the_brokers(
    numbers: Sequence[int], both: Asker, differential: DifferentialWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, tidegate = Questions(SEED, differential.partitions, both.versions()), differential.tidegate
    reads_before, started_s = tidegate.metric(TIER_READS), monotonic()
    try:
        outcome = both.ask([*questions.openings(), *map(questions.question, numbers)])
    except NoAnswerError as error:
        pytest.fail(f"seed {SEED}: {error}\n{tidegate.log()[-LOG_SHOWN_MAX:]}")
    took_s, reads = monotonic() - started_s, tidegate.metric(TIER_READS) - reads_before
    with capsys.disabled():
        print(f"\n{_summary(differential, outcome, reads, took_s)}")
    assert not outcome.differences, _failure(outcome)
    if not ONLY:
        assert set(outcome.kinds) == set(KINDS)
        assert outcome.asked_again <= max(1, ASKED_AGAIN_SHARE_MAX * outcome.questions)
        assert reads > TIER_SHARE_MIN * outcome.fetched_partitions


def test_no_answer_of_two_workers_differs(differential: DifferentialWorld, capsys: pytest.CaptureFixture[str]) -> None:
    properties = {**TIDEGATE_PROPERTIES, "proxy.workers": "2"}
    numbers = [int(ONLY)] if ONLY else range(WORKERS_QUESTIONS)
    with own_tidegate(differential.cluster, properties) as tidegate:
        with asker(differential.broker_address, tidegate.address) as both:
            questions = Questions(SEED, differential.partitions, both.versions())
            outcome = both.ask([*questions.openings(), *map(questions.question, numbers)])
            connections = [tidegate.metric("tidegate_worker_connections", worker=worker) for worker in ("0", "1")]
        with capsys.disabled():
            print(
                f"\ndifferential, two workers: seed {SEED}; {outcome.questions:,} questions, "
                f"{tidegate.metric(TIER_READS):,.0f} tier reads, {len(outcome.differences)} differ"
            )
    assert not outcome.differences, _failure(outcome)
    assert min(connections) > 0


@pytest.mark.parametrize("numbers", FAILING_PARTS, ids=lambda numbers: f"{numbers[0]}-{numbers[-1]}")
async def test_no_answer_differs_while_the_tier_fails_at_random(
    numbers: Sequence[int],
    differential: DifferentialWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One fetch in twenty of the store fails in one of many ways; what cannot be read is read by the broker."""
    stores: list[ScriptedStore] = []

    def open_failing(class_name: str, config: Mapping[str, str]) -> RemoteStorageManager:
        stores.append(ScriptedStore(open_remote_storage_manager(class_name, config)))
        return stores[0]

    monkeypatch.setattr(fallback, "SPELL_S_MIN", 0.0)
    topic = differential.partitions[0].topic
    async with in_process(
        differential.cluster, topic, tmp_path, FAILING_PROPERTIES, open_storage_manager=open_failing, time_limit_s=600
    ) as tidegate:
        stores[0].fail_at_random(random.Random(SEED), 20, STORE_FAULTS + LOG_FAULTS, STORE_FAULTS)

        def ask() -> Outcome:
            with asker(differential.broker_address, tidegate.address, tier_fails=True) as both:
                questions = Questions(SEED, differential.partitions, both.versions())
                return both.ask([*questions.openings(), *map(questions.question, numbers)])

        outcome = await in_thread(ask)
        left_to_broker = tidegate.sample("tidegate_fallback_reads_total")
        reads = tidegate.sample(TIER_READS)
    with capsys.disabled():
        print(
            f"\ndifferential, the tier failing: seed {SEED}; {outcome.questions:,} questions, {reads:,.0f} tier reads, "
            f"{left_to_broker:,.0f} left to the broker, {outcome.asked_again} asked again, "
            f"{len(outcome.differences)} differ"
        )
    assert not outcome.differences, _failure(outcome)
    assert left_to_broker > len(numbers) / 200


def _summary(world: DifferentialWorld, outcome: Outcome, tier_reads: float, took_s: float) -> str:
    kinds = ", ".join(f"{outcome.kinds[kind]:,} {kind}" for kind in KINDS)
    return (
        f"differential: seed {SEED}, {len(world.partitions)} partitions, {world.schedule.restarts} restarts, "
        f"ready in {world.prepared_s:.0f} s; {outcome.questions:,} questions in {took_s:.1f} s ({kinds}); "
        f"{outcome.fetched_partitions:,} partitions fetched ({outcome.with_records:,} with records, "
        f"{outcome.with_aborts:,} aborts, {outcome.with_tags:,} tags, {outcome.with_errors:,} errors, "
        f"{outcome.record_bytes:,} bytes), {tier_reads:,.0f} tier reads by Tidegate, "
        f"{outcome.shared_budget:,} shares of a budget, {outcome.hidden_endpoints} hidden addresses, "
        f"{outcome.asked_again} asked again, "
        f"{len(outcome.differences)} differ"
    )


def _failure(outcome: Outcome) -> str:
    shown = "\n".join(outcome.differences[:SHOWN_MAX])
    return (
        f"{len(outcome.differences)} of {outcome.questions} answers differ\n{shown}\n"
        f"all again: {WORKERS_GIVEN}TIDEGATE_DIFFERENTIAL_SEED={SEED} TIDEGATE_DIFFERENTIAL_QUESTIONS={QUESTIONS} "
        "pytest tests/integration/test_differential.py\n"
        f"one again: {WORKERS_GIVEN}TIDEGATE_DIFFERENTIAL_SEED={SEED} TIDEGATE_DIFFERENTIAL_ONLY=<its number> "
        "pytest tests/integration/test_differential.py"
    )
