"""The house rules that no linter knows: sizes, leftovers, names of machines, what the documents name.

A rule that must be broken is broken by an entry below with its reason, never by a looser rule.
"""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
LICENSE = ROOT / "LICENSE"
PACKAGES = ("copier", "metrics", "pipeline", "protocol", "proxy", "storage")

FILE_LINES_MAX = 700
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TEST_NAME_LENGTH_MAX = 79
COLUMNS_MAX = 120

CODE_SUFFIXES = (".go", ".java", ".js", ".py", ".sh", ".toml")
CODE_NAMES = ("Makefile", "run")

# Written in two parts each, so that this file does not hold what it forbids.
LEFTOVERS = ("FIX" + "ME", "TO" + "DO", "X" + "XX:", "HA" + "CK:")
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo", "maven", "apache", "org"),
        ("repo1", "maven", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("deb", "debian", "org"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:work|root|home|Users)/\w")
PUBLIC_ALL_THE_SAME = {"__class__", "__dict__", "__doc__", "__file__", "__name__", "_asdict", "_replace"}
SUPPRESSION = re.compile(r"# (?:type: ignore|noqa)(?:\[[\w, -]+\]|: [A-Z]+\d+(?:, [A-Z]+\d+)*)?(?P<reason>.*)")


def project_files() -> list[Path]:
    """What git tracks or would track. A tree without git (a source archive) is taken whole but for hidden folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if path.is_file())
        skipped = (".venv", "build", "dist")
        return [path for path in found if path.relative_to(ROOT).parts[0] not in skipped]
    return [ROOT / name for name in sorted(listed.decode().split("\0")) if name and (ROOT / name).is_file()]


FILES = project_files()
CODE_FILES = [path for path in FILES if path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES]
PYTHON_FILES = [path for path in FILES if path.suffix == ".py"]
TEST_FILES = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] == "tests"]
PACKAGE_FILES = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] in PACKAGES]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def none_of(found: list[str], what: str = "") -> None:
    """Fail with every finding on a line of its own; an assert would cut the list short."""
    if found:
        pytest.fail("\n".join([*([what] if what else []), *found]), pytrace=False)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


class Function(NamedTuple):
    place: str
    name: str
    lines: int


@functools.cache
def functions() -> Sequence[Function]:
    """Of all files: reading them takes seconds."""
    return [
        Function(
            f"{relative(path)}:{node.lineno} {node.name}", node.name, (node.end_lineno or node.lineno) - node.lineno + 1
        )
        for path in PYTHON_FILES
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_files_are_short() -> None:
    too_long = []
    for path in CODE_FILES:
        lines = text_of(path).count("\n")
        limit = TEST_FILE_LINES_MAX if relative(path).startswith("tests/") else FILE_LINES_MAX
        if lines > limit:
            too_long.append(f"{relative(path)}: {lines} lines, at most {limit}")
    none_of(too_long)


def test_functions_are_short() -> None:
    none_of([f"{each.place}: {each.lines} lines" for each in functions() if each.lines > FUNCTION_LINES_MAX])


def test_names_of_tests_are_short() -> None:
    tests = [each for each in functions() if each.name.startswith("test_")]
    none_of([f"{each.place}: {len(each.name)} characters" for each in tests if len(each.name) > TEST_NAME_LENGTH_MAX])


def test_lines_fit_the_columns() -> None:
    none_of(
        [
            f"{relative(path)}:{number}"
            for path in CODE_FILES
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if len(line) > COLUMNS_MAX
        ]
    )


def test_nothing_is_left_over() -> None:
    none_of(
        [
            f"{relative(path)}: {word}"
            for path in FILES
            if path != LICENSE
            for word in LEFTOVERS
            if word in text_of(path)
        ]
    )


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in FILES:
        text = text_of(path)
        found += [f"{relative(path)}: {host}" for host in REGISTRY_HOSTS if host in text]
        found += [f"{relative(path)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    none_of(found)


def test_locks_hold_no_address() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    none_of([relative(path) for path in locks if "://" in text_of(path)])


def test_suppressions_say_why() -> None:
    none_of(
        [
            f"{relative(path)}:{number}"
            for path in PYTHON_FILES
            if path != Path(__file__)
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if (match := SUPPRESSION.search(line)) and not match["reason"].strip(" #")
        ]
    )


def test_no_error_is_dropped_in_silence() -> None:
    """An except of `pass` alone; contextlib.suppress with a word of comment is how to mean it."""
    found = []
    for path in PACKAGE_FILES:
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
                found.append(f"{relative(path)}:{node.lineno}")
    none_of(found)


def test_no_fake_is_a_subclass_of_a_product_class() -> None:
    """It would hold what the product's class does today. A stand-in is a class of its own, or wraps the real one."""
    found = []
    for path in TEST_FILES:
        nodes = list(ast.walk(ast.parse(text_of(path))))
        ours = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES
            for alias in node.names
        }
        found += [
            f"{relative(path)}:{node.lineno} {node.name}({ast.unparse(base)})"
            for node in nodes
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if re.split(r"\W", ast.unparse(base))[0] in {*ours, *PACKAGES}
        ]
    none_of(found)


