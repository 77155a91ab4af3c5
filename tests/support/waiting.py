"""Waiting for what another process does, with a deadline instead of a sleep of guessed length."""

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S_MAX = 30.0
POLL_S = 0.05

Seen = TypeVar("Seen")


def wait_until(look: Callable[[], Seen], what: str, *, timeout_s: float = WAIT_S_MAX) -> Seen:
    """Look until it is true, and give what was seen.

    Raises:
        AssertionError: it never was; with `what` and what was seen last.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}; last seen: {seen!r}"
        time.sleep(POLL_S)
    return seen
