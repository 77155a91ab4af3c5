"""Log lines of drivers and executors: from INFO on, to standard error, where Spark keeps what its processes say.

A program that has configured structlog itself is left alone.
"""

import logging
import sys

import structlog


def configure_logs() -> None:
    """Take effect in this process; a second call changes nothing."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event")),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Looked up for each logger: programs, and tests, put another stream in its place.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
