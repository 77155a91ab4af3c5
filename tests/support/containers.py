"""Images and containers for tests, by podman and buildah: with a store of their own, and nothing of the machine's.

    with own_containers(folder) as containers:
        containers.build(ROOT / "deploy/Dockerfile", tag, arguments={"PYTHON_IMAGE": base})
        containers.podman("run", "--rm", tag, "--version")

Public images are not fetched. What a Dockerfile builds on is an image that has been made here under the name that it is
asked for, on `base_archive`: Debian's own Python, from the machine's sources of packages.
"""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.needs import ROOT
from tests.support.waiting import wait_until
from tools.install_packages import pip_configuration, pip_settings

BUILD: Final = ROOT / "build" / "containers"
BASE: Final = "localhost/debian-python:tests"
"""The image of `base_archive`."""

ENDED_S_MAX: Final = 180.0

_PACKAGES: Final = ("ca-certificates", "netcat-openbsd", "python-is-python3", "python3-pip", "python3-venv", "wget")
"""The base has what the Dockerfile wants of Python's image, and what health checks of others' images call."""
_LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")
_UNTIE: Final = (
    'rm -rf "$1"/etc/apt/sources.list* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/usr/lib/python3*/EXTERNALLY-MANAGED'
)
"""The archive does not say where packages came from, and its Python takes pip's, as Python's own image does."""
_INDEX_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_CERTIFICATES: Final = "/run/secrets/certificates"


@dataclass(frozen=True, slots=True)
class Containers:
    """One store. Its images, containers and volumes end with it."""

    folder: Path
    environ: Mapping[str, str]

    def podman(self, *words: str | Path) -> str:
        """Return what it printed.

        Raises:
            AssertionError: it failed; with what it said.
        """
        return self._run("podman", *words)

    def fails(self, *words: str) -> bool:
        return subprocess.run(("podman", *words), env=self.environ, capture_output=True, check=False).returncode != 0

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """The same without waiting for its end."""
        return subprocess.Popen(("podman", *words), env=self.environ, stdout=subprocess.DEVNULL)

    def end_of(self, name: str) -> str:
        """Wait for a container's end, and return its exit code.

        `podman wait` also waits for the process that watched it: 20 s where process 1 reaps nobody.
        """

        def code() -> str:
            status, code = self.podman("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name).split()
            return code if status in {"exited", "stopped"} else ""

        return wait_until(code, f"{name} has ended", timeout_s=ENDED_S_MAX)

    def import_base(self) -> None:
        """Make the image that stands in for public ones."""
        self.podman("import", base_archive(), BASE)

    def build(
        self, dockerfile: Path, tag: str, *, arguments: Mapping[str, str] = {}, contexts: Mapping[str, Path] = {}
    ) -> None:
        """Build it from the repository's root and other folders."""
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        given += [word for name, path in contexts.items() for word in ("--build-context", f"{name}={path}")]
        options = ("--format", "docker", *self.build_options(), *given)
        self._run("buildah", "build", *options, "--file", dockerfile, "--tag", tag, ROOT)

    def build_options(self) -> list[str]:
        """Return what buildah needs here, with pip's settings of this machine, which no layer keeps."""
        limits = [word for each in _limits() for word in ("--ulimit", each)]
        secrets = [word for each in _pip_secrets(self.folder) for word in ("--secret", each)]
        return ["--network", "host", "--pull-never", *limits, *secrets]

    def log(self, name: str) -> str:
        """Return what a container has written so far, to standard error too."""
        command = ("podman", "logs", name)
        pipe = subprocess.PIPE
        return subprocess.run(
            command, env=self.environ, stdout=pipe, stderr=subprocess.STDOUT, text=True, check=False
        ).stdout

    def _run(self, *words: str | Path) -> str:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}:\n{(done.stdout + done.stderr)[-4000:]}"
        return done.stdout


@contextmanager
def own_containers() -> Iterator[Containers]:
    """A store below `build`, until the block ends. What runs and locks are kept by is in a short path elsewhere."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="store-", dir=BUILD) as store,
        tempfile.TemporaryDirectory(prefix="tg") as running,
    ):
        containers = Containers(Path(store), {**os.environ, **_settings(Path(store), Path(running))})
        try:
            yield containers
        finally:
            # What is mounted is unmounted by it.
            containers.podman("system", "reset", "--force")


def _settings(store: Path, running: Path) -> dict[str, str]:
    """Files that take the place of the machine's, as variables name them."""
    limits = ", ".join(f'"{each}"' for each in _limits())
    (store / "containers.conf").write_text(
        f"""\
[containers]
default_ulimits = [{limits}]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "runc"
static_dir = "{store}/static"
tmp_dir = "{running}/tmp"
volume_path = "{store}/volumes"
"""
    )
    (store / "storage.conf").write_text(
        f"""\
[storage]
driver = "overlay"
graphroot = "{store}/images"
runroot = "{running}/run"
"""
    )
    return {
        "CONTAINERS_CONF": str(store / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(store / "storage.conf"),
        "BUILDAH_ISOLATION": "oci",
        "BUILDAH_RUNTIME": "runc",
        "TMPDIR": str(running),
        # Health checks are run by who waits for them.
        "DISABLE_HC_SYSTEMD": "true",
    }


def _limits() -> list[str]:
    """Return what may be set here, where podman would ask for more."""
    open_files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    processes_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = processes_max if processes == resource.RLIM_INFINITY else min(processes, processes_max)
    return [f"nofile={open_files}:{open_files}", f"nproc={processes}:{processes}"]


def base_archive() -> Path:
    """A root file system of Debian's with Python, made once; remove build/containers for newer packages."""
    archive = BUILD / "base.tar"
    if archive.exists():
        return archive
    BUILD.mkdir(parents=True, exist_ok=True)
    codename = _codename()
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        # How packages are got here, where that is not by apt's defaults.
        settings = subprocess.run(("apt-config", "dump"), capture_output=True, text=True, check=True).stdout
        options = Path(folder, "apt.conf")
        options.write_text("".join(f"{line}\n" for line in settings.splitlines() if line.startswith("Acquire::")))
        made = Path(folder, "base.tar")
        command: Sequence[str | Path] = (
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join(_PACKAGES)}",
            f"--aptopt={options}",
            *(f"--dpkgopt=path-exclude={each}" for each in _LEFT_OUT),
            f"--customize-hook={_UNTIE}",
            codename,
            made,
            *(path for path in _source_files() if codename in path.read_text("utf-8")),
        )
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:]
        made.rename(archive)
    return archive


def _codename() -> str:
    lines = Path("/etc/os-release").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["VERSION_CODENAME"]


def _source_files() -> list[Path]:
    apt = Path("/etc/apt")
    found = (apt / "sources.list", *apt.glob("sources.list.d/*.list"), *apt.glob("sources.list.d/*.sources"))
    return [path for path in found if path.is_file()]


def _pip_secrets(folder: Path) -> list[str]:
    """Return where pip finds packages on this machine, as the secrets that a Dockerfile asks for."""
    settings = pip_settings(pip_configuration())
    lines = [f"{name} = {' '.join(settings[name].split())}" for name in _INDEX_SETTINGS if name in settings]
    secrets = []
    if certificates := settings.get("cert"):
        copied = folder / "certificates"
        shutil.copyfile(certificates, copied)
        lines.append(f"cert = {_CERTIFICATES}")
        secrets.append(f"id=certificates,src={copied}")
    file = folder / "pip.conf"
    file.write_text("\n".join(["[global]", *lines, ""]), "utf-8")
    return [f"id=pip,src={file}", *secrets]
