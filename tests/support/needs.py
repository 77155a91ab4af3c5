"""What a test needs beyond Python, and what happens where that is absent.

`@pytest.mark.needs("kcat")` skips the test on a machine without kcat, and the skip says how to get it. Under
TIDEGATE_REQUIRE_ALL=1 (`.ci/run`) a skip is a failure, whatever its reason, save for the kinds marked `may_lack`:
those are not to be had everywhere, so they are counted by name in the summary instead.
"""

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline.session import java_problems, missing_packages
from storage.object_store.http import tls

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build" / "kafka" / "libs"
SPARK_JARS = ROOT / "build" / "spark" / "jars"
TABLE_JARS = ROOT / "build" / "spark" / "tables"
NEXT_SPARK = ROOT / "build" / "spark-4.3"
NEXT_PYSPARK, NEXT_SPARK_JARS = NEXT_SPARK / "site", NEXT_SPARK / "jars"
S3A_JARS = ROOT / "build" / "spark" / "s3a"
TOOLS = ROOT / "build" / "tools"
REGISTRY_JAR = ROOT / "build" / "schema-registry" / "apicurio-registry-app-3.0.9-runner.jar"
OLD_CLIENTS = ROOT / "build" / "clients"
TOXIPROXY = TOOLS / "toxiproxy-server"
VERSITYGW = TOOLS / "versitygw"
FAKE_GCS = TOOLS / "fake-gcs-server"
AZURITE = TOOLS / "azurite"
HELM = TOOLS / "helm"
STRIMZI_JARS = TOOLS / "strimzi"
KUBECONFORM, KUBERNETES_SCHEMAS = TOOLS / "kubeconform", TOOLS / "kubernetes-schemas"


