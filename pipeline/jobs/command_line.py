"""The command line of the jobs: `tidegate spark backfill|audit …`, the same under spark-submit.

- Exit codes: 0 done, 1 found something wrong or could not be finished, 2 usage, configuration, or no Spark here
  (pyspark or Java is missing); 130 and 143 after Ctrl-C and SIGTERM. What is done stays done: the same command goes on.
- Only the chosen job's modules are imported, and Spark is started when command line and configuration were found right.
- Under spark-submit the session has the settings of its command line; those given here win over them.
- Results go to standard output, progress and troubles to standard error. spark-submit puts both of a Python program's
  outputs into its own first; so the JVM says what ends a job there, on the standard error that the user sees.
- The last line of a job that failed is its cause, as one sentence (pipeline.failures), and nothing of Spark's follows
  it. What Spark logs of each failed attempt is held back, with `--verbose` it stands above.
- The job has a thread of its own, and the main thread waits for it: a signal in the midst of a call to the JVM would
  leave a connection on which nothing can be said any more, not even that jobs are to be cancelled.
"""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

from pipeline.jobs.arguments import parser
from pipeline.session import GATEWAY_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from pipeline.jobs.job_context import RunJob
    from storage.config.tier_client import TierClientConfig

INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM

_SETTINGS: Final[Mapping[str, str]] = {
    # It would write over our own progress.
    "spark.ui.showConsoleProgress": "false"
}
_FIXED_SETTINGS: Final[Mapping[str, str]] = {
    # Dates of records, and the folders that are named after them, are the same on every machine.
    "spark.sql.session.timeZone": "UTC"
}
CANCEL_S: Final = 1.0
CANCELS_MAX: Final = 30
FILE_COLUMNS: Final = 180
_QUIET: Final[Mapping[str, str]] = {"spark.log.level": "WARN"}
"""Unless --verbose, or a level that the user sets: spark-submit alone would tell from INFO on."""
_STACKS: Final = (
    *("scheduler.TaskSetManager", "executor.Executor", "util.Utils"),
    *("sql.execution.datasources.FileFormatWriter", "sql.execution.datasources.v2.AppendDataExec"),
)
"""Spark's loggers that tell of a failed task or write with all of its stacks, each attempt again."""


class _TerminatedError(BaseException):
    """SIGTERM has come."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and return its exit code; argparse itself exits with 2 on a wrong command line, 0 on --help."""
    parsed = parser().parse_args(arguments)
    try:
        with _sigterm_raises():
            code, told = _main(parsed)
    except KeyboardInterrupt:
        code, told = INTERRUPTED, ["interrupted; the same command goes on"]
    except _TerminatedError:
        code, told = TERMINATED, ["terminated; the same command goes on"]
    # When the session has ended, which Spark says in its log.
    _say_last(told)
    return code


def _main(arguments: argparse.Namespace) -> tuple[int, list[str]]:
    """Return the exit code, and what to say last."""
    from pipeline.jobs.job_context import USAGE, UsageError
    from pipeline.session import SessionError, missing_packages
    from storage.config import ConfigError
    from storage.errors import StorageConfigError
    from table.logs import configure_logs

    configure_logs()
    try:
        if problems := missing_packages():
            raise UsageError(*problems)
        from table.driver import load_config
        from table.planning.request import OptionsError

        try:
            job: RunJob = importlib.import_module(f"pipeline.jobs.{arguments.job}_command").prepare(arguments)
        except OptionsError as error:
            raise UsageError(*error.problems) from error
        config = load_config(arguments.config, os.environ)
        for warning in config.warnings:
            _say(f"warning: {warning}")
        with _session(arguments) as spark:
            told: list[str] = []
            code = _interruptible(
                spark, lambda cancelled: _run(job, spark, config, cancelled, told, is_verbose=arguments.verbose)
            )
        return code, told
    except (ConfigError, UsageError) as error:
        return USAGE, list(error.problems)
    except (SessionError, StorageConfigError) as error:
        return USAGE, [str(error)]


