"""Tests that share something expensive run in one worker, and the workers begin with what takes longest."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.worker_groups import group_by_worker


@dataclass(eq=False)
class Item:
    """As much of pytest's as the grouping looks at."""

    nodeid: str
    fixturenames: tuple[str, ...] = ()
    home: str = "tests"
    needed: tuple[str, ...] = ()
    marks: list[pytest.MarkDecorator] = field(default_factory=list)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)

    @property
    def _fixtureinfo(self) -> SimpleNamespace:
        definitions = [SimpleNamespace(baseid=self.home)]
        return SimpleNamespace(name2fixturedefs=dict.fromkeys(self.fixturenames, definitions))

    @property
    def group(self) -> str:
        (mark,) = self.marks
        assert mark.name == "xdist_group"
        return str(mark.args[0])


def grouped(*items: Item) -> list[Item]:
    found = cast(list[pytest.Item], list(items))
    group_by_worker(found, {item: cast(Item, item).needed for item in found})
    return cast(list[Item], found)


def test_users_of_a_shared_fixture_are_one_group_and_the_rest_of_each_file_another() -> None:
    items = (Item("a.py::1", ("kafka", "tiered")), Item("a.py::2"), Item("b.py::1", ("kafka",)), Item("a.py::3[b::c]"))
    grouped(*items)
    assert [item.group for item in items] == ["kafka, shared topics", "a.py", "kafka", "a.py"]


def test_a_fake_of_the_same_name_is_not_of_the_shared_brokers_group() -> None:
    # The proxy's tests have a fake in memory that is called like the broker.
    item = Item("a.py::1", ("kafka",), home="tests/proxy")
    grouped(item)
    assert item.group == "a.py"


def test_shared_fixtures_come_first_then_files_that_start_things() -> None:
    order = (
        Item("quick.py::1"),
        Item("own.py::2", needed=("java",)),
        Item("x.py::1", ("spark_files", "spark")),
        Item("quick.py::0"),
        Item("b.py::1", ("kafka",)),
        Item("tests/broker/test_reads.py::1", ("served",)),
        Item("short.py::1"),
        Item("own.py::1"),
        Item("a.py::1", ("kafka",)),
    )
    assert [item.nodeid for item in grouped(*order)] == [
        "tests/broker/test_reads.py::1",
        "b.py::1",
        "a.py::1",
        "x.py::1",
        "own.py::2",
        "own.py::1",
        "quick.py::1",
        "quick.py::0",
        "short.py::1",
    ]


def test_a_test_of_two_groups_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"a\.py::1 is of the groups \['kafka', 'differential'\]"):
        grouped(Item("a.py::1", ("kafka", "differential")))


def test_pytest_xdist_heeds_the_groups(request: pytest.FixtureRequest) -> None:
    """Each worker shows what the controller goes by; without workers there is nothing to see."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@tests/support/test_worker_groups.py")
