"""A failure's own sentence: first in what Spark says of it, and found again in that by the code that tells the user.

Spark hands over what our code raises in a Python worker as a text: the traceback, whose last line is the sentence, in a
Java exception or two, once for each attempt. A worker leaves the traceback out if its environment says so, which is a
setting of Spark's (`spark.sql.execution.pyspark.udf.hideTraceback.enabled`); it ends after what it has raised, so this
is of that one failure. Then the traceback goes behind the sentence, as a note. A Spark that knows nothing of this shows
both the other way round.

    [PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions:
    pipeline.failures.TidegateError: topics that were named do not exist: ordres

    Traceback (most recent call last): …

`cause_of` takes the sentence out of such a text, and of a failure that is none of ours the most telling line.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

_OURS = ("pipeline", "protocol", "storage", "table", "tidegate")
"""Packages whose errors are sentences; those of others say little without their type's name."""
_WORKERS = "pyspark."
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

_SENTENCE = re.compile(
    r"\bTidegateError: (?P<told>.*?)"
    # What follows it: a traceback, Java's stack, or another message of Spark's.
    r"(?=\n\s*\n|\n?Traceback \(|\n\s+at |\nDriver stacktrace|\nCaused by: |\s*\Z)",
    re.DOTALL,
)
_CAUSED_BY = re.compile(r"^Caused by: (?P<told>\S.*)$", re.MULTILINE)
_OF_STAGE = re.compile(r"most recent failure: Lost task [^\n]*?\([^\n]*?executor [^\s)]+\): (?P<told>.*)")
_OF_EXECUTOR = re.compile(r"(?P<told>ExecutorLostFailure \(.*)")
_WORKERS_PYTHON = "the workers' Python lacks it; PYSPARK_PYTHON, or spark.pyspark.python, names another"
_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^(?:[a-z_][\w$]*\.)+(?=[A-Z][\w$]*(?::|$))")
"""The package before a type's name."""
_SPARKS_OWN = ("SparkException: Task failed", "SparkException: Job aborted", "SparkException: Exception thrown in")
"""They say that something failed, and not what."""


class TidegateError(Exception):
    """What our code raises in one of Spark's Python workers: the sentence, and what was raised as a note."""


@contextmanager
def sentence_first() -> Iterator[None]:
    """Also a decorator. In one of Spark's Python workers, what is raised inside becomes a TidegateError."""
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        if not _is_worker():
            raise
        told = TidegateError(sentence_of(error))
        told.add_note("\n" + "".join(traceback.format_exception(error)))
        os.environ[_HIDE_TRACEBACK] = "1"
        raise told from None


def sentence_of(error: BaseException) -> str:
    """Return what an exception says; with its type's name, unless it is one of ours."""
    told, kind = str(error).strip(), type(error)
    if told and kind.__module__.partition(".")[0] in _OURS:
        return told
    return f"{kind.__name__}: {told}" if told else kind.__name__


def cause_of(told: str) -> str:
    """The cause of a failure, as one line, out of all that Spark says of it."""
    if own := _SENTENCE.search(told):
        return _one_line(own["told"])
    at = told.rfind(_TRACEBACK)
    if at >= 0:
        lines = told[at + len(_TRACEBACK) :].splitlines()
        raised = next((line for line in lines if line.strip() and not line.startswith(" ")), None)
        if raised is not None:
            hint = f": {_WORKERS_PYTHON}" if raised.rstrip().endswith("Error: No module named 'pyarrow'") else ""
            return _one_line(_PREFIX.sub("", raised)) + hint
    if lost := _OF_EXECUTOR.search(told):
        return _one_line(lost["told"])
    causes = [_PREFIX.sub("", cause["told"]) for cause in _CAUSED_BY.finditer(told)]
    telling = [cause for cause in causes if not cause.startswith(_SPARKS_OWN)]
    if telling:
        return _one_line(telling[-1])
    if stage := _OF_STAGE.search(told):
        return _one_line(_PREFIX.sub("", stage["told"]))
    return _one_line(next((line for line in told.splitlines() if line.strip()), "Spark does not say why"))


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith(_WORKERS)


def _one_line(told: str) -> str:
    """Several problems have a line each."""
    return "; ".join(line.strip() for line in told.splitlines() if line.strip())
