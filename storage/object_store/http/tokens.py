"""The token that a store's GETs show (GCS, Azure's default chain): asked for by one thread, before it ends.

Rules:
1. While a token is good, GETs go on with it: one of them asks for the next, and the others do not wait.
2. If that fails, the token is still good. It is asked for again RETRY_S later, and is an error only when it has ended.
3. Without a good token all GETs wait for one question. If it fails, it fails for all that waited.
4. A refused token is renewed once, however many GETs it was refused to.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

RENEWED_BEFORE_S = 225.0
"""A token is renewed so long before it ends. Earlier, Google's metadata server and Azure's client give it again."""

RETRY_S = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """`ends_s`: seconds since the epoch; infinite where nobody says."""

    text: str = field(repr=False)
    ends_s: float


class Tokens:
    """The token of each moment. Thread-safe.

    Args:
        ask: asks for a token that is good now; may block.
    """

    def __init__(self, ask: Callable[[], Token], *, now_s: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._now_s = now_s
        self._kept: Token | None = None
        self._questions = 0
        self._failure: Exception | None = None
        self._next_question_s = 0.0
        self._lock = threading.Lock()

    def current(self) -> Token:
        """A token that has not ended.

        Raises:
            Exception: whatever asking for one raises.
        """
        kept, now_s = self._kept, self._now_s()
        if kept is None or kept.ends_s <= now_s:
            return self._wait_for_one()
        if kept.ends_s - now_s < RENEWED_BEFORE_S and now_s >= self._next_question_s:
            self._renew_early(now_s)
        return self._kept or kept

    def forget(self, refused: Token) -> None:
        """The store does not take this one, whatever its end."""
        with self._lock:
            if self._kept is refused:
                self._kept = None

    def _wait_for_one(self) -> Token:
        questions = self._questions
        with self._lock:
            kept = self._kept
            if kept is not None and kept.ends_s > self._now_s():
                return kept
            if self._questions != questions and self._failure is not None:
                raise self._failure.with_traceback(None)
            return self._question()

    def _renew_early(self, now_s: float) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._next_question_s = now_s + RETRY_S
            with suppress(Exception):  # the old token is good, and the next question may be answered
                self._question()
        finally:
            self._lock.release()

    def _question(self) -> Token:
        """Ask; the caller holds the lock."""
        self._failure = None
        try:
            found = self._kept = self._ask()
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._questions += 1
        return found
