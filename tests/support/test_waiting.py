import pytest

from tests.support.waiting import wait_until


def test_gives_what_was_seen() -> None:
    looks = iter([0, "", 7])
    assert wait_until(lambda: next(looks), "seven") == 7


def test_says_what_never_came() -> None:
    with pytest.raises(AssertionError, match=r"a miracle; last seen: \[\]"):
        wait_until(list, "a miracle", timeout_s=0)
