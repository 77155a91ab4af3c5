"""Guides that hold every shape that tests.support.runnable_docs tells apart."""

import os
from pathlib import Path

import pytest

from tests.support.for_each import for_each
from tests.support.runnable_docs import Command, Guide, GuideError, matches, read_guide, running, split_commands

VARIABLES = "```sh\nPLACE=/etc/somewhere   # yours\nNAME=orders\n```\n"
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def follow(guide: Guide, folder: Path, **values: str) -> list[str]:
    with running(guide, folder=folder, values=values, environment=ENVIRONMENT) as shell:
        return [printed for _, printed in shell.follow()]


def test_a_guide_is_variables_and_commands_with_what_they_print() -> None:
    guide = read_guide(
        f"{VARIABLES}Text.\n\n```sh\nfirst\nsecond\n```\n\n```text\nout\n```\n\n```properties\na=b\n```\n"
    )
    assert guide.variables == {"PLACE": "/etc/somewhere", "NAME": "orders"}
    assert guide.commands == (Command("first"), Command("second", "out\n"))


@for_each(
    "markdown",
    ["```text\nout\n```\n", "```sh\nls\n```\n", f"{VARIABLES}```text\nout\n```\n", f"{VARIABLES}```sh\nif true\n```\n"],
)
def test_what_cannot_be_run_is_refused(markdown: str) -> None:
    with pytest.raises(GuideError):
        read_guide(markdown)


def test_lines_that_belong_together_are_one_command() -> None:
    body = "# a comment\ncat > file <<END\none\ntwo\nEND\n\necho \\\n  three\nwhile false\ndo :; done\n"
    assert split_commands(body) == ["cat > file <<END\none\ntwo\nEND", "echo \\\n  three", "while false\ndo :; done"]


@for_each(
    "expected, printed, is_same",
    [
        ("a\n", "a\n", True),
        ("a\n", "a  \n", True),
        ("a\n", "a\nb\n", False),
        ("a ... c\n", "a b b c\n", True),
        ("a ... c\n", "a b\nc\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nd\n", True),
        ("...\n", "", True),
        ("a+\n", "aa\n", False),
    ],
)
def test_dots_stand_for_anything(expected: str, printed: str, is_same: bool) -> None:
    assert matches(expected, printed) is is_same


def test_commands_share_one_shell_and_one_folder(tmp_path: Path) -> None:
    commands = 'seen="$NAME"\necho "$seen" > file\nsleep 60 &\ncat file; kill $!\n'
    markdown = f"{VARIABLES}```sh\n{commands}```\n```text\norders\n```\n"
    assert follow(read_guide(markdown), tmp_path, NAME="others")[-1] == "others\n"
    assert (tmp_path / "file").read_text() == "others\n"


@for_each("block, says", [("(exit 3)\n```\n", "exit code 3"), ("echo a\n```\n```text\nb\n```\n", "and not")])
def test_a_command_that_fails_or_prints_something_else_ends_it(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(GuideError, match=says):
        follow(read_guide(f"{VARIABLES}```sh\n{block}"), tmp_path)


def test_only_what_the_reader_fills_in_is_replaced(tmp_path: Path) -> None:
    with pytest.raises(GuideError, match="OTHER"):
        follow(read_guide(f"{VARIABLES}```sh\ntrue\n```\n"), tmp_path, OTHER="x")
