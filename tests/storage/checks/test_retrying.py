"""Asking again: how often, and how long between."""

import pytest

from storage.checks.retrying import ATTEMPTS_MAX, WAIT_S_MAX, ask
from storage.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError


class Store:
    """Fails as it is told, then answers 7."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waits: list[float] = []

    def answer(self) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return 7


def test_an_answer_at_once_needs_no_wait() -> None:
    store = Store()
    assert (ask(store.answer, store.waits.append), store.waits) == (7, [])


def test_waits_double() -> None:
    store = Store(*[RetriableRemoteStorageError("503")] * 3)
    assert ask(store.answer, store.waits.append) == 7
    assert store.waits == [0.5, 1.0, 2.0]


def test_the_store_may_ask_for_more_patience_but_not_for_any() -> None:
    store = Store(*[RetriableRemoteStorageError("503", retry_after_s=seconds) for seconds in (4.0, 3600.0)])
    assert ask(store.answer, store.waits.append) == 7
    assert store.waits == [4.0, WAIT_S_MAX]


def test_the_last_attempts_error_is_raised() -> None:
    store = Store(*[RetriableRemoteStorageError(str(number)) for number in range(ATTEMPTS_MAX)])
    with pytest.raises(RetriableRemoteStorageError, match=str(ATTEMPTS_MAX - 1)):
        ask(store.answer, store.waits.append)
    assert len(store.waits) == ATTEMPTS_MAX - 1


def test_other_errors_are_raised_at_once() -> None:
    store = Store(RemoteResourceNotFoundError("404"))
    with pytest.raises(RemoteResourceNotFoundError):
        ask(store.answer, store.waits.append)
    assert store.waits == []
