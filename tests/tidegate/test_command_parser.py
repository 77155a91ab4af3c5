"""Which properties file a command line means."""

import argparse
from pathlib import Path

import pytest

from pipeline.jobs import command_line
from tests.support.for_each import for_each
from tidegate import cli, command_parser

Captured = pytest.CaptureFixture[str]
TEXT = "upstream.bootstrap.servers=broker:9092\nremote.log.storage.manager.class.name=tidegate.PlainObjects\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; its `etc` stands for the machine's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_CONFIG", raising=False)
    monkeypatch.setattr(command_parser, "PLACES", ("tidegate.properties", str(tmp_path / "etc")))
    for name in ("own.conf", "lines"):
        (tmp_path / name).write_text(TEXT)
    (tmp_path / "folder").mkdir()
    return tmp_path


def parsed(*words: str) -> argparse.Namespace:
    return cli.parser().parse_args(words)


def refusal(capsys: Captured, *words: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        parsed(*words)
    return capsys.readouterr().err


@for_each(
    "words, others",
    [
        (["check", "own.conf"], {}),
        (["check", "--config", "own.conf"], {}),
        (["check", "--conf", "own.conf"], {}),
        (["check", "--all", "--config=own.conf"], {"all": True}),
        (["cat", "own.conf", "a:0", "--max-records", "3"], {"max_records": 3}),
        (["cat", "--max-records", "3", "own.conf", "a:0"], {"max_records": 3}),
        (["cat", "own.conf", "--max-records", "3", "a:0"], {"max_records": 3}),
        (["cat", "--max", "3", "a:0", "--config", "own.conf"], {"max_records": 3}),
        (["ls", "--json", "own.conf"], {"as_json": True, "place": None}),
        (["metadata", "import", "own.conf", "lines", "--yes"], {"lines": Path("lines"), "writes": None}),
        (["metadata", "import", "lines", "--config", "own.conf"], {"lines": Path("lines")}),
    ],
)
def test_a_named_file_is_taken_wherever_it_stands(words: list[str], others: dict[str, object]) -> None:
    options = parsed(*words)
    assert (options.file, options.found) == (Path("own.conf"), "")
    assert {name: getattr(options, name, None) for name in others} == others


@for_each("word", ["no.properties", "folder/no.properties"])
def test_a_word_with_the_ending_is_the_file_also_if_there_is_none(word: str) -> None:
    assert parsed("ls", word).file == Path(word)


def test_a_word_that_nothing_else_can_take_is_the_file(here: Path) -> None:
    (here / "tidegate.properties").write_text(TEXT)
    assert parsed("check", "misspelt.conf").file == Path("misspelt.conf")
    assert parsed("ls", "misspelt.conf", "orders").file == Path("misspelt.conf")


def test_without_a_name_the_first_usual_place_counts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "etc").write_text(TEXT)
    assert parsed("check").file == here / "etc"
    (here / "tidegate.properties").write_text(TEXT)
    assert parsed("check").file == Path("tidegate.properties")
    monkeypatch.setenv("TIDEGATE_CONFIG", "named")
    assert (parsed("check").file, parsed("check").found) == (Path("named"), "by TIDEGATE_CONFIG")
    monkeypatch.setenv("TIDEGATE_CONFIG", "")
    assert parsed("check").file == Path("tidegate.properties")
    assert parsed("check", "own.conf").file == Path("own.conf")


@for_each("words", [["ls", "folder"], ["ls", "--stored", "folder"], ["metadata", "import", "lines"]])
def test_what_the_command_itself_takes_is_no_file(words: list[str], here: Path) -> None:
    """A topic that is called like a folder here; the lines to import, which are a file."""
    (here / "tidegate.properties").write_text(TEXT)
    assert parsed(*words).file == Path("tidegate.properties")


def test_what_cannot_be_is_said_in_words(here: Path, capsys: Captured) -> None:
    assert "there is no FILE: name one, or set TIDEGATE_CONFIG" in refusal(capsys, "check")
    twice = refusal(capsys, "check", "own.conf", "--config", "other.conf")
    assert "FILE stands there twice: --config other.conf, and own.conf" in twice
    assert "expected one argument" in refusal(capsys, "check", "--config")
    (here / "tidegate.properties").write_text(TEXT)
    assert "the following arguments are required: TOPIC:PARTITION" in refusal(capsys, "cat", "tidegate.properties")
    assert "unrecognized arguments" in refusal(capsys, "check", "own.conf", "other.conf")


def test_help_needs_no_file(capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="0"):
        parsed("check", "--help")
    assert "TIDEGATE_CONFIG" in capsys.readouterr().out


@for_each(
    "words, out, err",
    [
        (["check"], True, False),
        (["check", "--json"], False, True),
        (["ls"], False, True),
        (["serve"], False, True),
        (["check", "tidegate.properties"], False, False),
    ],
)
def test_a_file_that_was_found_is_named_first(
    words: list[str], out: bool, err: bool, here: Path, capsys: Captured
) -> None:
    """Here it is wrong besides; a `serve` that starts names it in its first event."""
    (here / "tidegate.properties").write_text(f"{TEXT}mode=x\n")
    assert cli.main(words) == 2
    said, line = capsys.readouterr(), "tidegate: FILE is tidegate.properties, a usual place\n"
    assert said.out == (line if out else "")
    assert said.err.startswith(line) == err
    assert said.err.count("mode = x") == 1


def test_the_variable_is_no_unknown_key(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    from tidegate.config import load

    assert load(here / "own.conf", {"TIDEGATE_CONFIG": "x"}).warnings == ()


def test_jobs_on_spark_find_the_file_too(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    ran: list[list[str]] = []

    def run(words: list[str]) -> int:
        ran.append(words)
        return 0

    monkeypatch.setattr(command_line, "main", run)
    (here / "tidegate.properties").touch()
    for words in (["audit", "--topics", "orders"], ["audit", "--config=own.properties"], ["audit", "--help"]):
        assert cli.main(["spark", *words]) == 0
    assert ran[0] == ["audit", "--topics", "orders", "--config", "tidegate.properties"]
    assert ran[1:] == [["audit", "--config=own.properties"], ["audit", "--help"]]
    assert capsys.readouterr().err == "tidegate: FILE is tidegate.properties, a usual place\n"
