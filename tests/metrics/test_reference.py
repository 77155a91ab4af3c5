"""docs/metrics.md is what is declared, and it names what is exported."""

from tests.support.prometheus import ROOT
from tools.metrics_reference import reference

DOCUMENT = ROOT / "docs" / "metrics.md"


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), "python -m tools.metrics_reference > docs/metrics.md"
