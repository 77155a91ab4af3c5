"""The documents stay short enough to be read."""

from tests.repository.sources import FILES, relative, text_of

WORDS_MAX = 40_000


def test_all_documents_together_are_no_longer_than_said() -> None:
    """As `wc -w` counts. Who adds a page takes out what is said twice."""
    words = {relative(path): len(text_of(path).split()) for path in FILES if path.suffix == ".md"}
    assert len(words) > 30
    assert sum(words.values()) <= WORDS_MAX, words
