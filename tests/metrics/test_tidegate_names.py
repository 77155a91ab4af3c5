"""Names of our own metrics follow Prometheus' rules."""

import re

import pytest

from metrics import tidegate_names
from metrics.family import Family, Kind
from metrics.tidegate_names import FAMILIES


def test_every_family_of_the_file_is_listed_once() -> None:
    named = [value for value in vars(tidegate_names).values() if isinstance(value, Family)]
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
