"""Logs: key-values, one line per event, on standard error (`tidegate.log_lines`), as JSON or for a console.

Rules, held for structlog and for the standard library's logging alike (storage and libraries use the latter):
1. One event is one line, whatever a topic name or an error message holds: line breaks are escaped.
2. No payload: bytes are shown as their length.
3. Secrets are masked by the name of their key, at any depth of a mapping.
4. A value is cut at `VALUE_CHARS_MAX` characters, a list or mapping at `ENTRIES_MAX` entries.
5. An exception is its type and message; the stack trace is given at level debug only.
6. A line that is equal to an earlier one but for its time is left out within REPEAT_S of that. The next one that is
   written has the number of those left out, `repeated`.

The last warnings and errors are kept, as they were written, for the status page (`recent_errors`).

Libraries' loggers pass from WARNING on, whatever the level of ours.
"""

import json
import logging
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from itertools import islice
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from storage.bounded_map import BoundedMap
from storage.config.masking import HIDDEN, sounds_secret
from storage.wall_clock import wall_clock_ms
from tidegate.config.model import LogFormat
from tidegate.log_lines import STANDARD_ERROR, StandardError
from tidegate.status.model import ErrorStatus

VALUE_CHARS_MAX = 2000
"""Longer than any message of ours, short enough for one line of any log store."""

DEPTH_MAX = 4
"""Nesting that is walked for secrets; deeper values are left out rather than shown unmasked."""

ENTRIES_MAX = 50
"""Entries of a list or mapping that are shown."""

_STRUCTLOG_KEYS = ("_record", "_from_structlog")
"""The record on its way to the formatter, removed before a line is made."""

REPEAT_S = 1.0

LINES_COMPARED_MAX = 1000
"""What was written last; an older line may come again at once."""

RECENT_MAX = 50
RECENT_CHARS_MAX = 500
"""For one of the last warnings and errors."""

_RECENT_LEVELS = ("warning", "error", "critical")
_UNCOMPARED_KEYS = ("timestamp", *_STRUCTLOG_KEYS)
_HEAD_KEYS = ("timestamp", "level", "logger", "event", "worker", "stack", *_STRUCTLOG_KEYS)
_recent: deque[tuple[int, ErrorStatus]] = deque(maxlen=RECENT_MAX)

OUR_PACKAGES = ("protocol", "storage", "proxy", "metrics", "pipeline", "standalone", "table", "tidegate")


def configure_logs(
    level: str = "info",
    log_format: LogFormat = LogFormat.CONSOLE,
    stream: TextIO | None = None,
    *,
    worker: str | None = None,
) -> None:
    """Set up structlog and the standard library's logging for the process; a later call replaces an earlier.

    Args:
        level: debug, info, warning or error: for our packages.
        stream: standard error when absent.
        worker: which one this process is, in each line; None: it is no worker.

    Raises:
        ValueError: no such level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"no such log level: {level!r}")
    shared: list[Processor] = [
        *([] if worker is None else [_Worker(worker)]),
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Exceptions(with_stack=number <= logging.DEBUG),
        clean,
        LeftOut(),
        _remember,
    ]
    _recent.clear()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a module's logger made before this call would keep structlog's defaults
    )
    handler = _Handler(STANDARD_ERROR if stream is None else stream)
    handler.setFormatter(_formatter(shared, log_format))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(number)


def recent_errors(now_ms: int) -> list[ErrorStatus]:
    """The last RECENT_MAX warnings and errors, the latest first; `now_ms` since 1970. From any thread."""
    return [{**error, "age_ms": max(0, now_ms - at_ms)} for at_ms, error in reversed(_recent.copy())]


def _remember(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if event.get("level") in _RECENT_LEVELS:
        detail = " ".join(f"{key}={_quoted(value)}" for key, value in event.items() if key not in _HEAD_KEYS)
        error = ErrorStatus(
            worker=None,
            time=str(event.get("timestamp", "")),
            age_ms=0,
            level=str(event["level"]),
            event=str(event.get("event", ""))[:RECENT_CHARS_MAX],
            detail=detail[:RECENT_CHARS_MAX],
        )
        _recent.append((wall_clock_ms(), error))
    return event


def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask secrets, replace bytes by their length, cut what is long: rules 2 to 4."""
    return {key: _clean_value(key, value, DEPTH_MAX) for key, value in event.items()}


def render_json(_logger: WrappedLogger, _method: str, event: MutableMapping[str, object]) -> str:
    """One JSON object, time, level and event first, so that they can be read; json escapes line breaks."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return json.dumps({**head, **event}, default=str)


def render_console(_logger: WrappedLogger, _method: str, event: MutableMapping[str, object]) -> str:
    """`time LEVEL event key=value …`; a value with blanks or anything unprintable is quoted and escaped."""
    at, level, logger = (str(event.pop(key, "")) for key in ("timestamp", "level", "logger"))
    text = str(event.pop("event", ""))
    head = [at, level.upper(), text if text.isprintable() else json.dumps(text)]
    pairs = [f"{_quoted(key)}={_quoted(value)}" for key, value in event.items()]
    return " ".join([*head, *pairs, f"logger={_quoted(logger)}"] if logger else [*head, *pairs])


def _formatter(shared: list[Processor], log_format: LogFormat) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            render_json if log_format is LogFormat.JSON else render_console,
        ],
    )


class LeftOut:
    """Rule 6, for all loggers together and from any thread.

    Args:
        now_s: a clock that does not go back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._written: BoundedMap[int, tuple[float, int]] = BoundedMap(LINES_COMPARED_MAX)
        """By a line's hash: when it was written last, and how often it was left out since."""

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        told = tuple((key, str(value)) for key, value in event.items() if key not in _UNCOMPARED_KEYS)
        line, now_s = hash(told), self._now_s()
        with self._lock:
            written_s, left_out = self._written.get(line, (-math.inf, 0))
            is_repeat = now_s - written_s < REPEAT_S
            self._written[line] = (written_s, left_out + 1) if is_repeat else (now_s, 0)
        if is_repeat:
            raise structlog.DropEvent
        if left_out:
            event["repeated"] = left_out
        return event


class _Handler(logging.StreamHandler[StandardError | TextIO]):
    """Writes lines, but for those of other libraries that are left out; structlog drops our own earlier."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(structlog.DropEvent):
            super().emit(record)


class _Worker:
    """Says which worker's line it is."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["worker"] = self._worker
        return event


class _Exceptions:
    """Turns `exc_info` into `error`, and into `stack` at level debug: rule 5."""

    def __init__(self, *, with_stack: bool) -> None:
        self._with_stack = with_stack

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        error = _exception_of(event.pop("exc_info", None))
        if error is not None:
            event.setdefault("error", f"{type(error).__name__}: {error}")
            if self._with_stack:
                event["stack"] = "".join(traceback.format_exception(error))
        return event


def _exception_of(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
        return error if isinstance(error, BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def _clean_value(key: str, value: object, depth: int) -> object:
    if key in _STRUCTLOG_KEYS:
        return value
    if sounds_secret(key) and value is not None:
        return HIDDEN
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        if depth == 0:
            return f"<{len(value)} entries>"
        return {str(name): _clean_value(str(name), inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        if depth == 0:
            return f"<{len(value)} entries>"
        return [_clean_value("", inner, depth - 1) for inner in islice(value, ENTRIES_MAX)]
    text = str(value)
    limit = VALUE_CHARS_MAX * 10 if key == "stack" else VALUE_CHARS_MAX
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    plain = text.isprintable() and text and not any(character in ' "=' for character in text)
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
