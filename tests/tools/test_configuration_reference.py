"""docs/configuration.md is what the keys say today."""

from tools.configuration_reference import DOCUMENT, reference


def test_the_document_is_current() -> None:
    """If not: `python -m tools.configuration_reference` writes it again."""
    document = DOCUMENT.read_text(encoding="utf-8")
    assert document == reference(document)