OTHER_PYTHONS = ("3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that a test may need. `how` completes the sentence "needs X: ..."."""

    name: str
    is_present: Callable[[], bool]
    how: str
    may_lack: bool = False
    other_reason: str = ""
    """How a skip begins that a helper makes in the midst of a test, for want of the same thing."""

    @property
    def reason(self) -> str:
        return f"needs {self.name}: {self.how}"

    @property
    def is_excused(self) -> bool:
        """Return whether a skip for its sake is none of ours, even where everything is required."""
        return self.may_lack and not self.is_present()


def vectors_dir() -> Path:
    """The folder of bytes that other programs wrote, there or not; TIDEGATE_VECTORS moves it."""
    return Path(os.environ.get("TIDEGATE_VECTORS") or ROOT.parent / "shared" / "vectors")


def requires_all() -> bool:
    return os.environ.get("TIDEGATE_REQUIRE_ALL") == "1"


def is_kind(name: str) -> bool:
    return name in _KINDS


def kind(name: str) -> Kind:
    return _KINDS[name]


def kind_of_skip(reason: str) -> Kind | None:
    """The kind whose want made a test skip, None when the skip was for another reason."""
    for found in _KINDS.values():
        if reason.startswith(f"needs {found.name}:") or (found.other_reason and reason.startswith(found.other_reason)):
            return found
    return None


def _command(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


@functools.cache
def _can_mount() -> bool:
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run([mount, "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return mounted.returncode == 0


def _can_run_containers() -> bool:
    tools = ("podman", "buildah", "runc", "mmdebstrap")
    return os.geteuid() == 0 and all(shutil.which(name) is not None for name in tools)


def _can_run_prometheus() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def _can_run_kafkajs() -> bool:
    return shutil.which("node") is not None and (TOOLS / "kafkajs" / ".installed").exists()


def _can_run_azurite() -> bool:
    return shutil.which("node") is not None and (AZURITE / ".installed").exists()


def _can_run_kubeconform() -> bool:
    return KUBECONFORM.exists() and (KUBERNETES_SCHEMAS / ".complete").exists()


@functools.cache
def _can_run_spark() -> bool:
    has_jars = (SPARK_JARS / ".complete").exists()
    return has_jars and not missing_packages() and not java_problems(os.environ)


def _old_python_client(name: str, package: str, *, until: tuple[int, int] | None = None) -> Kind:
    """Locked in tests/integration/python/clients. `until`: the first Python that it has no wheel for."""
    return Kind(
        name,
        (OLD_CLIENTS / name / package).is_dir,
        "run `make test-tools`, which installs it, where there is a wheel for this Python",
        may_lack=until is not None and sys.version_info >= until,
    )


def _python(version: str) -> Kind:
    """Another one, with the whole lock. 3.14 is Maven's, for one platform."""
    is_mavens = version == "3.14" and sys.platform == "linux" and platform.machine() == "x86_64"
    return Kind(
        f"python-{version}",
        (ROOT / "build" / f"python-{version}" / ".installed").exists,
        "run `make test-tools`, which installs it where it can be had",
        may_lack=not is_mavens and shutil.which(f"python{version}") is None,
    )


_KINDS = {
    found.name: found
    for found in (
        Kind("java", _command("java"), "install a JDK, 17 or 21"),
        Kind("maven", _command("mvn"), "install Maven"),
        Kind("kafka", lambda: (JARS / ".complete").exists(), "run `make setup`, which fetches its jars"),
        Kind("go", _command("go"), "install Go 1.26 or newer"),
        Kind("toxiproxy", TOXIPROXY.exists, "run `make test-tools`, which builds it with Go"),
        Kind("versitygw", VERSITYGW.exists, "run `make test-tools`, which builds it with Go"),
        Kind("fake-gcs-server", FAKE_GCS.exists, "run `make test-tools`, which builds it with Go"),
        Kind("azurite", _can_run_azurite, "run `make test-tools`, which installs it with npm"),
        Kind("helm", HELM.exists, "run `make test-tools`, which builds it with Go"),
        Kind("kubeconform", _can_run_kubeconform, "run `make test-tools`, which builds it and makes its schemas"),
        Kind("strimzi", (STRIMZI_JARS / ".complete").exists, "run `make test-tools`, which fetches its model"),
        Kind("franz-go", (TOOLS / "franz").exists, "run `make test-tools`, which builds it with Go"),
        Kind("sarama", (TOOLS / "sarama").exists, "run `make test-tools`, which builds it with Go"),
        Kind("kafkajs", _can_run_kafkajs, "run `make test-tools`, which installs it with npm"),
        Kind("java-clients", (OLD_CLIENTS / "java" / ".complete").exists, "run `make test-tools`, which fetches them"),
        _old_python_client("confluent-kafka-2.3", "confluent_kafka", until=(3, 13)),
        _old_python_client("confluent-kafka-2.10", "confluent_kafka"),
        _old_python_client("confluent-kafka-2.11", "confluent_kafka"),
        _old_python_client("kafka-python-2.0", "kafka"),
        *map(_python, OTHER_PYTHONS),
        Kind("node", _command("node"), "install Node.js 18 or newer"),
        Kind("haproxy", _command("haproxy"), "install HAProxy 2.4 or newer (Debian: apt-get install haproxy)"),
        Kind("cargo", _command("cargo"), "install Rust"),
        Kind("cc", _command("cc"), "install a C compiler (Debian: apt-get install gcc)"),
        Kind("chromium", _command("chromium"), "install Chromium (Debian: apt-get install chromium)"),
        Kind("curl", _command("curl"), "install curl (Debian: apt-get install curl)"),
        Kind("kcat", _command("kcat"), "install kcat (Debian: apt-get install kcat; macOS: brew install kcat)"),
        Kind(
            "prometheus", _can_run_prometheus, "install Prometheus with promtool (Debian: apt-get install prometheus)"
        ),
        Kind(
            "docker-compose",
            _command("docker-compose"),
            "install docker-compose (Debian: apt-get install docker-compose)",
        ),
        Kind(
            "containers",
            _can_run_containers,
            "as root, install podman, buildah, runc and mmdebstrap (Debian: apt-get install them)",
            may_lack=os.geteuid() != 0 or shutil.which("apt-get") is None,
        ),
        Kind("man", _command("man"), "install man (Debian: apt-get install man-db groff)"),
        Kind("fish", _command("fish"), "install fish (Debian: apt-get install fish)"),
        Kind("zsh", _command("zsh"), "install zsh (Debian: apt-get install zsh)"),
        Kind("openssl", _command("openssl"), "install OpenSSL's command line"),
        Kind("strace", _command("strace"), "install strace (Debian: apt-get install strace)"),
        Kind("mkdocs", lambda: find_spec("mkdocs") is not None, "run `make docs`, which installs it"),
        Kind(
            "atheris",
            lambda: find_spec("atheris") is not None,
            "run `make fuzz`, which installs it where there is a wheel: Linux, x86-64, Python before 3.14",
            may_lack=sys.version_info >= (3, 14) or platform.machine() != "x86_64" or sys.platform != "linux",
        ),
        Kind(
            "shared-openssl",
            lambda: tls.library() is not None,
            "run a Python whose OpenSSL is a library of its own",
            may_lack=sys.version_info >= (3, 14),  # Maven's has it built in
        ),
        Kind("linux", lambda: Path("/proc/self/status").exists(), "it reads /proc, so only Linux will do"),
        Kind("tmpfs", _can_mount, "run as root, who may mount a file system to fill", may_lack=True),
        Kind("spark", _can_run_spark, "run `make spark` (the extra `spark`, its Kafka connector), with Java 17 or 21"),
        Kind("tables", (TABLE_JARS / ".complete").exists, "run `make spark`, which fetches Delta Lake and Iceberg"),
        Kind("spark-4.3", (NEXT_SPARK / ".complete").exists, "run `make test-tools`, which installs pyspark 4.3"),
        Kind("schema-registry", REGISTRY_JAR.exists, "run `make spark`, which fetches one (Apicurio)"),
        Kind("spark-s3a", (S3A_JARS / ".complete").exists, "run `make spark`, which fetches Hadoop's S3A client"),
        Kind(
            "vectors",
            lambda: vectors_dir().is_dir(),
            "point TIDEGATE_VECTORS at the shared vectors",
            may_lack=True,
            other_reason="shared vectors absent",
        ),
        Kind("network", lambda: "TIDEGATE_OFFLINE" not in os.environ, "unset TIDEGATE_OFFLINE", may_lack=True),
    )
}
