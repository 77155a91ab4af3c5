"""A command of a guide that fails, or prints what the guide does not, is found."""

import os
from pathlib import Path

import pytest

from tests.support.for_each import for_each
from tests.support.runnable_docs import Guide, GuideError, matches, read_guide, running

VARIABLES = "```sh\nPLACE=/etc/somewhere   # yours\nNAME=orders\n```\n"
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def follow(guide: Guide, folder: Path, **values: str) -> list[str]:
    with running(guide, folder=folder, values=values, environment=ENVIRONMENT) as shell:
        return [printed for _, printed in shell.follow()]


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


@for_each("block, says", [("(exit 3)\n```\n", "exit code 3"), ("echo a\n```\n```text\nb\n```\n", "and not")])
def test_a_command_that_fails_or_prints_something_else_ends_it(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(GuideError, match=says):
        follow(read_guide(f"{VARIABLES}```sh\n{block}"), tmp_path)
