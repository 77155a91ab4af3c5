"""Which tests share a worker where pytest-xdist runs them in several (`make test`), and what the workers begin with.

A fixture of the session is created again in each worker that uses it, so all tests that use an expensive one are one
group: one shared broker and one Spark session a run. The other tests of a file are a group, too, so that a fixture of
the module is made once. A worker takes up one group after the other: those that take longest come first, and the many
short files level the ends. Within that the order is pytest-randomly's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

SHARED_FIXTURES: Mapping[str, frozenset[str]] = {
    "kafka": frozenset({"kafka"}),
    "pair": frozenset({"pair"}),
    "moody": frozenset({"moody"}),
    "spark": frozenset({"spark_cluster", "spark_files", "spark_package", "spark_topics"}),
    "plain_kafka": frozenset({"plain_kafka"}),
    "differential": frozenset({"differential"}),
    "guarded": frozenset({"guarded"}),
    "operators": frozenset({"operators"}),
}
"""Groups by the fixtures of the session that are theirs, those that take longest first."""

HOMES = frozenset({"tests", "tests/integration", "tests/spark"})
"""Whose conftest.py makes them. A fixture of the same name from elsewhere is another thing."""

SHARED_TOPICS = frozenset({"codecs", "tidegate", "tiered", "transactions"})
"""On the broker `kafka`. Its users are the longest group: those with topics of their own have another broker."""
WITH_SHARED_TOPICS = "kafka, shared topics"

SHARED_FOLDERS = ("tests/broker", "tests/containers")
"""Folders whose tests are one group: `make test` has one broker, and begins with it; containers have one store."""

SLOW_NEEDS = frozenset({"java", "kafka", "spark"})
"""A file with tests that need these without using a shared fixture starts something of its own."""


def group_by_worker(items: list[pytest.Item], needed: Mapping[pytest.Item, Sequence[str]]) -> None:
    """Give each item its `xdist_group`, and put the items of each group together, the long groups first.

    Args:
        items: of all the session, in pytest-randomly's order; sorted in place.
        needed: for each item the kinds of tests/support/needs.py that it needs.
    """
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    slow = {groups[item] for item in items if not SLOW_NEEDS.isdisjoint(needed[item])}
    shared = {name: rank for rank, name in enumerate((*SHARED_FOLDERS, WITH_SHARED_TOPICS, *SHARED_FIXTURES))}
    first_seen = {group: rank for rank, group in reversed([*enumerate(groups.values())])}
    items.sort(
        key=lambda item: (shared.get(groups[item], len(shared)), groups[item] not in slow, first_seen[groups[item]])
    )


def group_of(item: pytest.Item) -> str:
    """The shared folder's or fixture's group, else the item's file.

    Raises:
        pytest.UsageError: it uses fixtures of two groups, and one of them would be made in a second worker.
    """
    for folder in SHARED_FOLDERS:
        if item.nodeid.startswith(f"{folder}/"):
            return folder
    used = shared_fixtures(item)
    groups = [group for group, fixtures in SHARED_FIXTURES.items() if not fixtures.isdisjoint(used)]
    if len(groups) > 1:
        raise pytest.UsageError(f"{item.nodeid} is of the groups {groups}; make them one in {__name__}")
    if groups == ["kafka"] and not SHARED_TOPICS.isdisjoint(used):
        return WITH_SHARED_TOPICS
    return groups[0] if groups else item.nodeid.partition("::")[0]


def shared_fixtures(item: pytest.Item) -> frozenset[str]:
    """The item's fixtures that a conftest.py of HOMES makes."""
    # pytest has no public way to what a name stands for in one test.
    info = getattr(item, "_fixtureinfo", None)
    made = {} if info is None else info.name2fixturedefs
    return frozenset(name for name, definitions in made.items() if definitions[-1].baseid in HOMES)


def finish_group(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what only the item's group shares, if the item was the group's last in this worker.

    Otherwise brokers, Spark and clients would run idle until the worker's very last test: a tenth of a core each.
    """
    group = group_of(item)
    if nextitem is not None and group_of(nextitem) == group:
        return
    names = SHARED_FIXTURES.get("kafka" if group == WITH_SHARED_TOPICS else group, frozenset())
    # pytest has no public way to end a fixture of the session earlier. What depends on it ends first.
    request: Any = getattr(item, "_request", None)
    for name, definitions in item.session._fixturemanager._arg2fixturedefs.items():
        for definition in definitions:
            is_shared = name in names and definition.baseid in HOMES
            if is_shared or (definition.baseid == group and definition.scope == "session"):
                definition.finish(request)