def _interruptible(spark: "SparkSession", run: Callable[[threading.Event], int]) -> int:
    """Return what `run` returns or raises. When a signal comes, Spark's jobs are cancelled, and `run` gets the
    event."""
    result: Future[int] = Future()
    cancelled = threading.Event()

    def work() -> None:
        try:
            result.set_result(run(cancelled))
        except BaseException as error:  # raised in the main thread
            result.set_exception(error)

    try:  # a signal may come before `start` returns, when the job has already begun
        threading.Thread(target=work, name="job", daemon=True).start()
        return result.result()
    except (KeyboardInterrupt, _TerminatedError):
        cancelled.set()
        for _ in range(CANCELS_MAX):
            # Again and again: it may have been between two jobs.
            spark.sparkContext.cancelAllJobs()
            if wait([result], CANCEL_S).done:
                break
        raise


def _run(
    job: "RunJob",
    spark: "SparkSession",
    config: "TierClientConfig",
    cancelled: threading.Event,
    told: list[str],
    *,
    is_verbose: bool,
) -> int:
    """Return the exit code; `told` grows by what to say last."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from rich.console import Console

    from pipeline.failures import cause_of
    from pipeline.jobs.job_context import FOUND_WRONG, JobContext, JobError
    from pipeline.session import register
    from protocol.client.errors import UpstreamError
    from storage.errors import RemoteStorageError, StorageConfigError
    from table.planning.offset_bounds import OffsetBoundsError
    from table.planning.tier_view import TierViewError

    register(spark)
    context = JobContext(spark=spark, config=config, output=_console(), messages=Console(stderr=True))
    try:
        return job(context)
    except StorageConfigError:
        raise
    except (
        UpstreamError,
        JobError,
        OffsetBoundsError,
        RemoteStorageError,
        TierViewError,
        OSError,
        ValueError,
    ) as error:
        told += [] if cancelled.is_set() else str(error).splitlines()
    except (PySparkException, Py4JError) as error:
        if not cancelled.is_set():
            whole = f"{error}\n{getattr(error, '_stackTrace', '')}"
            _say(
                "it failed in Spark: "
                + (whole if is_verbose else "--verbose shows its log and stacks; executors' logs have them too")
            )
            told.append(cause_of(whole))
    return FOUND_WRONG


@contextmanager
def _session(arguments: argparse.Namespace) -> Iterator["SparkSession"]:
    """The session that is there already, or one that ends with the job."""
    from pyspark.sql import SparkSession

    from pipeline.session import start_session

    settings = {**_SETTINGS, **dict(arguments.conf), **_FIXED_SETTINGS}
    if arguments.master is not None:
        settings["spark.master"] = arguments.master
    is_ours = SparkSession.getActiveSession() is None
    spark = start_session(f"tidegate {arguments.job}", settings, defaults={} if arguments.verbose else _QUIET)
    # The log of a session that was there is whose it is.
    if is_ours and not arguments.verbose:
        _turn_down(spark, *(f"org.apache.spark.{name}" for name in _STACKS))
    try:
        yield spark
    finally:
        if is_ours:
            _turn_down(spark)  # what ends the job is said behind it
            spark.stop()


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # where it cannot be set
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _turn_down(spark: "SparkSession", *names: str) -> None:
    """Log nothing more: these loggers, or without names all of them."""
    # Log4j's own, since Spark sets the level of all together only.
    log4j = cast(Any, spark.sparkContext._jvm).org.apache.logging.log4j
    if not names:
        spark.sparkContext.setLogLevel("OFF")
    for name in names:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _console() -> "Console":
    from rich.console import Console

    # Elsewhere than on a terminal it would be 80 columns, too few for our tables.
    return Console() if sys.stdout.isatty() else Console(width=FILE_COLUMNS)


def _say(text: str) -> None:
    print(f"tidegate: {text}", file=sys.stderr)


def _say_last(lines: Sequence[str]) -> None:
    if not lines:
        return
    if GATEWAY_VARIABLE not in os.environ:
        for line in lines:
            _say(line)
        return
    from pyspark import SparkContext

    sys.stdout.flush()
    sys.stderr.flush()
    SparkContext._ensure_initialized()  # not so far, if no session was wanted
    jvm = cast(Any, SparkContext._jvm)
    # Else Spark would say at its end which folders it deletes.
    jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(jvm.org.apache.logging.log4j.Level.OFF)
    for line in lines:
        jvm.java.lang.System.err.println(f"tidegate: {line}")
