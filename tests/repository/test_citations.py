"""What text and code cite is there: every document and every anchor, in docstrings, comments and Markdown links."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.repository.sources import FILES, ROOT, none_of, relative, text_of

CITED = re.compile(r"(?<![\w/.-])((?:docs|docs/operate|benchmarks)/[\w-]+\.md|[A-Z]+\.md)(?:#([\w-]+))?")
LINKED = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
EXPLICIT = re.compile(r'<a id="([\w-]+)"></a>')


@cache
def anchors(document: Path) -> frozenset[str]:
    """Explicit ones, and those that GitHub makes of headings."""
    text = text_of(document)
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text))
    return frozenset([*EXPLICIT.findall(text), *headings])


def dead(path: Path, document: Path, anchor: str) -> Iterator[str]:
    if not document.exists():
        yield f"{relative(path)}: {document.name} is not there"
    elif anchor and anchor not in anchors(document):
        yield f"{relative(path)}: {document.name} has no #{anchor}"


def test_every_cited_document_and_anchor_is_there() -> None:
    none_of(
        [
            problem
            for path in FILES
            if path.suffix in (".md", ".py")
            for document, anchor in CITED.findall(text_of(path))
            for problem in dead(path, ROOT / document, anchor)
        ]
    )


def test_every_link_between_documents_leads_somewhere() -> None:
    none_of(
        [
            problem
            for path in FILES
            if path.suffix == ".md"
            for target, anchor in LINKED.findall(text_of(path))
            for problem in dead(path, path.parent / target if target else path, anchor)
        ]
    )


NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def missing_tests(text: str) -> list[str]:
    """Tests that a document names and that do not exist."""
    return [
        f"{path}::{test}"
        for path, test in NAMED_TEST.findall(text)
        if not (ROOT / path).is_file() or (test and f"def {test}(" not in text_of(ROOT / path))
    ]


def test_every_test_that_the_conformance_table_names_exists() -> None:
    text = text_of(ROOT / "docs" / "conformance.md")
    assert len(NAMED_TEST.findall(text)) > 60
    none_of(missing_tests(text))


def test_every_sentence_of_the_threat_model_names_one_test_that_exists() -> None:
    text = text_of(ROOT / "SECURITY.md")
    sentences = [each.partition("\n\n")[0] for each in text.split("\n- ")[1:]]
    assert len(sentences) > 25
    none_of([each for each in sentences if [bool(test) for _, test in NAMED_TEST.findall(each)] != [True]])
    none_of(missing_tests(text))


def test_every_decision_names_a_test_that_exists() -> None:
    text = text_of(ROOT / "docs" / "decisions.md")
    decisions = [each for each in text.split("\n\n") if each.startswith("**")]
    assert len(decisions) > 40
    none_of([each.splitlines()[0] for each in decisions if not NAMED_TEST.search(each)])
    none_of(missing_tests(text))
