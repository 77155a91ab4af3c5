"""The libraries behind our imports: what pyproject.toml asks of them, what is installed, and which files that is.

Nothing is listed by hand: an import gives a distribution, which must be one that pyproject.toml names or that such a
one asks for. What the cluster brings itself (Spark, and Arrow and NumPy unless they are asked for) is asked for in the
same words, but not bundled.
"""

import importlib.metadata
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

OF_SPARK = ("py4j", "pyspark")
"""Come with the cluster and are never asked for: pip would install a second Spark beside a cluster's own."""
OF_ARROW = ("numpy", "pyarrow")
"""Large, and nearly always there: PySpark's own data source API imports pyarrow."""
STORES = ("azure", "gcs")
"""Extras of pyproject.toml that are in the zip only on request: a tier is in one store."""

_BOTOCORE_SERVICES = ("s3", "signin", "sso", "sso-oidc", "sts")
"""S3, and what its credentials come from; botocore describes some 400 more services in 20 MB."""
_LEFT_OUT = re.compile(
    r"""(^|/)__pycache__/ | \.pyc$
      | \.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)$  # of one installation, not of the library
      | ^(pyarrow|numpy)(/.*)?/tests/ | ^pyarrow/include/           # a tenth of them, and nothing imports it
    """,
    re.VERBOSE,
)
_BOTOCORE_SERVICE = re.compile(r"^botocore/data/([^/]+)/")


class DependencyError(Exception):
    """An imported library is not declared or not installed; the message names it."""


@dataclass(frozen=True, slots=True)
class Need:
    """`requirer` asks for `dependency`; comparisons are (one of >= <= > < == !=, release number)."""

    requirer: str
    dependency: str
    comparisons: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Dependencies:
    bundled: Mapping[str, importlib.metadata.Distribution]
    needs: tuple[Need, ...]
    """Needs of our modules (as `tidegate_spark`) and of every bundled distribution."""


def dependencies_of(
    libraries: Mapping[str, str], pyproject: Path, *, with_arrow: bool, stores: Collection[str] = ()
) -> Dependencies:
    """`libraries`: top-level import names, with a module of ours each that has it. `stores`: of STORES, to be bundled.

    Raises:
        DependencyError: see there.
    """
    extras = _extras(pyproject)
    declared = _declared(pyproject)
    optional = {name: found for extra in extras.values() for name, found in extra.items() if name not in declared}
    imported = {
        name: library
        for library in libraries
        for name in _meant(_distributions_of(library, libraries[library]), {*declared, *optional})
    }
    declared |= {name: optional[name] for store in stores for name in extras[store] if name in optional}
    roots = {name: requirement for name, requirement in declared.items() if name in imported and name not in OF_SPARK}
    left_out = () if with_arrow else OF_ARROW
    bundled: dict[str, importlib.metadata.Distribution] = {}
    needs = [_need("tidegate_spark", requirement) for name, requirement in roots.items()]
    waiting = [name for name in roots if name not in left_out]
    while waiting:
        name = waiting.pop()
        if name in bundled:
            continue
        bundled[name] = _distribution(name)
        for requirement in _requirements_of(bundled[name]):
            needs.append(_need(name, requirement))
            if canonicalize_name(requirement.name) not in left_out:
                waiting.append(canonicalize_name(requirement.name))
    undeclared = {*imported} - {*bundled} - {*roots} - {*optional} - {*OF_SPARK}
    if undeclared:
        name = min(undeclared)
        raise DependencyError(f"{libraries[imported[name]]} imports {imported[name]}: {name} is not in pyproject.toml")
    return Dependencies(
        dict(sorted(bundled.items())), tuple(sorted(needs, key=lambda need: (need.requirer, need.dependency)))
    )


def files_of(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield what is bundled of it: path below the folder of libraries, and where it is now. Commands are left out."""
    for file in distribution.files or ():
        name = file.as_posix()
        service = _BOTOCORE_SERVICE.match(name)
        if name.startswith("../") or _LEFT_OUT.search(name) or (service and service[1] not in _BOTOCORE_SERVICES):
            continue
        yield name, Path(str(file.locate()))


def _declared(pyproject: Path) -> dict[str, Requirement]:
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    # The extra `spark` begins with the extra `table`, which is of our own distribution.
    written = [*project["dependencies"], *extras["spark"], *extras.get("table", ())]
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, written)}


def _extras(pyproject: Path) -> dict[str, dict[str, Requirement]]:
    """Return what pyproject.toml asks for a store of STORES."""
    extras = tomllib.loads(pyproject.read_text("utf-8"))["project"]["optional-dependencies"]
    return {
        store: {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, extras[store])}
        for store in STORES
        if store in extras
    }


def _meant(names: Collection[str], declared: Collection[str]) -> Collection[str]:
    """Several distributions may share a top-level name, as Google's do: those that are declared are meant."""
    return {name for name in names if name in declared} or names


def _distributions_of(library: str, module: str) -> Collection[str]:
    names = importlib.metadata.packages_distributions().get(library)
    if not names:
        raise DependencyError(f"{module} imports {library}, which is not installed")
    return {canonicalize_name(name) for name in names}


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise DependencyError(f"{name} is asked for, but not installed") from error


def _requirements_of(distribution: importlib.metadata.Distribution) -> Iterator[Requirement]:
    for written in distribution.requires or ():
        requirement = Requirement(written)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _need(requirer: str, requirement: Requirement) -> Need:
    return Need(requirer, canonicalize_name(requirement.name), tuple(_comparisons(requirement.specifier)))


def _comparisons(specifiers: SpecifierSet) -> Iterator[tuple[str, str]]:
    """In operators that a cluster compares without `packaging`: ~=1.4 is >=1.4 and <2, ==1.* is >=1 and <2."""
    for specifier in sorted(specifiers, key=str):
        operator, version = specifier.operator, specifier.version
        numbers = version.removesuffix(".*").split(".")
        if operator == "~=" or (operator == "==" and version.endswith(".*")):
            kept = numbers[:-1] if operator == "~=" else numbers
            yield ">=", ".".join(numbers)
            yield "<", ".".join([*kept[:-1], str(int(kept[-1]) + 1)])
        elif operator in (">=", "<=", ">", "<", "==", "!=") and not version.endswith(".*"):
            yield operator, version
        else:
            raise DependencyError(f"cannot carry the comparison {specifier} to a cluster")
