"""The house rules that no linter knows: sizes, leftovers, names of machines, what the documents name.

A rule that must be broken is broken by an entry below with its reason, never by a looser rule.
"""

import ast
import functools
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.repository.sources import FILES, PACKAGES, PYTHON_FILES, ROOT, none_of, relative, text_of

LICENSE = ROOT / "LICENSE"

FILE_LINES_MAX = 700
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TEST_NAME_LENGTH_MAX = 79
COLUMNS_MAX = 120

CODE_SUFFIXES = (".go", ".java", ".js", ".mk", ".py", ".sh", ".toml")
CODE_NAMES = ("Makefile", "run")
CODE_FILES = [path for path in FILES if path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES]

# Written in two parts each, so that this file does not hold what it forbids.
LEFTOVERS = ("FIX" + "ME", "TO" + "DO", "X" + "XX:", "HA" + "CK:")
# What has a plainer word: the actor is the subject, and the verb comes second.
UNPLAIN = re.compile(
    "|".join(
        (
            r"(?<!\w)O" + r"f(?= )",  # no sentence begins with it
            r"\bane" + r"w\b",
            r"\b[Ll]es" + r"t\b",
            r"\b[Ww]hoev" + r"er\b",
            r"\b(?:is|are|be)\s+to" + r"ld\b",
            r"\bto" + r"ld off\b",
            r"\bof la" + r"te\b",
            r", for o" + r"ne[,.;:)]",
        )
    )
)
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


# --- of text ---


def test_files_are_short_and_lines_fit_the_columns() -> None:
    found = []
    for path in CODE_FILES:
        lines = text_of(path).splitlines()
        limit = TEST_FILE_LINES_MAX if relative(path).startswith("tests/") else FILE_LINES_MAX
        if len(lines) > limit:
            found.append(f"{relative(path)}: {len(lines)} lines, at most {limit}")
        found += [f"{relative(path)}:{number}" for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
    none_of(found)


def test_nothing_is_left_over_nor_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in FILES:
        text = text_of(path)
        found += [f"{relative(path)}: {word}" for word in LEFTOVERS if word in text and path != LICENSE]
        found += [f"{relative(path)}: {host}" for host in REGISTRY_HOSTS if host in text]
        found += [f"{relative(path)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    none_of(found)


def test_words_are_plain() -> None:
    found = []
    for path in FILES:
        text = text_of(path)
        for match in UNPLAIN.finditer(text) if path != LICENSE else ():
            found.append(f"{relative(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}")
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


# --- of syntax: each file is parsed and walked once, for all rules ---

Rule = Callable[[Path, str, Sequence[ast.AST]], Iterator[str]]
"""A file, the folder that it is in, its tree's nodes; gives what breaks the rule."""


def functions_are_short(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno} {node.name}: {lines} lines"


def names_of_tests_are_short(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            characters = len(node.name) if node.name.startswith("test_") else 0
            if characters > TEST_NAME_LENGTH_MAX:
                yield f"{node.lineno} {node.name}: {characters} characters"


def no_error_is_dropped_in_silence(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """An except of `pass` alone; contextlib.suppress with a word of comment is how to mean it."""
    for node in nodes:
        if not isinstance(node, ast.ExceptHandler) or folder not in PACKAGES:
            continue
        if all(isinstance(line, ast.Pass) for line in node.body):
            yield str(node.lineno)


def no_fake_is_a_subclass_of_a_product_class(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """It would hold what the product's class does today. A stand-in is a class of its own, or wraps the real one."""
    ours = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES
        for alias in node.names
    }
    for node in nodes:
        for base in node.bases if folder == "tests" and isinstance(node, ast.ClassDef) else ():
            if re.split(r"\W", ast.unparse(base))[0] in {*ours, *PACKAGES}:
                yield f"{base.lineno} {ast.unparse(base)}"


def files_open_with_their_contract(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """A test file may let its name speak."""
    (module,) = (node for node in nodes if isinstance(node, ast.Module))
    if not path.name.startswith("test_") and ast.get_docstring(module) is None:
        yield "1"


def docstrings_of_functions_begin_with_no_clause(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Such a sentence lacks its verb: "Return whether …", "Check that …", "Note how many …". A test's name has it."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test_"):
            word = (ast.get_docstring(node) or "").partition(" ")[0]
            if word in ("Have", "How", "So", "What", "Where", "Whether"):
                yield f"{node.lineno} {node.name}: {word} …"


def protocol_imports_the_standard_library_kio_and_a_checksum_only(
    path: Path, folder: str, nodes: Sequence[ast.AST]
) -> Iterator[str]:
    allowed = {*sys.stdlib_module_names, "crc32c", "kio", "protocol"}
    for node in nodes if folder == "protocol" else ():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.partition(".")[0] not in allowed:
                yield name


def private_names(path: Path, folder: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Line, name and owner of each private attribute, trio's left out: of the packages the objects' own, of the tests
    the others'. Not a rule, but what one is made of."""
    for node in nodes if folder in (*PACKAGES, "tests") else ():
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr in PUBLIC_ALL_THE_SAME:
            continue
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if is_own == (folder in PACKAGES) and not ast.unparse(node.value).startswith("trio."):
            yield f"{node.lineno} {node.attr}"


RULES: tuple[Rule, ...] = (
    functions_are_short,
    names_of_tests_are_short,
    no_error_is_dropped_in_silence,
    no_fake_is_a_subclass_of_a_product_class,
    files_open_with_their_contract,
    docstrings_of_functions_begin_with_no_clause,
    protocol_imports_the_standard_library_kio_and_a_checksum_only,
)


@functools.cache
def broken() -> Mapping[Rule, list[str]]:
    found: Mapping[Rule, list[str]] = defaultdict(list)
    for path in PYTHON_FILES:
        nodes = list(ast.walk(ast.parse(text_of(path))))
        for rule in (*RULES, private_names):
            found[rule] += [f"{relative(path)}:{each}" for each in rule(path, path.relative_to(ROOT).parts[0], nodes)]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_of_syntax(rule: Rule) -> None:
    none_of(broken()[rule])


def test_tests_reach_into_no_private_field() -> None:
    """No name that the product has. Helpers of tests with such a name show it in public too."""
    of_tests = [each for each in broken()[private_names] if each.startswith("tests/")]
    ours = {each.rpartition(" ")[2] for each in broken()[private_names] if not each.startswith("tests/")}
    assert ours
    none_of([each for each in of_tests if each.rpartition(" ")[2] in ours])


# --- of what is imported and named ---


def test_packages_are_ours_and_not_namesakes() -> None:
    """The names are common ones, and other distributions install folders of the same name."""
    for package in PACKAGES:
        assert importlib.import_module(package).__file__ == str(ROOT / package / "__init__.py")


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
