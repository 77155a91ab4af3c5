"""A local Spark as a process of our own: its settings, its files, and its end.

The JVM's output, with everything that Spark logs from INFO on, goes to a file, so that a test's own output stays
readable and a test can search the log. Whatever Spark writes is under one folder that the caller removes.
"""

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests.support.needs import ROOT, SPARK_JARS, TABLE_JARS
from tests.support.spark_cluster import QUICK_JAVA, local_settings

END_S_MAX = 30.0
SOCKET_S_MAX = 120
"""How long Spark's two halves wait for each other on a loaded machine; 15 s is the default."""

# The levels of two loggers, not of the root alone: pyspark's gateway is a shell to Spark, which would turn that down.
_LOG4J = """\
rootLogger.level = info
logger.spark.name = org.apache.spark
logger.spark.level = info
logger.kafka.name = org.apache.kafka
logger.kafka.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class RunningSpark:
    """A session and where its files are."""

    session: SparkSession
    folder: Path

    @property
    def driver_log(self) -> Path:
        """Driver and executors are one process here, so this is the log of all; Python workers write here too."""
        return self.folder / "driver.log"

    @property
    def event_log_dir(self) -> Path:
        return self.folder / "events"


@contextmanager
def running_spark(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[RunningSpark]:
    """Spark with two cores; `settings` win over the usual ones. At the end the JVM is gone."""
    for name in ("events", "local", "warehouse"):
        (folder / name).mkdir(parents=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    conf = SparkConf(loadDefaults=False).setAll([*{**_settings(folder), **(settings or {})}.items()])
    with (folder / "driver.log").open("wb") as log, _launch_environ():
        gateway = launch_gateway(  # type: ignore[no-untyped-call]  # pyspark left this one out
            conf, {"stdout": log, "stderr": subprocess.STDOUT}
        )
        try:
            context = SparkContext(conf=conf, gateway=gateway)
        except BaseException:
            _end(gateway)
            raise
    try:
        yield RunningSpark(SparkSession(context), folder)
    finally:
        context.stop()
        _end(gateway)


@contextmanager
def _launch_environ() -> Iterator[None]:
    """Set what Spark reads from the environment when it starts, and no other test's program should see."""
    wanted = {
        "PYSPARK_PYTHON": sys.executable,
        # Python workers unpickle our classes out of this checkout.
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in wanted.items():
            patch.setenv(name, value)
        yield


def _settings(folder: Path) -> dict[str, str]:
    tables = sorted(TABLE_JARS.glob("*.jar"))
    jars = ",".join(str(path) for path in [*sorted(SPARK_JARS.glob("*.jar")), *tables])
    return {
        **local_settings(folder),
        "spark.master": "local[2]",
        "spark.app.name": "tidegate-tests",
        "spark.jars": jars,
        "spark.driver.memory": "1g",
        # Ready sooner, at the cost of top speed.
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()} {QUICK_JAVA}"
        ),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stopTimeout": "60s",
        # It cannot be set later. Catalogs can, in a session of their own (tests/spark/test_table_sink.py).
        **({"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"} if tables else {}),
        # The context tells pyspark's half by an environment variable.
        "spark.python.authenticate.socketTimeout": f"{SOCKET_S_MAX}s",
    }


def _end(gateway: JavaGateway) -> None:
    """The JVM ends when its standard input does; pyspark alone would leave that to the end of this process."""
    process: subprocess.Popen[bytes] = gateway.proc
    with warnings.catch_warnings():
        # Sockets of threads that have ended, which nobody closes; not in the midst of another test.
        warnings.simplefilter("ignore", ResourceWarning)
        gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        gc.collect()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
