"""The line that a user is shown, out of what Spark says of a failure; texts are as Spark 4.0 gives them."""

import subprocess
import sys

import pytest

from pipeline.failures import cause_of
from tests.support.for_each import for_each

OF_A_STAGE = (
    "An error occurred while calling o69.parquet.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most "
    "recent failure: Lost task 1.3 in stage 0.0 (TID 7) (10.0.0.7 executor 0): {}\n"
    "\tat org.apache.spark.scheduler.Task.run(Task.scala:141)\n"
    "\nDriver stacktrace:\n"
    "\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2935)\n"
    "Caused by: org.apache.spark.SparkException: Task failed while writing rows.\n\t... 1 more\n"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\n'
ENDED = (
    "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: Container killed by YARN for "
    "exceeding physical memory limits."
)


@for_each(
    "told, cause",
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source reader: "
            "tidegate.pipeline.failures.TidegateError: one is missing\nanother, too\n\n{TRACEBACK}X: y\n "
            "SQLSTATE: 38000",
            "one is missing; another, too",
        ),
        (
            OF_A_STAGE.format(
                "org.apache.spark.api.python.PythonException: pipeline.failures.TidegateError: segment a-0: "
                f"batch at 9: wrong CRC\n\n{TRACEBACK}storage.errors.CorruptObjectError: segment a-0"
            ),
            "segment a-0: batch at 9: wrong CRC",
        ),
        (OF_A_STAGE.format("x.PythonException: a.TidegateError: wrong CRC"), "wrong CRC"),
        (OF_A_STAGE.format(f"x.PythonException: {TRACEBACK}builtins.MemoryError: no\n\n"), "MemoryError: no"),
        (
            f"[PYTHON_DATA_SOURCE_ERROR] x: {TRACEBACK}ModuleNotFoundError: No module named 'pyarrow'\n",
            "ModuleNotFoundError: No module named 'pyarrow': the workers' Python lacks it; PYSPARK_PYTHON, or "
            "spark.pyspark.python, names another",
        ),
        (OF_A_STAGE.format(ENDED), ENDED),
        (OF_A_STAGE.format("java.io.IOException: No space left on device"), "IOException: No space left on device"),
        (
            "o1: org.apache.spark.SparkException: Job aborted.\n\tat a.b(C.scala:1)\n"
            "Caused by: java.nio.file.AccessDeniedException: s3a://lake/orders\n\tat a.b(C.scala:1)\n",
            "AccessDeniedException: s3a://lake/orders",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: a.\n'Project\n", "[PATH_NOT_FOUND] Path does not exist: a."),
        ("", "Spark does not say why"),
    ],
)
def test_the_cause_is_found_in_what_spark_says(told: str, cause: str) -> None:
    assert cause_of(told) == cause


WORKER = """
import sys
from types import SimpleNamespace
from pyspark.util import handle_worker_exception
sys.modules["__main__"].__spec__ = SimpleNamespace(name="pyspark.daemon")
from pipeline.failures import sentence_first
from table.planning.request import OptionsError
try:
    with sentence_first():
        raise OptionsError(["config is missing"])
except Exception as error:
    handle_worker_exception(error, sys.stdout.buffer)
"""


@pytest.mark.needs("spark")
def test_in_a_worker_the_sentence_stands_before_the_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, check=True)
    told = done.stdout[8:].decode()  # behind a number and a length
    assert told.startswith("pipeline.failures.TidegateError: config is missing\n\nTraceback (most recent call last):\n")
    assert told.rstrip().endswith("table.planning.request.OptionsError: config is missing")
    assert cause_of(told) == "config is missing"
