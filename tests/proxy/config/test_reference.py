"""docs/configuration.md is what the table says today."""

from proxy.config.keys import SERVE_KEYS
from proxy.config.reference import DOCUMENT, reference


def test_the_document_is_current() -> None:
    """If not: `python -m proxy.config.reference` writes it again."""
    assert DOCUMENT.read_text(encoding="utf-8") == reference()


def test_every_key_and_alias_is_in_it() -> None:
    text = reference()
    assert all(f"`{name}`" in text for name in SERVE_KEYS.by_name)


def test_every_key_is_listed_once_and_says_what_it_is_for() -> None:
    names = [key.name for key in SERVE_KEYS.all_keys()]
    assert len(names) == len(set(names))
    assert all(key.doc.endswith(".") for key in SERVE_KEYS.all_keys())


def test_every_key_says_when_it_is_followed() -> None:
    lines = {line.split("`")[1]: line for line in reference().splitlines() if line.startswith("| `")}
    for key in SERVE_KEYS.all_keys():
        assert f" | {key.reload.value} | {key.doc}" in lines[key.name]
