"""Each case at each version that upstream and kio share, asked of the broker and of Tidegate: field by field the same.

The cases are files: `cases/<api>/<case>.toml`. A case names places (`tier`, `segment:2`, `hole`), not numbers; they
are looked up in the logs of the differential test's topics. What a case expects is held against the broker's answer,
so that a case cannot stop being what it is named for; the comparison is for Tidegate.

At flexible versions each case is asked again with an unknown tagged field in the header and in every structure.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from protocol.fetch.response import decode_response
from tests.support.differential import Asker, asker
from tests.support.differential_known import KnownBatch, KnownPartition
from tests.support.differential_questions import (
    ABSENT_PARTITION,
    ABSENT_TOPIC,
    MAX_BYTES,
    NO_EPOCH,
    OFFSET_FOR_LEADER_EPOCH,
    TOPIC_ID_VERSION_MIN,
    EpochQuestion,
    FetchQuestion,
    FetchTarget,
    OffsetsQuestion,
    Question,
)
from tests.support.differential_topics import PREFIX
from tests.support.differential_world import DifferentialWorld
from tests.support.kio_frames import schema, versions_of
from tests.support.raw_client import FETCH, LIST_OFFSETS, decode_frame

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

CASES = Path(__file__).parent / "cases"
APIS = {"fetch": FETCH, "list_offsets": LIST_OFFSETS, "offset_for_leader_epoch": OFFSET_FOR_LEADER_EPOCH}
CORRELATION_ID = 7
LIMIT_BYTES = 20_000
UNSUPPORTED_VERSION = 35
TIER_READS = "kafka_server_brokertopicmetrics_remotefetchrequests_total"


@dataclass(frozen=True, slots=True)
class Cell:
    """One case at one version."""

    api: str
    version: int
    name: str
    case: Mapping[str, Any]
    has_unknown_tags: bool

    def __str__(self) -> str:
        return f"{self.api}-v{self.version}-{self.name}{'-unknown_tags' if self.has_unknown_tags else ''}"


def _cells(api: str, name: str) -> Iterator[Cell]:
    case = tomllib.loads((CASES / api / f"{name}.toml").read_text("utf-8"))
    for version in versions_of(APIS[api], "request"):
        if version >= case.get("versions_min", 0):
            is_flexible = schema(APIS[api], version, kind="request").__flexible__
            for has_unknown_tags in (False, True)[: 1 + is_flexible]:
                yield Cell(api, version, name, case, has_unknown_tags)


@pytest.fixture(scope="module")
def both(differential: DifferentialWorld) -> Iterator[Asker]:
    with asker(differential.broker_address, differential.tidegate.address, lanes=1) as pairs:
        yield pairs


@pytest.mark.parametrize("api", list(APIS))
def test_tidegate_answers_as_the_broker_does(api: str, both: Asker, differential: DifferentialWorld) -> None:
    wrong = []
    for path in sorted((CASES / api).glob("*.toml")):
        cells, before = list(_cells(api, path.stem)), differential.tidegate.metric(TIER_READS)
        for cell in cells:
            question = _question(cell, differential)
            outcome, answer = both.ask_one(question)
            _check_expected(cell, question, answer)
            if outcome.differences:
                wrong.append("\n".join([str(cell), *outcome.differences]))
        if path.stem == "tier_read":
            assert differential.tidegate.metric(TIER_READS) - before >= len(cells)
    assert not wrong, "\n\n".join(wrong)


def test_the_table_has_every_version_that_is_shared(both: Asker) -> None:
    for api, api_key in APIS.items():
        lowest, highest = both.versions()[api_key]
        assert versions_of(api_key, "request") == list(range(lowest, highest + 1)), api


# --- from a case to a question ---


def _question(cell: Cell, world: DifferentialWorld) -> Question:
    case, parts = cell.case, cell.case["partitions"]
    isolation = case.get("isolation", 0)
    first = _known(world, parts[0])
    current = _epoch(case.get("current_leader_epoch", NO_EPOCH), first, 0)
    match cell.api:
        case "fetch":
            targets = tuple(_fetch_target(part, world) for part in parts)
            max_bytes = case.get("max_bytes", MAX_BYTES)
            return FetchQuestion(
                CORRELATION_ID,
                cell.version,
                targets,
                isolation,
                max_bytes,
                shares_budget=case.get("shares_budget", False),
                has_unknown_tags=cell.has_unknown_tags,
            )
        case "list_offsets":
            asked = tuple((*_named(part), _timestamp(part, _known(world, part))) for part in parts)
            return OffsetsQuestion(CORRELATION_ID, cell.version, asked, isolation, current, cell.has_unknown_tags)
        case _:
            epochs = tuple((*_named(part), _epoch(part["leader_epoch"], _known(world, part), 0)) for part in parts)
            return EpochQuestion(CORRELATION_ID, cell.version, epochs, current, cell.has_unknown_tags)


def _named(part: Mapping[str, Any]) -> tuple[str, int]:
    return f"{PREFIX}-{part['topic']}", part.get("partition", 0)


def _known(world: DifferentialWorld, part: Mapping[str, Any]) -> KnownPartition:
    """Return what is known of the partition; what is not there stands at the places of one that is."""
    topic, partition = _named(part)
    if part["topic"] == "absent":
        topic = f"{PREFIX}-plain"
    if partition == ABSENT_PARTITION:
        partition = 0
    return next(each for each in world.partitions if (each.topic, each.partition) == (topic, partition))


def _fetch_target(part: Mapping[str, Any], world: DifferentialWorld) -> FetchTarget:
    known = _known(world, part)
    offset = _place(part["at"], known) + part.get("plus", 0)
    limit = part.get("limit_bytes", LIMIT_BYTES)
    target = FetchTarget(
        known.topic,
        known.topic_id,
        part.get("partition", 0),
        offset,
        (_batch_at(known, offset).size_bytes if limit == "batch" else limit) + part.get("limit_plus", 0),
        _epoch(part.get("current_leader_epoch", NO_EPOCH), known, offset),
        _epoch(part.get("last_fetched_epoch", NO_EPOCH), known, offset),
    )
    return replace(target, topic=ABSENT_TOPIC[0], topic_id=ABSENT_TOPIC[1]) if part["topic"] == "absent" else target


def _place(name: str, known: KnownPartition) -> int:
    kind, _, number = name.partition(":")
    offsets = known.offsets
    match kind:
        case "segment":
            return known.segments[int(number)]
        case "epoch":
            return known.epochs[int(number)][1]
        case "hole":
            return _before_hole(known).last_offset + 1
        case "control":
            return next(batch.base_offset for batch in known.batches if batch.is_control)
    return {
        "log_start": offsets.log_start_offset,
        "tier": (offsets.log_start_offset + offsets.local_log_start_offset) // 2,
        "local": offsets.local_log_start_offset,
        "overlap": (offsets.local_log_start_offset + offsets.latest_tiered_offset) // 2,
        "stable": known.last_stable_offset,
        "high_watermark": offsets.high_watermark,
    }[kind]


def _before_hole(known: KnownPartition) -> KnownBatch:
    pairs = zip(known.batches, known.batches[1:], strict=False)
    return next(before for before, after in pairs if after.base_offset > before.last_offset + 1)


def _batch_at(known: KnownPartition, offset: int) -> KnownBatch:
    """The batch that holds the offset, or else the last one before it."""
    return max((batch for batch in known.batches if batch.base_offset <= offset), key=lambda batch: batch.base_offset)


def _timestamp(part: Mapping[str, Any], known: KnownPartition) -> int:
    asked = part["timestamp"]
    at_ms: int = asked if isinstance(asked, int) else _batch_at(known, _place(asked, known)).base_timestamp_ms
    return at_ms + int(part.get("plus", 0))


def _epoch(asked: int | str, known: KnownPartition, offset: int) -> int:
    """`older` is an epoch that has ended, `right` the one of the record before the offset."""
    if isinstance(asked, int):
        return asked
    named = {"current": 0, "newer": 1, "older": -1}
    return known.epoch_of(offset - 1) if asked == "right" else known.leader_epoch + named[asked]


# --- what a case expects of the broker ---


def _check_expected(cell: Cell, question: Question, answer: bytes) -> None:
    expected = cell.case.get("expect", {})
    if isinstance(question, FetchQuestion):
        _check_fetch(cell, expected, answer, question)
        return
    message = decode_frame(question.api_key, question.version, answer)
    # A broker may answer failed partitions after the others.
    by_key = {
        (str(getattr(topic, "name", "") or getattr(topic, "topic", "")), _number_of(each)): each
        for topic in message.topics
        for each in topic.partitions
    }
    parts = [by_key[topic, partition] for topic, partition, _ in question.targets]
    if cell.version < cell.case.get("supported_from", 0):
        assert {int(each.error_code) for each in parts} == {UNSUPPORTED_VERSION}, str(cell)
        return
    if "errors" in expected:
        assert [int(each.error_code) for each in parts] == expected["errors"], str(cell)
    if "found" in expected:
        assert [each.offset >= 0 for each in parts] == expected["found"], str(cell)


def _number_of(answer: Any) -> int:
    return int(answer.partition_index if hasattr(answer, "partition_index") else answer.partition)


def _check_fetch(cell: Cell, expected: Mapping[str, Any], answer: bytes, question: FetchQuestion) -> None:
    parts = decode_response(memoryview(answer), cell.version).partitions
    errors = expected.get("errors")
    if cell.version >= TOPIC_ID_VERSION_MIN:
        errors = expected.get("errors_by_id", errors)
    if errors is not None:
        # A broker may answer failed partitions before the others.
        by_key = {(each.topic or bytes(each.topic_id or b""), each.partition): each for each in parts}
        has_ids = cell.version >= TOPIC_ID_VERSION_MIN
        parts = [by_key[each.topic_id if has_ids else each.topic, each.partition] for each in question.targets]
        assert [each.error_code for each in parts] == errors, str(cell)
    found: Mapping[str, Sequence[bool] | bool] = {
        "records": [each.records_bytes > 0 for each in parts],
        "aborts": any(each.aborted_transactions for each in parts),
        "tags": any(bytes(each.tags) != b"\x00" for each in parts),
    }
    wanted = {name: expected[name] for name in found if name in expected}
    assert {name: found[name] for name in wanted} == wanted, str(cell)
