"""A Spark session for a job, or one sentence that says why there can be none.

Spark's own answers to a wrong Java or to a missing package are stack traces, so both are looked at first. Spark runs
the Java of JAVA_HOME, else the first on PATH (its own `spark-class` does the same), and it must be 17 or 21. Where
`spark-submit` has started the JVM before us, that JVM is asked instead.

This module is imported without the extra `spark` too: it imports pyspark only when a session is wanted.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSIONS = (17, 21)
PACKAGES = ("pyspark", "pyarrow", "numpy")
"""What of the extra every job imports."""

SPARK_VERSION_MIN = 4

JAVA_ANSWER_S_MAX = 60.0
_JAVA_NEEDED = "Java 17 or 21 is needed"
_JAVA_ADVICE = "install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@21)"
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""What `spark-submit` leaves to the Python program that it runs."""


_WORKER_VARIABLE = "PYSPARK_PYTHON"
"""The Python of workers and executors."""


_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class SessionError(Exception):
    """There can be no Spark session here; the message says why, and what to do."""


def start_session(
    app_name: str, settings: Mapping[str, str] | None = None, *, defaults: Mapping[str, str] | None = None
) -> "SparkSession":
    """The session of this process, made if there is none.

    Args:
        settings: Spark's; they win over those that the session has.
        defaults: Spark's, too, for a session that is made; those of `settings` and of spark-submit win over them.

    Raises:
        SessionError: the extra is not installed, or Java is missing or of another version.
    """
    environ = os.environ
    if problems := missing_packages():
        raise SessionError("; ".join(problems))
    is_submitted = GATEWAY_VARIABLE in environ
    if not is_submitted and (problems := java_problems(environ)):
        raise SessionError("; ".join(problems))
    if not is_submitted and (settings or {}).get("spark.master", "local").startswith("local"):
        # Spark would run the first python3 on PATH, which knows nothing of a virtual environment. On other machines
        # ours need not exist.
        environ.setdefault(_WORKER_VARIABLE, sys.executable)

    from pyspark.sql import SparkSession

    submitted = _submitted_settings() if is_submitted else set()
    unset = {name: value for name, value in (defaults or {}).items() if name not in submitted}
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**unset, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if is_submitted:
        _check_running_java(session)
    return session


def register(session: "SparkSession") -> None:
    """From now on `format("tidegate")` is known to the session, for `read` and `readStream`.

    Two of Spark's settings are set where nobody has: `where` reaches the source (from 4.1 on; 4.0 knows of no such
    thing), and Python workers on this machine run this Python in place of the first python3 on PATH.

    Raises:
        RuntimeError: this Spark is older than 4.0.
    """
    if problems := version_problems(session.version):
        raise RuntimeError("; ".join(problems))
    from pyspark.sql.datasource import DataSourceReader

    from pipeline.data_source import TidegateDataSource

    given = session.conf.getAll
    if hasattr(DataSourceReader, "pushFilters") and _PUSHDOWN not in given:
        session.conf.set(_PUSHDOWN, "true")
    context = getattr(session, "sparkContext", None)  # Spark Connect has none
    if context is not None and context.master.startswith("local"):
        is_named = _WORKER_VARIABLE in os.environ or "spark.pyspark.python" in given
        context.pythonExec = context.pythonExec if is_named else sys.executable
    session.dataSource.register(TidegateDataSource)


def missing_packages() -> list[str]:
    """Return what of the extra cannot be imported or is too old, as a sentence; empty when all is there."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return [f"{' and '.join(missing)} cannot be imported: pip install 'tidegate[spark]'"]
    try:
        return version_problems(importlib.metadata.version("pyspark"))
    except importlib.metadata.PackageNotFoundError:
        return []  # some clusters have it without its metadata


def version_problems(spark_version: str) -> list[str]:
    """Return whether this Spark is too old for us, as a sentence."""
    if feature_version(spark_version) >= SPARK_VERSION_MIN:
        return []
    return [
        f"Spark {spark_version} knows no Python data sources, which came with {SPARK_VERSION_MIN}.0: read the topic by "
        "its Kafka source, .format('kafka') with kafka.bootstrap.servers at Tidegate's address"
    ]


def java_problems(environ: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the Java that Spark would start, as a sentence; empty when it will do."""
    home = environ.get("JAVA_HOME")
    if home:
        java = str(Path(home, "bin", "java"))
        remedy = "point JAVA_HOME at it"
    else:
        found = shutil.which("java", path=environ.get("PATH"))
        if found is None:
            return [f"{_JAVA_NEEDED}, and there is none on PATH (JAVA_HOME is not set): {_JAVA_ADVICE}"]
        java, remedy = found, "put it first on PATH"
    try:
        answer = subprocess.run(
            [java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=JAVA_ANSWER_S_MAX, check=False
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{_JAVA_NEEDED}, {java} cannot be run ({error}): {_JAVA_ADVICE}, and {remedy}"]
    version = re.search(r'version "([^"]*)"', answer)
    if version is None:
        return [f"{_JAVA_NEEDED}, {java} -version gave no version: {_JAVA_ADVICE}, and {remedy}"]
    number = feature_version(version.group(1))
    if number not in JAVA_VERSIONS:
        return [f"{_JAVA_NEEDED}, {java} is {number}: {_JAVA_ADVICE}, and {remedy}"]
    return []


def feature_version(version: str) -> int:
    """The number that people call a Java by: 17 of "17.0.15", 8 of "1.8.0_392", 22 of "22-ea"; 0 without one."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else 0


def _submitted_settings() -> set[str]:
    """Return what spark-submit's command line and Spark's own file set."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # until then a SparkConf knows nothing of them
    return {name for name, _ in SparkConf().getAll()}


def _check_running_java(session: "SparkSession") -> None:
    jvm = session.sparkContext._jvm
    if jvm is None:
        return
    version = str(jvm.java.lang.System.getProperty("java.version"))
    if feature_version(version) not in JAVA_VERSIONS:
        session.stop()
        raise SessionError(f"{_JAVA_NEEDED}, spark-submit runs {version}: {_JAVA_ADVICE}, and point JAVA_HOME at it")
