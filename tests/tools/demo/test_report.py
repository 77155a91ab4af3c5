import dataclasses
import io

import pytest
from rich.console import Console

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


def rendered(outcome: Outcome) -> str:
    written = io.StringIO()
    Console(file=written, width=80).print(outcome.table())
    return written.getvalue()


def test_nothing_to_complain_of() -> None:
    assert GOOD.complaints() == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"directly": dataclasses.replace(READING, records=299_999)}, "299,999 read directly"),
        ({"through_tidegate": dataclasses.replace(READING, records=300_001)}, "300,001 read through Tidegate"),
        ({"through_tidegate": dataclasses.replace(READING, digest="f" * 64)}, "digests differ"),
        ({"through_tidegate": dataclasses.replace(READING, records_only_in_tier=0)}, "nothing was shown"),
        ({"remote_fetches_at_end": 1236}, "read its tier 2 times"),
        ({"counted": Counters(1, 0, 0)}, "served no byte"),
    ],
)
def test_each_thing_that_is_wrong_is_a_sentence(changed: dict[str, object], complaint: str) -> None:
    (found,) = dataclasses.replace(GOOD, **changed).complaints()  # type: ignore[arg-type]  # the cases have them right
    assert complaint in found
    assert found.endswith(".")


def test_the_table_says_all_of_it_in_80_columns() -> None:
    lines = [" ".join(line.split()) for line in rendered(GOOD).splitlines()]
    assert max(len(line) for line in rendered(GOOD).splitlines()) <= 80
    assert [line for line in lines if line and "━" not in line] == [
        "directly through Tidegate",
        "records 300,000 300,000",
        "of them in the tier only 297,000 (99.0 %) 297,000 (99.0 %)",
        "digest of the records 0123456789ab 0123456789ab",
        "time 3.0 s 2.0 s",
        "speed 40.0 MB/s 60.0 MB/s",
        "Tidegate relayed from the broker 1.25 MB",
        "Tidegate served from the tier 119.00 MB",
        "its RemoteFetchBytes (KIP-405) 119.50 MB",
        "broker's own remote fetches 0 -> 1,234 1,234 -> 1,234",
    ]


def test_the_largest_numbers_still_fit() -> None:
    large = dataclasses.replace(READING, records=100_000_000, records_only_in_tier=99_999_999, seconds=86_400.0)
    outcome = dataclasses.replace(
        GOOD, directly=large, through_tidegate=large, remote_fetches_between=1_000_000, remote_fetches_at_end=1_000_000
    )
    assert "1,000,000 -> 1,000,000" in rendered(outcome)
    assert max(len(line) for line in rendered(outcome).splitlines()) <= 80
