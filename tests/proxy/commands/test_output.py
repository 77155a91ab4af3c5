"""Tables, JSON and progress: what people and programs get to see."""

import io
import json
import sys

import pytest

from proxy.commands.output import Progress, iso_time, print_json, print_json_line, print_table, printable


def test_a_table_is_plain_lines_whatever_is_in_it() -> None:
    out = io.StringIO()
    print_table(out, ("name", "bytes"), [("[red]a\x1b[2J\n", 7), ("b" * 150, None)])
    heading, first, second = out.getvalue().splitlines()
    assert heading.split() == ["name", "bytes"]
    assert first.split() == ["[red]a\\x1b[2J\\x0a", "7"]
    assert second.strip() == "b" * 150


def test_json_is_one_document_or_one_line() -> None:
    out = io.StringIO()
    print_json_line(out, {"a": "é\n"})
    assert out.getvalue() == '{"a":"é\\n"}\n'
    out = io.StringIO()
    print_json(out, {"a": [1]})
    assert json.loads(out.getvalue()) == {"a": [1]}


def test_times_are_iso_8601_if_a_calendar_has_them() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert iso_time(-1) is iso_time(2**62) is None


def test_what_moves_a_cursor_is_shown_as_its_number() -> None:
    assert printable("a\x00\x9bé b") == "a\\x00\\x9bé b"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for err in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", err)
        with Progress("checking", "bytes") as progress:
            progress.told(1, 2000, ", 3 findings")
        assert ("1/2,000 bytes, 3 findings" in err.getvalue()) == err.isatty()
