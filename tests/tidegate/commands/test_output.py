"""Tables, JSON and progress: what people and programs get to see."""

import io
import re

import pytest

from tidegate.commands.output import print_table, printable


def test_a_table_is_plain_lines_whatever_is_in_it() -> None:
    out = io.StringIO()
    print_table(out, ("name", "bytes"), [("[red]a\x1b[2J\n", 7), ("b" * 150, None)])
    heading, first, second = out.getvalue().splitlines()
    assert heading.split() == ["name", "bytes"]
    assert first.split() == ["[red]a\\x1b[2J\\x0a", "7"]
    assert second.strip() == "b" * 150


def test_what_moves_a_cursor_is_shown_as_its_number() -> None:
    assert printable("a\x00\x9bé b") == "a\\x00\\x9bé b"


def test_no_word_is_cut_in_two_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: ids and keys were folded in mid-word, and could not be copied."""
    monkeypatch.setenv("COLUMNS", "40")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    print_table(out, ("key", "id"), [("k" * 60, "i" * 60)])
    assert re.sub("\x1b[^m]*m", "", out.getvalue()).splitlines()[1].split() == ["k" * 60, "i" * 60]
