"""The simulated link: what its model promises, on links and loads of all kinds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_link import (
    BUFFER_BYTES,
    LATE,
    SILENCE_S_MAX,
    SLOW,
    STALLED,
    Connection,
    LinkProfile,
    SimulatedLink,
)

MB = 1_000_000
PROFILE = LinkProfile(first_byte_s=0.1, connection_bytes_per_s=10 * MB, link_bytes_per_s=25 * MB)


def read_whole(link: SimulatedLink, size_bytes: int) -> Connection:
    connection = link.open(size_bytes)
    connection.want(size_bytes, link.now_s)
    return connection


def test_bodies_take_their_first_byte_their_rate_and_their_share() -> None:
    for count, done_s in ((1, 0.6), (5, 1.1)):
        link = SimulatedLink(PROFILE)
        bodies = [read_whole(link, 5 * MB) for _ in range(count)]
        while not all(body.has_wanted for body in bodies):
            link.advance(link.next_event_s())
        assert link.now_s == pytest.approx(done_s)
        assert link.open_max == count


def test_a_late_answer_begins_late() -> None:
    link = SimulatedLink(PROFILE)
    late = link.open(MB, LATE)
    link.advance(1.999)
    assert not late.has_begun
    link.advance(2.0)
    assert late.has_begun


def test_a_body_flows_no_further_ahead_of_its_reader_than_the_buffer() -> None:
    link = SimulatedLink(PROFILE)
    connection = link.open(10 * MB)
    link.advance(5.0)
    assert connection.received_bytes == BUFFER_BYTES
    connection.want(BUFFER_BYTES, link.now_s)
    assert connection.has_wanted, "what is buffered is there at once"
    connection.want(MB, link.now_s)
    link.advance(10.0)
    assert connection.received_bytes == MB + BUFFER_BYTES
    assert link.next_event_s() == math.inf


def test_a_stalled_body_is_given_up_after_the_silence_allowed() -> None:
    link = SimulatedLink(PROFILE)
    connection = link.open(10 * MB, STALLED)
    connection.want(10 * MB, 0.0)
    stalled_s = 0.1 + 0.15
    link.advance(stalled_s + SILENCE_S_MAX - 0.001)
    assert (connection.received_bytes, connection.is_silent) == (1.5 * MB, False)
    link.advance(stalled_s + SILENCE_S_MAX)
    assert connection.is_silent
    assert link.next_event_s() == math.inf


def test_nobody_is_silent_whom_nobody_reads() -> None:
    link = SimulatedLink(PROFILE)
    connection = link.open(10 * MB)
    link.advance(100.0)
    connection.want(MB, link.now_s)
    link.advance(100.05)
    assert not connection.is_silent


def test_a_closed_connection_brings_nothing_more() -> None:
    link = SimulatedLink(PROFILE)
    closed, other = read_whole(link, 9 * MB), read_whole(link, 9 * MB)
    link.advance(0.2)
    received_bytes = closed.received_bytes
    closed.is_closed = True
    link.advance(10.0)
    assert (other.has_wanted, closed.received_bytes) == (True, received_bytes)
    assert received_bytes == pytest.approx(MB)


EVENTS_MAX = 1000
"""Of a dozen bodies: each begins, ends, and may stop for its buffer."""

loads = st.lists(st.tuples(st.floats(0, 2), st.integers(1, 30 * MB), st.booleans()), min_size=1, max_size=12)
profiles = st.builds(
    LinkProfile,
    first_byte_s=st.floats(0, 0.5),
    connection_bytes_per_s=st.floats(1 * MB, 100 * MB),
    link_bytes_per_s=st.floats(1 * MB, 500 * MB),
)


@given(profiles, loads)
def test_the_link_conserves_work_and_breaks_no_limit(profile: LinkProfile, load: list[tuple[float, int, bool]]) -> None:
    """Given any load, then at every event no connection is above its rate, nor all above the link's; the link is full,
    or each that flows has its own rate; and every body ends with all its bytes."""
    link, bodies = SimulatedLink(profile), list[Connection]()
    for sent_s, size_bytes, is_slow in sorted(load):
        while link.next_event_s() < sent_s:
            link.advance(link.next_event_s())
            check_rates(link)
        link.advance(max(sent_s, link.now_s))
        bodies.append(link.open(size_bytes, SLOW) if is_slow else link.open(size_bytes))
        bodies[-1].want(size_bytes, link.now_s)
    for _ in range(EVENTS_MAX):
        if math.isinf(next_s := link.next_event_s()):
            break
        before = {body: body.received_bytes for body in bodies}
        began_s = link.now_s
        link.advance(next_s)
        check_rates(link)
        for body in bodies:
            limit_bytes = body.rate_max * (link.now_s - began_s)
            assert body.received_bytes - before[body] <= limit_bytes * (1 + 1e-6) + 1
    assert [body.received_bytes for body in bodies] == [body.size_bytes for body in bodies]


def check_rates(link: SimulatedLink) -> None:
    rates = link.rates()
    all_bytes_per_s = sum(rates.values())
    link_bytes_per_s = link.profile.link_bytes_per_s
    assert all_bytes_per_s <= link_bytes_per_s * (1 + 1e-9)
    assert all(0 < rate <= body.rate_max for body, rate in rates.items())
    wanted_bytes_per_s = sum(body.rate_max for body in rates)
    assert all_bytes_per_s == pytest.approx(min(wanted_bytes_per_s, link_bytes_per_s))
