"""Waiting for what another process or thread does, with a deadline instead of a sleep of guessed length.

`wait_until` is for plain code, `until` for tasks that look at a thread's doing, `settled` for all of it to be over.
Real time passes in them, and none of a test's clock.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import trio
import trio.testing

WAIT_S_MAX = 90.0
POLL_S = 0.05

HANG_S_MAX = 120.0
"""What hangs ends by then: a limit for `trio.fail_after` that no slow machine reaches."""

THREADS_TURN_S = 0.0005

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


async def until(condition: Callable[[], object], what: str = "it") -> None:
    """Let tasks and threads run until it is true. No task sleeps meanwhile, so an autojump clock stands still.

    Raises:
        AssertionError: it never was.
    """
    give_up_at_s = time.monotonic() + HANG_S_MAX
    while not condition():
        assert time.monotonic() < give_up_at_s, f"{what} did not come true"
        _let_threads_run()
        await trio.lowlevel.checkpoint()


async def settled(limiter: trio.CapacityLimiter | None = None) -> None:
    """Return when no thread of the limiter, by default trio's own, has anything left to do, and every task waits.

    The thread's token comes back in trio's loop, together with what it found: then its task has run on, too.
    """
    threads = limiter or trio.to_thread.current_default_thread_limiter()
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not threads.borrowed_tokens:
            return
        await until(lambda: not threads.borrowed_tokens, "the threads' end")


def _let_threads_run() -> None:
    time.sleep(THREADS_TURN_S)
