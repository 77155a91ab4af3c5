"""Ctrl-C that never leaves anything behind: the first one raises KeyboardInterrupt, later ones find it cleaning up.

    with Interrupts() as interrupts, ExitStack() as stack:
        try:
            with interrupts.held():
                stack.enter_context(something_that_starts_a_process())
            ...
        finally:
            interrupts.ignore()

- SIGTERM is the same as SIGINT.
- While `held`, a signal waits: between starting a process and knowing how to end it nothing may be raised.
- After the first signal, or `ignore`, signals do nothing: clean-up takes seconds and is not to be torn apart.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """For the main thread. The handlers that were there before are put back at the end."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_held = False
        self._is_waiting = False
        self._is_ignored = False

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals that come within are raised at the end. Not to be nested.

        Raises:
            KeyboardInterrupt: at the end of the block, if a signal came within.
        """
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._is_waiting:
                self._raise()

    def ignore(self) -> None:
        """From now on signals do nothing."""
        self._is_ignored = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._is_waiting = True
        else:
            self._raise()

    def _raise(self) -> None:
        if not self._is_ignored:
            self._is_ignored = True
            raise KeyboardInterrupt
