"""The exposed name is the one a dashboard asks for."""

import pytest

from metrics.family import Family, Kind


@pytest.mark.parametrize(
    ("kind", "exposed"),
    [(Kind.COUNTER, "x_total"), (Kind.GAUGE, "x"), (Kind.HISTOGRAM, "x_bucket"), (Kind.TIMER, "x_count")],
)
def test_exposed_name_carries_the_suffix_of_its_kind(kind: Kind, exposed: str) -> None:
    assert Family(name="x", kind=kind, help="X.").exposed_name == exposed
