"""What an orphan is, against the rule said once more over any sequence of records; and plans as files."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from storage.checks.orphans import Plan, PlanOrigin, SeenSegments, Standing, Survey
from storage.metadata.encoding import encode
from storage.metadata.reading import MetadataEvent
from storage.model import RemoteLogSegmentId, RemoteLogSegmentState
from storage.remote_storage_manager import StoredObject
from tests.support.cases import case
from tests.support.metadata_records import COPY_STARTED, DELETE_FINISHED, moved, named_partition, named_uuid, started

TOPICS = ("orders", "payments", "never-heard-of")
NAMES = ("a", "b", "c")
ORIGIN = PlanOrigin("cluster", "topic", "store")

records = st.lists(
    st.tuples(st.sampled_from(TOPICS[:2]), st.sampled_from(NAMES), st.sampled_from(RemoteLogSegmentState))
)


def seen_after(found: list[tuple[str, str, RemoteLogSegmentState]]) -> SeenSegments:
    seen = SeenSegments(100)
    for offset, (topic, name, state) in enumerate(found):
        segment = started(f"{topic} {name}", 0, 9, partition=named_partition(topic))
        value = encode(segment if state is COPY_STARTED else moved(segment, state))
        seen.take([MetadataEvent(0, offset, 0, None, value)])
    return seen


@given(
    found=records, topic=st.sampled_from(TOPICS), name=st.sampled_from((*NAMES, "unheard")), age_ms=st.integers(0, 20)
)
def test_only_what_no_record_keeps_alive_is_an_orphan(
    found: list[tuple[str, str, RemoteLogSegmentState]], topic: str, name: str, age_ms: int
) -> None:
    segment_id = RemoteLogSegmentId(named_partition(topic), named_uuid(f"{topic} {name}"))
    states = [state for of, by, state in found if (of, by) == (topic, name)]
    if states and states[-1] is not DELETE_FINISHED:
        expected = Standing.REFERRED
    elif topic not in {of for of, _, _ in found}:
        expected = Standing.FOREIGN
    else:
        expected = Standing.ORPHAN if age_ms > 10 else Standing.YOUNG
    assert seen_after(found).standing(segment_id, 100 - age_ms, 90) is expected


def test_a_segment_under_another_partition_is_still_known() -> None:
    seen = seen_after([("orders", "a", COPY_STARTED)])
    elsewhere = RemoteLogSegmentId(named_partition("orders", 7), named_uuid("orders a"))
    assert [seen.standing(segment, 0, 90) for segment in (elsewhere, None)] == [Standing.REFERRED, Standing.STRANGE]


def test_what_does_not_fit_is_said_and_what_is_known_goes_on() -> None:
    seen = SeenSegments(1)
    for offset, name in enumerate(("a", "b")):
        seen.take([MetadataEvent(0, offset, 0, None, encode(started(name, 0, 9)))])
    assert seen.is_full
    seen.take([MetadataEvent(0, 2, 0, None, encode(moved(started("a", 0, 9), DELETE_FINISHED)))])
    assert Survey(seen, 0).refusals(5)[0].startswith("the metadata topic names more segments")


@given(
    objects=st.lists(st.tuples(st.text(), st.integers(0), st.integers()), unique=True, max_size=5),
    uploads=st.lists(st.tuples(st.text(), st.text(), st.integers()), max_size=3),
)
def test_a_plan_is_read_as_it_was_written(
    objects: list[tuple[str, int, int]], uploads: list[tuple[str, str, int]]
) -> None:
    plan = Plan(ORIGIN, 1000, tuple(objects), tuple(uploads))
    assert Plan.parse(plan.text()) == plan
    json.loads(plan.text())


def test_a_plan_narrows_to_what_is_the_same() -> None:
    for changes in [{"size_bytes": 11}, {"modified_ms": 21}, {"name": "orders/3.log"}]:
        with case(changes):
            segment_id = RemoteLogSegmentId(named_partition(), named_uuid("a"))
            found = StoredObject("orders/1.log", 10, 20, segment_id)
            survey = Survey(SeenSegments(100), 90, orphans=[found])
            plan = Plan(ORIGIN, 1000, (("orders/1.log", 10, 20), ("not there", 10, 20)), ())
            assert plan.narrow(survey) == ([found], [])
            survey.orphans = [dataclasses.replace(found, **changes)]  # type: ignore[arg-type]  # fields by name
            assert plan.narrow(survey) == ([], [])
