"""Which of our modules a package for Spark needs: all of the pipeline, and whatever that reaches.

Reached is followed through every import, also those inside functions, because a module that is imported late on an
executor must be there as well. Imports for types alone (`if TYPE_CHECKING:`) are never run and not followed.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.distribution.import_mapping import is_import_by_name, literal_name, modules_of


class UnshippableImport(Exception):
    """The pipeline reaches a module that is not there, or not for executors; the message says who imports it."""


@dataclass(frozen=True, slots=True)
class ShippedModules:
    sources: Mapping[str, Path]
    """Dotted name → its file, by name; packages have their __init__.py."""
    libraries: Mapping[str, str]
    """Top-level name of each import that is neither ours nor the standard library's → a module of ours that has it."""


def shipped_modules(root: Path, *, start: str, shipped: Collection[str], ours: Collection[str]) -> ShippedModules:
    """Return what package `start` reaches in the packages `shipped`; the other packages of `ours` must not be reached.

    Raises:
        UnshippableImport: see there.
    """
    known = modules_of(root, shipped)
    waiting = [name for name in known if name == start or name.startswith(start + ".")]
    reached: dict[str, Path] = {}
    libraries: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        package = name.rpartition(".")[0]
        if package and package not in known:
            raise UnshippableImport(f"{name} is in a folder without __init__.py, which is no package in a zip")
        reached[name] = known[name]
        for imported in imported_names(known[name].read_text("utf-8")):
            top = imported.partition(".")[0]
            if top in shipped and imported.endswith("."):
                waiting += [below for below in known if below.startswith(imported)]
            elif top in shipped:
                # The last part of `from a import b` may be no module, but something in a.
                if imported not in known and imported.rpartition(".")[0] not in known:
                    raise UnshippableImport(f"{name} imports {imported}, which does not exist")
                waiting += _with_packages(imported, known)
            elif top in ours:
                raise UnshippableImport(f"{name} imports {imported}, which is not for executors")
            elif top not in sys.stdlib_module_names:
                libraries.setdefault(top, name)
    return ShippedModules(dict(sorted(reached.items())), dict(sorted(libraries.items())))


def imported_names(source: str) -> Iterator[str]:
    """Dotted names that running this source may import; of `from a import b` both a and a.b; `a.` is any of a's."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and is_import_by_name(node) and (name := literal_name(node.args[0])):
            yield name
        waiting += ast.iter_child_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _with_packages(name: str, known: Mapping[str, Path]) -> Iterator[str]:
    """A module and the packages it is in."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if prefix in known:
            yield prefix
