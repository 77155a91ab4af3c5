"""Asking the store again when its trouble may pass. Waits in this thread, a little longer each time."""

import threading
from collections.abc import Callable
from typing import TypeVar

from storage.errors import RetriableRemoteStorageError

ATTEMPTS_MAX = 5
FIRST_WAIT_S = 0.5
WAIT_S_MAX = 30.0

Answer = TypeVar("Answer")
Wait = Callable[[float], None]


def wait_in_thread(seconds: float) -> None:
    """Wait; nobody ends it early."""
    threading.Event().wait(seconds)


def ask(question: Callable[[], Answer], wait: Wait = wait_in_thread) -> Answer:
    """The question's answer, asked up to ATTEMPTS_MAX times.

    Raises:
        RetriableRemoteStorageError: the last attempt's.
        RemoteStorageError: any other, at once.
    """
    wait_s = FIRST_WAIT_S
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return question()
        except RetriableRemoteStorageError as error:
            wait(min(max(wait_s, error.retry_after_s or 0.0), WAIT_S_MAX))
            wait_s *= 2
    return question()
