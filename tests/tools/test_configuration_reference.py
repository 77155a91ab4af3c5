"""docs/configuration.md is what the keys say today."""

from proxy.config.model import SERVE_KEYS
from tools.configuration_reference import DOCUMENT, reference


def test_the_document_is_current() -> None:
    """If not: `python -m tools.configuration_reference` writes it again."""
    document = DOCUMENT.read_text(encoding="utf-8")
    assert document == reference(document)


def test_every_key_has_one_line_with_its_spellings_and_when_it_is_followed() -> None:
    rows = [line for line in reference("").splitlines() if line.startswith("| `")]
    for key in SERVE_KEYS.keys:
        (row,) = [row for row in rows if row.startswith(f"| `{key.name}` ")]
        assert all(f"`{name}`" in row for name in key.aliases)
        assert f" | {key.reload.value} | {key.doc}" in row
        assert key.doc.endswith(".")
