"""Which aims of a case are missed."""

from dataclasses import replace

from tests.simulation.aims import missed_aims
from tests.simulation.cases import sequential
from tests.simulation.world import Pass
from tests.support.for_each import for_each
from tests.support.simulated_store import MIB

CASE = replace(sequential("cold", 2, 400 * MIB), aim=0.8)
GOOD = Pass(
    delivered_bytes=2_000_000_000,
    elapsed_s=5.0,
    first_answer_s=0.1,
    share=0.85,
    fetched_bytes=2_000_000_000,
    beyond_bytes=256 * MIB,
    gets=200,
    gets_open_max=20,
)


def test_what_is_reached_is_not_missed() -> None:
    assert missed_aims(CASE, [GOOD, replace(GOOD, share=0.84)], 0.86) == []


@for_each(
    "done, missed",
    [
        (replace(GOOD, share=0.79), "share 0.79 < 0.8"),
        (replace(GOOD, fetched_bytes=2_120_000_000), "fetched 1.06 times"),
        (replace(GOOD, beyond_bytes=256 * MIB + 1), "more than a window a stream beyond"),
        (replace(GOOD, gets=242), "121 GETs a GB"),
    ],
)
def test_each_aim_is_told(done: Pass, missed: str) -> None:
    assert missed_aims(CASE, [done]) == [missed]


def test_a_second_pass_is_not_slower_nor_a_cached_one_than_a_cold_one() -> None:
    case = replace(CASE, aim=None)
    assert missed_aims(case, [GOOD, replace(GOOD, share=0.8)]) == ["pass 2 slower than the first"]
    assert missed_aims(case, [GOOD], cold_share=0.9) == ["slower than cold, 0.90"]
