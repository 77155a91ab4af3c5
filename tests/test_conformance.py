"""docs/conformance.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "conformance.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_test_that_the_document_names_exists() -> None:
    named = NAMED.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len(named) > 60
    missing = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file() or (f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8") and test)
    ]
    assert missing == []
