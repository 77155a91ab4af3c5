"""Moves a module's imports of our packages under another name, and changes nothing else: not one line number.

The edits are at the exact spans that the syntax tree gives, so comments, layout and lines stay, and a traceback from
elsewhere points at the line that is in the repository. Every form that names one of our modules is either mapped or
refused; the outcome is parsed again and compared with the same change made on the tree. Strings are mapped in two
places only: the argument of import_module, and a logger's name, which stays what it is in the tree.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_IMPORTS_BY_NAME = ("import_module",)
"""Functions whose argument, a module's name, is mapped."""

_LOGGERS = ("getLogger", "get_logger")
"""Functions whose argument `__name__` becomes the name that the module has in the tree."""


class MappingError(Exception):
    """A module names one of ours in a way that cannot be mapped; the message names file and line."""


@dataclass(frozen=True, slots=True)
class _Edit:
    line: int
    column_bytes: int
    old: bytes
    new: bytes


def map_imports(
    source: str, packages: Mapping[str, str], *, where: str, modules: Collection[str] = (), logger: str = ""
) -> str:
    """The source with its imports of `packages` (our dotted name → the new one) mapped.

    `modules` are the dotted names of all our modules: a string that equals one, and is no argument of import_module,
    is refused, because something may import by it. `logger`: what `__name__` is as a logger's name; empty: itself.

    Raises:
        MappingError: see there.
    """
    tree = ast.parse(source, where)
    edits = list(_edits(tree, source, packages, where, frozenset(modules)))
    if logger:
        edits += [_Edit(name.lineno, name.col_offset, b"__name__", f'"{logger}"'.encode()) for name in _own_names(tree)]
    mapped = _applied(source, edits)
    _Mapper(packages, logger).visit(tree)
    if ast.dump(ast.parse(mapped, where)) != ast.dump(tree):
        raise MappingError(f"{where}: the mapped source is not the mapped tree; this is a bug of the mapping")
    return mapped


def mapped_name(name: str, packages: Mapping[str, str]) -> str | None:
    """The new dotted name of a module; None when it is none of ours."""
    for package, new_package in packages.items():
        if name == package or name.startswith(package + "."):
            return new_package + name[len(package) :]
    return None


def modules_of(root: Path, packages: Collection[str]) -> dict[str, Path]:
    """Every module of these top-level packages, dotted name → file."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_import_by_name(node: ast.AST) -> bool:
    """Return whether it is a call of import_module, by whatever way that was imported."""
    return isinstance(node, ast.Call) and _called(node) in _IMPORTS_BY_NAME


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _own_names(tree: ast.AST) -> Iterator[ast.Name]:
    """Each `__name__` that a logger is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in _LOGGERS:
            yield from (each for each in node.args[:1] if isinstance(each, ast.Name) and each.id == "__name__")


def _edits(
    tree: ast.Module, source: str, packages: Mapping[str, str], where: str, modules: frozenset[str]
) -> Iterator[_Edit]:
    lines = source.encode().splitlines(keepends=True)
    mapped_strings = set()
    # Calls come before their arguments in a walk, so that an argument of import_module is known when it is met.
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from _import_from_edit(node, lines, packages, where)
        elif isinstance(node, ast.Import):
            yield from _import_edits(node, packages, where)
        elif isinstance(node, ast.Call):
            if _called(node) == "__import__":
                raise MappingError(f"{where}:{node.lineno}: __import__ cannot be mapped; importlib.import_module can")
            if is_import_by_name(node):
                argument = _name_argument(node, where)
                mapped_strings.add(argument)
                yield from _string_edit(argument, lines, packages, where)
        elif isinstance(node, ast.Constant) and node not in mapped_strings and node.value in modules:
            raise MappingError(f"{where}:{node.lineno}: the string {node.value!r} names a module of ours")


def _import_from_edit(
    node: ast.ImportFrom, lines: list[bytes], packages: Mapping[str, str], where: str
) -> Iterator[_Edit]:
    if node.level:
        raise MappingError(f"{where}:{node.lineno}: a relative import")
    module = node.module or ""
    new_name = mapped_name(module, packages)
    if new_name is None:
        return
    match = re.compile(rb"from[ \t]+").match(lines[node.lineno - 1], node.col_offset)
    if match is None or not lines[node.lineno - 1].startswith(module.encode(), match.end()):
        raise MappingError(f"{where}:{node.lineno}: the module's name is not on the line of its `from`")
    yield _Edit(node.lineno, match.end(), module.encode(), new_name.encode())


def _import_edits(node: ast.Import, packages: Mapping[str, str], where: str) -> Iterator[_Edit]:
    for alias in node.names:
        new_name = mapped_name(alias.name, packages)
        if new_name is None:
            continue
        if alias.asname is None:
            raise MappingError(
                f"{where}:{node.lineno}: `import {alias.name}` binds a name that will not exist; "
                "write `from … import …`, or give it a name with `as`"
            )
        yield _Edit(alias.lineno, alias.col_offset, alias.name.encode(), new_name.encode())


def literal_name(argument: ast.expr) -> str | None:
    """The module's name in a plain string, or how it begins, up to a dot, in an f-string; None for anything else."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.JoinedStr) and argument.values and isinstance(argument.values[0], ast.Constant):
        head = str(argument.values[0].value)
        return head if head.endswith(".") else None
    return None


def _name_argument(call: ast.Call, where: str) -> ast.expr:
    if len(call.args) != 1 or call.keywords:
        raise MappingError(f"{where}:{call.lineno}: import_module with anything but one argument cannot be mapped")
    if literal_name(call.args[0]) is None:
        raise MappingError(f"{where}:{call.lineno}: import_module of what is no plain string cannot be mapped")
    return call.args[0]


def _string_edit(argument: ast.expr, lines: list[bytes], packages: Mapping[str, str], where: str) -> Iterator[_Edit]:
    name = literal_name(argument) or ""
    new_name = mapped_name(name, packages)
    if new_name is None:
        return
    opening = re.compile(rb"f?[\"']").match(lines[argument.lineno - 1], argument.col_offset)
    if opening is None or not lines[argument.lineno - 1].startswith(name.encode(), opening.end()):
        raise MappingError(f"{where}:{argument.lineno}: a module's name must be written as a plain string")
    yield _Edit(argument.lineno, opening.end(), name.encode(), new_name.encode())


def _applied(source: str, edits: list[_Edit]) -> str:
    lines = source.encode().splitlines(keepends=True)
    for edit in sorted(edits, key=lambda edit: (edit.line, edit.column_bytes), reverse=True):
        line = lines[edit.line - 1]
        end = edit.column_bytes + len(edit.old)
        lines[edit.line - 1] = line[: edit.column_bytes] + edit.new + line[end:]
    return b"".join(lines).decode()


class _Mapper(ast.NodeTransformer):
    """The same change made on the tree: what the edited source must parse to."""

    def __init__(self, packages: Mapping[str, str], logger: str) -> None:
        self._packages = packages
        self._logger = logger

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        node.module = self._mapped(node.module or "")
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            alias.name = self._mapped(alias.name)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if self._logger and _called(node) in _LOGGERS and [ast.unparse(each) for each in node.args[:1]] == ["__name__"]:
            node.args[0] = ast.Constant(self._logger)
        if is_import_by_name(node):
            argument = node.args[0]
            literal = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
            if isinstance(literal, ast.Constant):
                literal.value = self._mapped(str(literal.value))
        return node

    def _mapped(self, name: str) -> str:
        return mapped_name(name, self._packages) or name
