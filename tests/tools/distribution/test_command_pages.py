"""Man page and completions, as the programs that read them take them."""

import subprocess
from pathlib import Path

import pytest

from tests.support.for_each import for_each
from tidegate import cli
from tools.distribution.command_pages import command_pages

PAGES = {Path(place).name: text.decode() for place, text in command_pages().items()}
BASH = """
source "$0"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tidegate; printf '%s\\n' "${COMPREPLY[@]}"
"""
TYPED = {
    ("scan", "FILE", "--wh"): {"--where"},
    ("v",): {"verify"},
    ("metadata", ""): {"dump", "import"},
    ("cat", "FILE", "--max"): {"--max-records"},
    ("metadata", "import", "FILE", "--a"): {"--append", "--after"},
}
"""What is typed after `tidegate`, and what may come of the last word."""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.needs("man")
def test_the_man_page_is_read_without_a_warning_and_names_all(tmp_path: Path) -> None:
    (tmp_path / "tidegate.1").write_text(PAGES["tidegate.1"])
    shown = " ".join(run("man", "--warnings", "--local-file", str(tmp_path / "tidegate.1")).split())
    for command in cli.COMMANDS:
        assert f"tidegate {command.name} FILE" in shown
    assert "tidegate cat FILE TOPIC:PARTITION [--config FILE] [--topic-id ID] [--from-offset N]" in shown
    assert "--older-than TIME" in shown


@for_each("typed", [*TYPED])
def test_bash_completes(typed: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tidegate").write_text(PAGES["tidegate"])
    found = run("bash", "--norc", "-c", BASH, str(tmp_path / "tidegate"), "tidegate", *typed)
    assert set(found.split()) == TYPED[typed]


@pytest.mark.needs("fish")
@for_each("typed", [*TYPED])
def test_fish_completes(typed: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tidegate.fish").write_text(PAGES["tidegate.fish"])
    line = " ".join(("tidegate", *typed))
    program = f"source {tmp_path}/tidegate.fish; complete --do-complete '{line}'"
    found = run("fish", "--no-config", "--command", program)
    assert {said.split()[0] for said in found.splitlines()} == TYPED[typed]


@pytest.mark.needs("zsh")
def test_zsh_reads_it() -> None:
    """Its completion runs in a terminal alone; here it is read, and what `_arguments` and others get is printed."""
    said = "_arguments() { printf '%s\\n' \"$@\"; }; _describe() { print -l $names; }; _values() { print -l $@; }\n"
    for typed, wanted in TYPED.items():
        words = " ".join(f"'{word}'" for word in ("tidegate", *typed))
        before = f"{said}words=({words}); CURRENT={len(typed) + 1}\n"
        found = run("zsh", "-f", "-c", before + PAGES["_tidegate"].replace('_tidegate "$@"', "_tidegate"))
        for word in wanted:
            assert any(line.startswith(word) for line in found.splitlines()), (typed, found)
