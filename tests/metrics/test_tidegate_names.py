"""Names of our own metrics follow Prometheus' rules, and their latencies share their buckets."""

import re

import pytest

from metrics import tidegate_names, tier_names
from metrics.family import LATENCY_BUCKETS_S, Family, Kind
from metrics.tidegate_names import FAMILIES


def test_every_family_of_the_file_is_listed_once() -> None:
    tables = (tidegate_names, tier_names)
    named = [value for table in tables for value in vars(table).values() if isinstance(value, Family)]
    assert sorted(family.name for family in named) == sorted(family.name for family in FAMILIES)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_name_is_ours_and_leaves_the_suffix_to_the_library(family: Family) -> None:
    assert re.fullmatch(r"tidegate_[a-z_]+[a-z]", family.name)
    assert not family.name.endswith(("_total", "_count", "_bucket"))
    assert family.help.endswith(".")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_histograms_alone_have_ascending_buckets_and_a_unit(family: Family) -> None:
    assert (family.kind is Kind.HISTOGRAM) is bool(family.buckets)
    assert list(family.buckets) == sorted(set(family.buckets))
    assert family.kind is not Kind.HISTOGRAM or family.name.endswith("_seconds")


def test_latencies_have_the_buckets_that_are_promised() -> None:
    in_ms = [round(bound_s * 1000) for bound_s in LATENCY_BUCKETS_S]
    assert in_ms == [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000]
    others = [family.name for family in FAMILIES if family.buckets not in ((), LATENCY_BUCKETS_S)]
    assert others == ["tidegate_frontier_age_seconds"]  # an age: reads may be routed by one of a minute
