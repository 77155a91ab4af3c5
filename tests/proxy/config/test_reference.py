"""docs/configuration.md is what the keys say today."""

from proxy.config.model import SERVE_KEYS
from proxy.config.reference import DOCUMENT, reference


def test_the_document_is_current() -> None:
    """If not: `python -m proxy.config.reference` writes it again."""
    assert DOCUMENT.read_text(encoding="utf-8") == reference()


def test_every_key_has_one_line_with_its_spellings_and_when_it_is_followed() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    for key in SERVE_KEYS.keys:
        (row,) = [row for row in rows if row.startswith(f"| `{key.name}` ")]
        assert all(f"`{name}`" in row for name in key.aliases)
        assert f" | {key.reload.value} | {key.doc}" in row
        assert key.doc.endswith(".")
