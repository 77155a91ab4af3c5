"""A standalone Spark, a master and two workers, and spark-submit as a user on another machine would call it.

They run from the installed pyspark. Their Python has pyspark, pyarrow and NumPy and nothing else, neither our
libraries nor this checkout: a cluster as users have it. Everything is bound to 127.0.0.1 and written under one folder,
and when that Spark ends, however it was started, no process of it is left.
"""

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.demo.kafka_process import JavaProcess

WORKERS = 2
WORKER_MEMORY = "1g"
EXECUTOR_MEMORY = "512m"
READY_S_MAX = 60.0
SUBMIT_S_MAX = 300.0
END_S_MAX = 15.0
OF_THE_CLUSTER = ("pyspark", "py4j", "pyarrow", "numpy")
"""Distributions that the cluster's Python has."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running Spark. Below `folder`: logs/, work/ (executors' files and output), events/, local/, tmp/, user/."""

    folder: Path
    python: Path
    master_url: str

    def spark_submit(
        self,
        *arguments: str | Path,
        conf: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        timeout_s: float = SUBMIT_S_MAX,
    ) -> subprocess.CompletedProcess[str]:
        """`spark-submit … arguments` in client mode, in the folder user/; its end, whatever its exit code."""
        settings = {**_settings(self.folder), **(conf or {})}
        options = [part for name, value in sorted(settings.items()) for part in ("--conf", f"{name}={value}")]
        command = [str(_spark_home(self.python) / "bin" / "spark-submit"), "--master", self.master_url, *options]
        process = subprocess.Popen(
            [*command, *(str(argument) for argument in arguments)],
            env={**_environ(self.folder, self.python), **(environ or {})},
            cwd=self.folder / "user",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def written(self) -> Iterator[Path]:
        """Every log: of master and workers, of executors with what they printed, and the event logs."""
        for name in ("logs", "events"):
            yield from (path for path in sorted((self.folder / name).rglob("*")) if path.is_file())
        yield from (path for path in sorted((self.folder / "work").rglob("std*")) if path.is_file())


@contextmanager
def own_spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """A master and two workers of one core each, ready."""
    for name in ("logs", "work", "events", "local", "tmp", "user"):
        (folder / name).mkdir(parents=True)
    python = cluster_python(folder / "python")
    environ = _environ(folder, python)
    with ExitStack() as stack:
        stack.callback(_end_all_below, folder)
        master = _started(stack, folder, "master", environ, "master.Master", "--port", "0")
        url = _wait_for(master, r"Starting Spark master at (spark://\S+)")
        options = ("--port", "0", "--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(folder / "work"), url)
        workers = [
            _started(stack, folder, f"worker-{number}", environ, "worker.Worker", *options)
            for number in range(1, WORKERS + 1)
        ]
        for worker in workers:
            worker.wait_for_log("Successfully registered with master", READY_S_MAX)
        yield SparkCluster(folder, python, url)


def cluster_python(folder: Path) -> Path:
    """A Python that has OF_THE_CLUSTER, by links to what is installed here, and nothing else."""
    links = folder / "links"
    links.mkdir(parents=True)
    for name in OF_THE_CLUSTER:
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (links / top).exists():
                (links / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 2])
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "cluster.pth").write_text(f"{links}\n")
    return environment / "bin" / "python"


def processes_below(folder: Path) -> list[int]:
    """Ids of processes that were started with a path below this folder; none where there is no /proc."""
    wanted = os.fsencode(f"{folder}/")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended since
    return [number for number in found if number != os.getpid()]


def _started(
    stack: ExitStack, folder: Path, name: str, environ: Mapping[str, str], role: str, *options: str
) -> JavaProcess:
    # `env` gives it its surroundings, since JavaProcess hands ours on.
    variables = [f"{key}={value}" for key, value in sorted(environ.items())]
    spark_class = _spark_home(Path(environ["PYSPARK_PYTHON"])) / "bin" / "spark-class"
    role_command: Sequence[str] = (str(spark_class), f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1")
    command = ["env", "-i", *variables, *role_command, "--webui-port", "0", *options]
    process = JavaProcess(f"Spark's {name}", command, folder / "logs" / f"{name}.log")
    stack.callback(process.stop, END_S_MAX)
    return process


def _wait_for(process: JavaProcess, pattern: str) -> str:
    process.wait_for_log(re.split(r"[(\\]", pattern)[0], READY_S_MAX)
    deadline_s = time.monotonic() + READY_S_MAX
    # The text may have been seen before its line was whole.
    while (match := re.search(pattern + r"\s", process.log_path.read_text("utf-8", "replace"))) is None:
        if time.monotonic() > deadline_s:
            raise TimeoutError(process.log_tail())
        time.sleep(_POLL_S)
    return match[1]


def _spark_home(python: Path) -> Path:
    return python.parents[2] / "links" / "pyspark"


def _environ(folder: Path, python: Path) -> dict[str, str]:
    """Nothing of ours: no PYTHONPATH, no virtual environment, and a temporary folder of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "USER") if name in os.environ}
    own_bin = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != own_bin)
    return {
        **kept,
        "LANG": "C.UTF-8",
        "SPARK_HOME": str(_spark_home(python)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "TMPDIR": str(folder / "tmp"),
        "PYSPARK_PYTHON": str(python),
    }


def _settings(folder: Path) -> dict[str, str]:
    return {
        **local_settings(folder),
        "spark.driver.memory": EXECUTOR_MEMORY,
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.extraJavaOptions": QUICK_JAVA,
    }


def local_settings(folder: Path) -> dict[str, str]:
    """Return the settings of every Spark of ours: on this machine alone, its event log below that folder."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.sql.shuffle.partitions": "2",
    }


def _end_all_below(folder: Path) -> None:
    """Executors and their Python workers have groups of their own, and end a little after those who started them."""
    deadline_s = time.monotonic() + END_S_MAX
    while (left := processes_below(folder)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    for number in left:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has ended since
    shutil.rmtree(folder / "local", ignore_errors=True)
