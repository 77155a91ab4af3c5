"""docs/metrics.md is what the tables say."""

from pathlib import Path

from metrics.kip405 import ROWS
from metrics.reference import reference
from metrics.tidegate_names import FAMILIES

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), "run: python -m metrics.reference > docs/metrics.md"


def test_every_row_of_both_tables_is_in_the_document() -> None:
    text = reference()
    assert all(f"`{row.mbean}`" in text for row in ROWS)
    assert all(f"`{family.exposed_name}`" in text for family in FAMILIES)