def private_names(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Line, whether it is the object's own, and name of each private attribute in the file, trio's left out."""
    for node in ast.walk(ast.parse(text_of(path))):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr in PUBLIC_ALL_THE_SAME:
            continue
        owner = ast.unparse(node.value)
        if not owner.startswith("trio."):
            yield node.lineno, owner in ("self", "cls"), node.attr


def test_tests_reach_into_no_private_field() -> None:
    """Of a name that the product has. Helpers of tests with such a name show it in public too."""
    ours = {name for path in PACKAGE_FILES for _, is_own, name in private_names(path) if is_own}
    none_of(
        [
            f"{relative(path)}:{line} {name}"
            for path in TEST_FILES
            for line, is_own, name in private_names(path)
            if not is_own and name in ours
        ]
    )


def test_files_open_with_their_contract() -> None:
    """A test file may let its name speak."""
    none_of(
        [
            relative(path)
            for path in PYTHON_FILES
            if not path.name.startswith("test_") and ast.get_docstring(ast.parse(text_of(path))) is None
        ]
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_ours_and_not_namesakes(package: str) -> None:
    """The names are common ones, and other distributions install folders of the same name."""
    assert importlib.import_module(package).__file__ == str(ROOT / package / "__init__.py")


def test_protocol_imports_the_standard_library_kio_and_a_checksum_only() -> None:
    allowed = {*sys.stdlib_module_names, "crc32c", "kio", "protocol"}
    found = []
    for path in PACKAGE_FILES:
        if path.relative_to(ROOT).parts[0] != "protocol":
            continue
        for node in ast.walk(ast.parse(text_of(path))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found += [f"{relative(path)}: {name}" for name in names if name.partition(".")[0] not in allowed]
    none_of(found)


def test_architecture_names_files_that_exist() -> None:
    """In backticks: a whole path, `storage/model.py`, or a folder and then its files' names, `storage/`: `model`."""
    text = text_of(ROOT / "ARCHITECTURE.md")
    named, folder = {}, ""
    for token in re.findall(r"`([^`\n]+)`", text):
        if token.endswith("/"):
            folder = token
        elif re.fullmatch(r"[a-z_0-9/]+(\.py)?", token):
            name = token.removesuffix(".py")
            named[token] = {f"{name}.py", f"{folder}{name}.py", name, f"{folder}{name}"}
    there = {relative(path) for path in FILES}
    there |= {parent.as_posix() for name in there for parent in Path(name).parents}
    gone = [token for token, places in named.items() if token.partition("/")[0] in PACKAGES and not places & there]
    none_of(sorted(gone), "named in ARCHITECTURE.md, but not in the tree:")
