"""Lines of code and files of each package: blank lines, comments and docstrings do not count.

    python -m tools.code_lines [REVISION ...]

Counts the tree as it is, and each revision that is named beside it. The product is what is installed; `tests` is
everything that only shows that it works.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("copier", "metrics", "pipeline", "protocol", "proxy", "standalone", "storage", "table", "tidegate")
"""`copier` is in older revisions alone."""
OTHERS = ("tests", "benchmarks", "tools", "deploy")
_NOTHING = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def code_lines(text: str) -> int:
    """Lines that hold a token of code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = {
        line
        for token in tokens
        if token.type not in _NOTHING and token.string
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(kept - _docstring_lines(text))


def _docstring_lines(text: str) -> set[int]:
    """Also those behind a field or a constant, which documentation tools read."""
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def count(files: Iterable[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Lines and files of each package. `files`: paths in the project, and their texts."""
    found: dict[str, Counter[str]] = {name: Counter() for name in (*PRODUCT, *OTHERS)}
    for name, text in files:
        package = name.partition("/")[0]
        if package in found and name.endswith(".py"):
            found[package]["lines"] += code_lines(text)
            found[package]["files"] += 1
    return found


def files_now() -> Iterator[tuple[str, str]]:
    """Yield what git tracks, or would."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def files_of(revision: str) -> Iterator[tuple[str, str]]:
    """Those of a commit."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            content = members.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
            if content is not None:
                yield member.name, content.read().decode()


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Lines of code and files of each package.")
    parser.add_argument("revisions", nargs="*", metavar="REVISION", help="commits to count beside")
    revisions = parser.parse_args(arguments).revisions
    columns = {revision: count(files_of(revision)) for revision in revisions} | {"now": count(files_now())}
    print(f"{'':12}" + "".join(f"{name[:16]:>18}" for name in columns))
    for row in (*PRODUCT, "product", *OTHERS):
        packages = PRODUCT if row == "product" else (row,)
        sums = [sum((found[package] for package in packages), Counter[str]()) for found in columns.values()]
        print(f"{row:12}" + "".join(f"{each['lines']:>10} /{each['files']:>5}" + " " for each in sums))
    return 0


if __name__ == "__main__":
    sys.exit(main())
