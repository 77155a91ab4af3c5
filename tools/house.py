"""How simple the tree is, in figures: `make house`.

What is counted says where to look. Nothing fails by it, and nothing is renamed or joined to please it.
"""

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from storage.object_store.files.store import FileSystemStore
from tools.block_path import trace_fetches
from tools.code_lines import PRODUCT, code_lines, files_now

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS_MANY = 8
OWNER_WORDS = re.compile(r"log_starts is (not )?None|owns_tier|is_at_broker|edits is None|parted_at|is_put_off")
"""How code asked whose tier it is."""

OWNER_ASKED = re.compile(r"\.(is_alone|can_broker_read|tells_all_aborts)\b|isinstance\(owner|Mode\.STANDALONE else")
"""How code branches on what the tier's owner says, or chooses one."""

_LOADED = (
    "import sys, tidegate.serve\n"
    "print(*(each.__file__ for each in sys.modules.values() if getattr(each, '__file__', None)))"
)


def main() -> int:
    """Print the table, and what each file is for."""
    texts = {name: text for name, text in files_now() if name.partition("/")[0] in PRODUCT}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    for said, figure in rows(texts, trees):
        print(f"{said:66} {figure}")
    for name, tree in sorted(trees.items()):
        said, _, _ = (ast.get_docstring(tree) or "").partition("\n")
        print(f"{name:50} {said}")
    return 0


def rows(texts: Mapping[str, str], trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """A line each: what is counted, and how much there is of it."""
    lines = {name: code_lines(text) for name, text in texts.items()}
    loaded = loaded_by_serve() & {*texts}
    yield "product, code lines / files", f"{sum(lines.values()):,} / {len(lines)}"
    yield "loaded with tidegate.serve, code lines / files", f"{sum(lines[each] for each in loaded):,} / {len(loaded)}"
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = trace_fetches(FileSystemStore(Path(folder) / "objects"), Path(folder) / "keys")
    yield "files that one Fetch enters, cold / warm", f"{len(cold.files())} / {len(warm.files())}"
    outside = {name: text for name, text in texts.items() if not name.startswith("standalone/")}
    mentioned = sum(len(OWNER_WORDS.findall(text)) for text in outside.values())
    asked = sum(len(OWNER_ASKED.findall(text)) for text in outside.values())
    yield "mentions of whose tier it is, outside standalone/; branches on it", f"{mentioned}; {asked}"
    both_ways, exceptions = len(storage_pairs_both_ways(trees)), len(contract_exceptions())
    yield "storage's folder pairs both ways; exceptions in all contracts", f"{both_ways}; {exceptions}"
    implemented = implementations(trees)
    yield (
        "Protocols / with one implementation",
        f"{len(implemented)} / {sum(each == 1 for each in implemented.values())}",
    )
    imported = len({*imports_of(trees["tidegate/serve.py"], {*texts})})
    many = sum(_parameters(each) >= PARAMETERS_MANY for tree in trees.values() for each in _functions(tree))
    yield f"serve's imports of ours; functions with {PARAMETERS_MANY} or more parameters", f"{imported}; {many}"
    words = len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    yield "ARCHITECTURE.md, words", f"{words:,}"


def loaded_by_serve() -> set[str]:
    """Files of this project that a process has when it has imported serve."""
    done = subprocess.run([sys.executable, "-c", _LOADED], cwd=ROOT, check=True, capture_output=True, text=True)
    found = (Path(each) for each in done.stdout.split())
    return {str(each.relative_to(ROOT)) for each in found if each.is_relative_to(ROOT)}


def storage_pairs_both_ways(trees: Mapping[str, ast.Module]) -> list[tuple[str, str]]:
    """Folders of storage that import each other."""
    inside = {name: tree for name, tree in trees.items() if name.startswith("storage/")}
    arrows = {(_folder(name), _folder(to)) for name, tree in inside.items() for to in imports_of(tree, {*inside})}
    folders = sorted({name for arrow in arrows for name in arrow})
    return [(one, other) for one, other in combinations(folders, 2) if {(one, other), (other, one)} <= arrows]


def _folder(name: str) -> str:
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else "(storage)"


def contract_exceptions() -> list[str]:
    """Arrows inside the project that import-linter passes over."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    ignored = [each for contract in settings["contracts"] for each in contract.get("ignore_imports", ())]
    return [each for each in ignored if each.rpartition(" ")[2].partition(".")[0] in PRODUCT]


def imports_of(tree: ast.Module, files: set[str]) -> Iterator[str]:
    """Files of ours that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{each.name}" for each in node.names):
                path = name.replace(".", "/")
                candidates = (f"{path}.py", f"{path.rpartition('/')[0]}.py", f"{path.rpartition('/')[0]}/__init__.py")
                yield from (each for each in candidates if each in files)


def implementations(trees: Mapping[str, ast.Module]) -> dict[str, int]:
    """Each Protocol, and how many classes have all of its members, of their own or inherited."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    protocols = [each for each in classes if "Protocol" in _bases(each)]
    bases = {each.name: each for each in classes}
    others = [_members(each, bases) for each in classes if each not in protocols]
    return {each.name: sum(_members(each, {}) <= other for other in others) for each in protocols}


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(each).partition("[")[0] for each in node.bases]


def _members(node: ast.ClassDef, bases: Mapping[str, ast.ClassDef]) -> set[str]:
    """Methods, attributes, and what else is set in it."""
    own = {each.name for each in _functions(node)}
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
            own.add(each.id if isinstance(each, ast.Name) else each.attr)
    return own.union(*(_members(bases[each], bases) for each in _bases(node) if each in bases))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    return len([each for each in (*arguments.args, *arguments.kwonlyargs) if each.arg != "self"])


if __name__ == "__main__":
    sys.exit(main())
