import dataclasses
from typing import Any

from tools.demo.reading import Reading
from tools.demo.report import Outcome
from tools.demo.tidegate_process import Counters

READING = Reading(
    records=300_000, records_only_in_tier=297_000, record_bytes=120_000_000, seconds=3.0, digest="0123456789abcdef" * 4
)
GOOD = Outcome(
    produced=300_000,
    directly=READING,
    through_tidegate=dataclasses.replace(READING, seconds=2.0),
    counted=Counters(relayed_bytes=1_250_000, served_tier_bytes=119_000_000, remote_fetch_bytes=119_500_000),
    remote_fetches_at_start=0,
    remote_fetches_between=1234,
    remote_fetches_at_end=1234,
)


def through(**changed: Any) -> Outcome:
    return dataclasses.replace(GOOD, through_tidegate=dataclasses.replace(READING, **changed))


WRONG = {
    "299,999 read directly": dataclasses.replace(GOOD, directly=dataclasses.replace(READING, records=299_999)),
    "300,001 read through Tidegate": through(records=300_001),
    "digests differ": through(digest="f" * 64),
    "nothing was shown": through(records_only_in_tier=0),
    "read its tier 2 times": dataclasses.replace(GOOD, remote_fetches_at_end=1236),
    "served no byte": dataclasses.replace(GOOD, counted=Counters(1, 0, 0)),
}


def test_each_thing_that_is_wrong_is_a_sentence() -> None:
    assert GOOD.complaints() == []
    for complaint, outcome in WRONG.items():
        (found,) = outcome.complaints()
        assert complaint in found
        assert found.endswith(".")
