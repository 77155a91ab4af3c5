"""Tables, JSON and progress: what people and programs get to see."""

import io

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
