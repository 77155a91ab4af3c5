"""The build back end of pyproject.toml (PEP 517): a wheel with one top-level package, `tidegate`.

In the tree our packages stand side by side. Installed like that, `proxy` or `storage` would meet other people's of the
same names, so the wheel has `tidegate.proxy`, `tidegate.storage`, …: imports are renamed when it is built, line by line
(`import_mapping`), and loggers keep their names. setuptools makes the wheel, of a tree with that one package. A source
distribution has the sources as they are here, and this back end: what pip makes of it is the same wheel. An editable
installation is the tree itself.

The same sources are the same bytes: their date is SOURCE_DATE_EPOCH, else a fixed one, and their modes are fixed.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import build_editable, prepare_metadata_for_build_editable

from tools.distribution.archives import write_tar
from tools.distribution.command_pages import command_pages
from tools.distribution.import_mapping import map_imports, modules_of

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tidegate"
ROOMS = ("metrics", "pipeline", "protocol", "proxy", "standalone", "storage", "table")
"""Packages of the tree that are below PACKAGE in the wheel."""

DATA = {
    "deploy/grafana/dashboards/tidegate-dashboard.json": "share/tidegate/grafana/tidegate-dashboard.json",
    "deploy/prometheus/tidegate-rules.yml": "share/tidegate/prometheus/tidegate-rules.yml",
    "deploy/systemd/credentials.conf": "share/tidegate/systemd/credentials.conf",
    "deploy/systemd/tidegate.service": "lib/systemd/system/tidegate.service",
}
"""What `tidegate files DIR` lays out, beside man page and completions: where it is in the tree, and below DIR."""

_BESIDE = ("LICENSE", "README.md", "pyproject.toml")
_MAPPED = {room: f"{PACKAGE}.{room}" for room in ROOMS}
_EPOCH = "SOURCE_DATE_EPOCH"
_EPOCH_WITHOUT_ONE = "315532800"
"""1980, when zip's dates begin."""

Settings = dict[str, str | list[str]] | None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    into = str(Path(wheel_directory).resolve())
    with _one_package(package_files()):
        return str(build_meta.build_wheel(into, config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    into = str(Path(metadata_directory).resolve())
    with _one_package({f"{PACKAGE}/__init__.py": b""}):
        return str(build_meta.prepare_metadata_for_build_wheel(into, config_settings))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder, prepare_metadata_for_build_wheel(folder))
        described = (metadata / "METADATA").read_bytes()
        name = metadata.name.removesuffix(".dist-info")
    members = {"PKG-INFO": described} | {path: (ROOT / path).read_bytes() for path in source_files()}
    write_tar(Path(sdist_directory, f"{name}.tar.gz"), members, prefix=name, epoch_s=_epoch_s())
    return f"{name}.tar.gz"


def source_files() -> list[str]:
    """The paths that a source distribution has of the tree."""
    ours = [path for package in (PACKAGE, *ROOMS, "tools/distribution") for path in (ROOT / package).rglob("*.py")]
    typed = [ROOT / package / "py.typed" for package in (PACKAGE, *ROOMS)]
    return sorted([*_BESIDE, "CHANGELOG.md", *DATA, *(path.relative_to(ROOT).as_posix() for path in [*ours, *typed])])


def package_files() -> dict[str, bytes]:
    """The wheel's content but for its metadata, by path."""
    modules = modules_of(ROOT, (PACKAGE, *ROOMS))
    dotted = frozenset(name for name in modules if "." in name and name.partition(".")[0] in ROOMS)
    found = {f"{PACKAGE}/py.typed": b""}
    for name, path in modules.items():
        place = path.relative_to(ROOT).as_posix()
        source = map_imports(path.read_text("utf-8"), _MAPPED, where=str(path), modules=dotted, logger=name)
        found[place if place.startswith(f"{PACKAGE}/") else f"{PACKAGE}/{place}"] = source.encode()
    data = {place: (ROOT / path).read_bytes() for path, place in DATA.items()} | command_pages()
    return found | {f"{PACKAGE}/files/{place}": content for place, content in data.items()}


@contextmanager
def _one_package(files: Mapping[str, bytes]) -> Iterator[None]:
    """The working folder is a tree of these files, for setuptools to build."""
    os.environ.setdefault(_EPOCH, _EPOCH_WITHOUT_ONE)
    mask = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-build-") as folder:
            beside = {name: (ROOT / name).read_bytes() for name in _BESIDE}
            for name, content in {**files, **beside}.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            with chdir(folder):
                yield
    finally:
        os.umask(mask)


def _epoch_s() -> int:
    return int(os.environ.get(_EPOCH, _EPOCH_WITHOUT_ONE))
