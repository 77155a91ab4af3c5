"""Good probes: for what, for whom and how long they count."""

import pytest
import trio

from proxy.fetch.authorities import Authorities, Authority, AuthorityKey, LogStartGeneration
from tests.support.segments import topic_partition

pytestmark = pytest.mark.autojump

KEY = AuthorityKey(topic_partition("orders", 0), 0, -1)


def authority(given_at_s: float = 0.0) -> Authority:
    return Authority(1500, 1500, 0, 5, 1000, given_at_s)


async def test_a_log_start_that_moves_during_a_probe_ends_what_the_probe_says() -> None:
    generation = LogStartGeneration()
    authorities = Authorities(1.0, generation)
    assert authorities.get(KEY, trio.current_time()) is None
    generation.value += 1
    authorities.put(KEY, authority())
    assert authorities.get(KEY, trio.current_time()) is None


# --- the right ---


async def test_as_many_rights_are_remembered_as_probes_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.fetch.authorities.AUTHORITIES_MAX", 2)
    authorities = Authorities(1.0, LogStartGeneration())
    keys = [KEY._replace(partition=topic_partition("orders", number)) for number in range(3)]
    for key in keys:
        authorities.put(key, authority())
    assert [authorities.get(key, trio.current_time()) is not None for key in keys] == [False, True, True]
    assert [authorities.has_right(key.partition) for key in keys] == [False, True, True]
