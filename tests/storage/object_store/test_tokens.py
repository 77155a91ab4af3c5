"""Tokens of many GETs at once, in a time of the test's own: who asks, who waits, and what a failure is to whom."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from storage.object_store.http.tokens import RENEWED_BEFORE_S, RETRY_S, Token, Tokens
from tests.support.waiting import wait_until

LIFE_S = 3600.0
THREADS = 8


@dataclass
class Issuer:
    """Gives tokens by number, each good for LIFE_S, while nothing is wrong; waits where a test says so."""

    now_s: float = 0.0
    given: int = 0
    failure: Exception | None = None
    asked: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def ask(self) -> Token:
        self.asked += 1
        assert self.gate.wait(100)
        if self.failure is not None:
            raise self.failure
        self.given += 1
        return Token(f"token-{self.given}", self.now_s + LIFE_S)


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def tokens(issuer: Issuer) -> Tokens:
    return Tokens(issuer.ask, now_s=lambda: issuer.now_s)


@pytest.fixture
def threads(issuer: Issuer) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool
        issuer.gate.set()


def all_at_once(issuer: Issuer, tokens: Tokens, threads: ThreadPoolExecutor) -> list[Future[Token]]:
    """Every thread asks while the first one's question is open."""
    issuer.gate.clear()
    began = threading.Semaphore(0)

    def current() -> Token:
        began.release()
        return tokens.current()

    asked = issuer.asked
    found = [threads.submit(current)]
    wait_until(lambda: issuer.asked > asked, "somebody asks")
    found += [threads.submit(current) for _ in range(THREADS - 1)]
    for _ in range(THREADS):
        assert began.acquire(timeout=100)
    return found


def test_one_thread_asks_and_all_get_the_first_token(
    issuer: Issuer, tokens: Tokens, threads: ThreadPoolExecutor
) -> None:
    found = all_at_once(issuer, tokens, threads)
    issuer.gate.set()
    assert {one.result(100).text for one in found} == {"token-1"}
    assert issuer.asked == 1


def test_while_a_token_is_good_nobody_waits_for_the_next(
    issuer: Issuer, tokens: Tokens, threads: ThreadPoolExecutor
) -> None:
    """Google's own client lets all GETs wait for a token server that is silent, though their token is good."""
    tokens.current()
    issuer.now_s = LIFE_S - RENEWED_BEFORE_S + 1
    first, *others = all_at_once(issuer, tokens, threads)
    assert {one.result(100).text for one in others} == {"token-1"}
    issuer.gate.set()
    assert first.result(100).text == tokens.current().text == "token-2"
    assert issuer.asked == 2


def test_a_failure_is_nobodys_while_the_token_is_good(issuer: Issuer, tokens: Tokens) -> None:
    tokens.current()
    issuer.failure = RuntimeError("no token today")
    issuer.now_s = LIFE_S - RENEWED_BEFORE_S + 1
    for _ in range(3):
        assert tokens.current().text == "token-1"
    assert issuer.asked == 2, "not with each GET"
    issuer.now_s += RETRY_S
    assert tokens.current().text == "token-1"
    assert issuer.asked == 3
    issuer.now_s = LIFE_S
    with pytest.raises(RuntimeError, match="no token today"):
        tokens.current()
    issuer.failure = None
    assert tokens.current().text == "token-2"


def test_a_failure_is_that_of_all_who_waited_for_it(
    issuer: Issuer, tokens: Tokens, threads: ThreadPoolExecutor
) -> None:
    """Or each would ask in its turn, and the last wait for as many time-outs as there are GETs."""
    issuer.failure = RuntimeError("no token today")
    found = all_at_once(issuer, tokens, threads)
    waiting = [one for one in found if not one.done()]
    issuer.gate.set()
    assert {str(one.exception(100)) for one in waiting} == {"no token today"}
    # Between its first word and its place in the line a thread may be late.
    assert issuer.asked < THREADS


def test_a_token_that_was_refused_to_many_is_asked_for_anew_once(issuer: Issuer, tokens: Tokens) -> None:
    refused = tokens.current()
    for _ in range(THREADS):
        tokens.forget(refused)
        assert tokens.current().text == "token-2"
    assert issuer.asked == 2
