"""Puts together what `spark-submit --py-files` sends to a cluster as it is: a zip with what the pipeline needs.

It holds our modules under `tidegate`, as Tidegate's own wheel does, and the libraries too, native ones included, so it
is for one Python and one platform. The old name `tidegate_spark` is a module in it, and a wheel to install beside
Tidegate's own. That wheel requires nothing: pip would ask an index for Tidegate, where the name may be another's.
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
from tools.distribution.import_mapping import map_imports, mapped_name, modules_of
from tools.spark_package.dependencies import Dependencies, dependencies_of, files_of
from tools.spark_package.our_modules import shipped_modules
from tools.spark_package.shipped._bundled import OURS, PACKAGE

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = "tidegate_spark_job.py"
SHIPPED_PACKAGES = ("pipeline", "protocol", "storage", "table")
OTHER_PACKAGES = ("benchmarks", "metrics", "proxy", "standalone", "tests", "tidegate", "tools")
_FACE = "tools.spark_package.shipped"
_SPARK = "tidegate.spark"
_MAPPED = {_FACE: PACKAGE} | {package: f"{PACKAGE}.{package}" for package in SHIPPED_PACKAGES}
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
    sources[_SPARK] = root / "tidegate" / "spark.py"
    ours = {_member(name, path): _mapped(path, frozenset(sources), logger=name) for name, path in sources.items()}
    old_name = {f"{OURS}/__init__.py": _mapped(Path(__file__).with_name("old_name.py"), frozenset(sources))}
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    folder.mkdir(parents=True, exist_ok=True)
    built = Built(
        folder / f"{OURS}-{version}-py3-none-any.whl",
        folder / f"{OURS}-{version}-{_platform_tag()}{brought}.zip",
        folder / LAUNCHER,
    )
    license_text = (root / "LICENSE").read_bytes()
    fields = [
        ("Summary", "The old name of tidegate.spark"),
        ("License-Expression", project["license"]),
        ("License-File", "LICENSE"),
        ("Requires-Python", project["requires-python"]),
    ]
    write_zip(
        built.wheel, with_wheel_metadata(old_name, name=OURS, version=version, fields=fields, license_text=license_text)
    )
    write_zip(built.zip, ours | old_name | _bundle(dependencies) | {f"{PACKAGE}/LICENSE": license_text})
    built.launcher.write_bytes(Path(__file__).with_name(LAUNCHER).read_bytes())
    return built


def _member(name: str, path: Path) -> str:
    mapped = mapped_name(name, _MAPPED) or name
    return mapped.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")


def _mapped(path: Path, modules: frozenset[str], *, logger: str = "") -> bytes:
    dotted = frozenset(module for module in modules if "." in module)
    return map_imports(path.read_text("utf-8"), _MAPPED, where=str(path), modules=dotted, logger=logger).encode()


def _bundle(dependencies: Dependencies) -> dict[str, bytes]:
    """The libraries' files, and the description that _bundled.py goes by."""
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
    members = {f"{PACKAGE}/{_BUNDLE}/{name}": content for name, content in files.items()}
    return {**members, f"{PACKAGE}/{_BUNDLE}.json": json.dumps(description, sort_keys=True).encode()}


def _platform_tag() -> str:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform}"
