"""What was not given back is named, with how much there was before."""

from tests.support.hostile_stage import TASKS_SLACK, Held

BEFORE = Held({"tidegate_connections_active": 1.0, "tidegate_tasks": 50.0}, descriptors=20)


def test_each_number_that_is_larger_is_named() -> None:
    after = Held({"tidegate_connections_active": 2.0, "tidegate_tasks": 51.0 + TASKS_SLACK}, 21)
    assert after.beyond(BEFORE) == {
        "tidegate_connections_active": (2.0, 1.0),
        "tidegate_tasks": (51.0 + TASKS_SLACK, 50.0),
        "descriptors": (21, 20),
    }
