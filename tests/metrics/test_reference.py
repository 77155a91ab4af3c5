"""docs/metrics.md is what is declared, and it names what is exported."""

import re

from metrics.meters import Meters
from metrics.reference import reference
from tests.support.prometheus import ROOT, exported_names

DOCUMENT = ROOT / "docs" / "metrics.md"
OF_LIBRARY = ("process_", "python_gc_")


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), "run: python -m metrics.reference > docs/metrics.md"


def test_whatever_is_on_the_page_is_in_the_document() -> None:
    text = reference()
    for metric in Meters().registry.collect():
        if not metric.name.startswith(OF_LIBRARY):
            assert f"| `{metric.name}" in text
            assert f"| {metric.documentation} |" in text


def test_benchmarks_and_tools_ask_for_what_is_exported() -> None:
    files = (path for folder in ("benchmarks", "tools") for path in (ROOT / folder).rglob("*.py"))
    asked = {name for path in files for name in re.findall(r'"(tidegate_[a-z_]+)"', path.read_text("utf-8"))}
    assert "tidegate_gets_total" in asked
    assert asked - {"tidegate_spark"} <= exported_names()  # that is the package for Spark
