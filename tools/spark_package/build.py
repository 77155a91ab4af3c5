"""Puts the package for Spark together: our modules under `tidegate_spark`, as a wheel, and as a zip with libraries.

The wheel is for clusters whose images are built with pip, any platform. The zip is for `spark-submit --py-files` on
clusters as they are: it holds the libraries too, native ones included, so it is for one Python and one platform.
"""

import hashlib
import json
import sys
import sysconfig
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tools.distribution.archives import with_wheel_metadata, write_zip
from tools.distribution.import_mapping import map_imports, modules_of
from tools.spark_package.dependencies import STORES, Dependencies, dependencies_of, files_of
from tools.spark_package.our_modules import shipped_modules

ROOT = Path(__file__).resolve().parents[2]
NAME = "tidegate_spark"
LAUNCHER = "tidegate_spark_job.py"
SHIPPED_PACKAGES = ("pipeline", "protocol", "storage", "table")
OTHER_PACKAGES = ("benchmarks", "metrics", "proxy", "standalone", "tests", "tidegate", "tools")
_FACE = "tools.spark_package.shipped"
_MAPPED = {_FACE: NAME} | {package: f"{NAME}.{package}" for package in SHIPPED_PACKAGES}
_BUNDLE = "_bundle"


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path
    zip: Path
    launcher: Path


def build(folder: Path, *, with_arrow: bool = False, stores: Collection[str] = (), root: Path = ROOT) -> Built:
    """Everything into `folder`, over what is there. `with_arrow`, `stores`: what else the zip is to bring.

    Raises:
        MappingError, UnshippableImport, DependencyError: what the repository has cannot be shipped, and why.
    """
    shipped = shipped_modules(root, start="pipeline", shipped=SHIPPED_PACKAGES, ours=OTHER_PACKAGES)
    dependencies = dependencies_of(shipped.libraries, root / "pyproject.toml", with_arrow=with_arrow, stores=stores)
    brought = "".join(f"-{name}" for name in (*(["arrow"] if with_arrow else []), *sorted(stores)))
    face = modules_of(ROOT, (_FACE.replace(".", "/"),))
    sources = {name.replace("/", "."): path for name, path in face.items()} | dict(shipped.sources)
    ours = {_member(name, path): _mapped(name, path, frozenset(sources)) for name, path in sources.items()}
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    folder.mkdir(parents=True, exist_ok=True)
    built = Built(
        folder / f"{NAME}-{version}-py3-none-any.whl",
        folder / f"{NAME}-{version}-{_platform_tag()}{brought}.zip",
        folder / LAUNCHER,
    )
    license_text = (root / "LICENSE").read_bytes()
    fields = [
        ("Summary", "The KIP-405 tier as a Spark data source, backfill and audit of Kafka topics"),
        ("License-Expression", project["license"]),
        ("License-File", "LICENSE"),
        ("Requires-Python", project["requires-python"]),
        *(("Provides-Extra", extra) for extra in STORES),
        *(("Requires-Dist", requirement) for requirement in dependencies.requirements),
    ]
    write_zip(
        built.wheel, with_wheel_metadata(ours, name=NAME, version=version, fields=fields, license_text=license_text)
    )
    write_zip(built.zip, ours | _bundle(dependencies) | {f"{NAME}/LICENSE": license_text})
    built.launcher.write_bytes(Path(__file__).with_name(LAUNCHER).read_bytes())
    return built


def _member(name: str, path: Path) -> str:
    mapped = name.replace(_FACE, NAME, 1) if name.startswith(_FACE) else f"{NAME}.{name}"
    return mapped.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")


def _mapped(name: str, path: Path, modules: frozenset[str]) -> bytes:
    dotted = frozenset(module for module in modules if "." in module)
    return map_imports(path.read_text("utf-8"), _MAPPED, where=str(path), modules=dotted).encode()


def _bundle(dependencies: Dependencies) -> dict[str, bytes]:
    """The libraries' files, and the description that tidegate_spark/_bundled.py goes by."""
    files: dict[str, bytes] = {}
    for distribution in dependencies.bundled.values():
        for name, path in files_of(distribution):
            files[name] = path.read_bytes()
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    description = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "platform": sysconfig.get_platform(),
        "digest": digest.hexdigest(),
        "bundled": {name: distribution.version for name, distribution in dependencies.bundled.items()},
        "needs": [[need.requirer, need.dependency, need.comparisons] for need in dependencies.needs],
        "files": [[name, len(content)] for name, content in sorted(files.items())],
    }
    members = {f"{NAME}/{_BUNDLE}/{name}": content for name, content in files.items()}
    return {**members, f"{NAME}/{_BUNDLE}.json": json.dumps(description, sort_keys=True).encode()}


def _platform_tag() -> str:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform}"
