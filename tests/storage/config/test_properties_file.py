"""Properties files: Java's syntax, lines, limits."""

from pathlib import Path

import pytest

from storage.config import properties_file
from storage.config.properties_file import PropertiesError, Property, read_properties


def test_keys_carry_the_line_they_begin_on(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_bytes(b"# comment\r\n\r\na=1\nb = x\\\n   y\\\n   z\n! more\nc:\xfc\\u00fc\r\n")
    assert read_properties(file) == {
        "a": Property("1", (3,)),
        "b": Property("xyz", (4,)),
        "c": Property("üü", (8,)),
    }


def test_the_last_of_a_repeated_key_counts_and_all_lines_are_known(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("a=1\nb=2\na=3\n")
    assert read_properties(file)["a"] == Property("3", (1, 3))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"absent\.properties: cannot be read: No such file"):
        read_properties(tmp_path / "absent.properties")


def test_a_bad_escape_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("a=1\nb=\\u12\n")
    with pytest.raises(PropertiesError, match=r"a\.properties:2: bad escape"):
        read_properties(file)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties_file, "FILE_BYTES_MAX", 8)
    file = tmp_path / "a.properties"
    file.write_text("a=12345678")
    with pytest.raises(PropertiesError, match="larger than 8 bytes"):
        read_properties(file)
