"""Man page and completions for bash, zsh and fish, out of the command line itself, so that they say what it takes.

`command_pages()` gives all of them by their places below a prefix such as /usr. What is read of argparse is what its
actions hold, never its help as text, which differs between versions of Python.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate import cli


@dataclass(frozen=True, slots=True)
class Option:
    """`value`: how its value is called; empty: it takes none."""

    name: str
    value: str
    help: str


@dataclass(frozen=True, slots=True)
class Page:
    """One command. `words`: `metadata dump`; `takes`: what comes after it, as a usage line has it."""

    words: str
    help: str
    takes: str
    places: tuple[tuple[str, str], ...]
    """Positional arguments, each with its help."""
    options: tuple[Option, ...]


def command_pages() -> dict[str, bytes]:
    """The text of each, by its place below a prefix."""
    pages = list(pages_of(cli.parser()))
    texts = {
        "share/man/man1/tidegate.1": man_page(pages),
        "share/bash-completion/completions/tidegate": bash(pages),
        "share/zsh/site-functions/_tidegate": zsh(pages),
        "share/fish/vendor_completions.d/tidegate.fish": fish(pages),
    }
    return {place: text.encode() for place, text in texts.items()}


def pages_of(parser: argparse.ArgumentParser, words: str = "", said: str = "") -> Iterator[Page]:
    """Every command below, in the order of `--help`."""
    actions = parser._actions  # argparse has no other way to ask
    groups = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    for group in groups:
        helps = {each.dest: each.help or "" for each in group._choices_actions}
        for name, below in group.choices.items():
            yield from pages_of(below, f"{words} {name}".strip(), helps.get(name, ""))
    if groups:
        return
    places = [each for each in actions if not each.option_strings]
    options = [each for each in actions if each.option_strings and each.dest != "help"]
    takes = [f"[{_named(each)}]" if each.nargs == "?" else _named(each) for each in places]
    takes += [_written(each) for each in options]
    yield Page(
        words,
        said,
        " ".join(takes),
        tuple((_named(each), each.help or "") for each in places),
        tuple(
            Option(each.option_strings[-1], "" if each.nargs == 0 else _named(each), each.help or "")
            for each in options
        ),
    )


def _named(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _written(action: argparse.Action) -> str:
    text = action.option_strings[-1] + ("" if action.nargs == 0 else f" {_named(action)}")
    return text if action.required else f"[{text}]"


def man_page(pages: list[Page]) -> str:
    lines = [
        '.TH TIDEGATE 1 "" "Tidegate" "User Commands"',
        ".SH NAME",
        r"tidegate \- a remote read replica for Kafka",
        ".SH SYNOPSIS",
        r".B tidegate",
        r"\fICOMMAND\fR \fIFILE\fR \&...",
        ".br",
        r".B tidegate \-\-version",
        ".SH DESCRIPTION",
        "A proxy before Kafka that serves offsets below the brokers' local log from the tier of KIP\\-405, and tools",
        "for that tier.",
        "FILE is a Java properties file; the brokers' own says what the tier is.",
        ".SH COMMANDS",
    ]
    for page in pages:
        lines += [f'.SS "tidegate {_roff(page.words)}"', rf".B tidegate {_roff(page.words)}", _roff(page.takes), ".PP"]
        lines.append(_roff(page.help[:1].upper() + page.help[1:] + "."))
        for name, said in page.places:
            lines += [".TP", rf"\fI{_roff(name)}\fR", _roff(said)]
        for option in page.options:
            value = rf" \fI{_roff(option.value)}\fR" if option.value else ""
            lines += [".TP", rf"\fB{_roff(option.name)}\fR{value}", _roff(option.help)]
    lines += [".SH EXIT STATUS", ".TP", "0", "Done.", ".TP", "1", "Something was found to be wrong.", ".TP", "2"]
    lines += ["The command line or the configuration is wrong."]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


def bash(pages: list[Page]) -> str:
    """Words are matched by all that stands before them: a command may have two."""
    groups: dict[str, list[str]] = {}
    for page in pages:
        *before, last = page.words.split()
        groups.setdefault(" ".join(before), []).append(last)
    first = dict.fromkeys([*groups.pop(""), *groups, "--help", "--version"])
    lines = [
        "# bash completion for tidegate",
        "_tidegate() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} words",
        "    COMPREPLY=()",
        '    if [[ $COMP_CWORD == 1 ]]; then words="' + " ".join(first) + '"',
    ]
    for group, names in groups.items():
        lines.append(
            f'    elif [[ $COMP_CWORD == 2 && ${{COMP_WORDS[1]}} == {group} ]]; then words="{" ".join(names)}"'
        )
    lines += ["    elif [[ $cur == -* ]]; then", '        case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in']
    for page in pages:
        pattern = f'"{page.words}"' if " " in page.words else f'"{page.words} "*'
        lines.append(f'        {pattern}) words="{" ".join([*(each.name for each in page.options), "--help"])}" ;;')
    return "\n".join(
        [
            *lines,
            "        esac",
            "    fi",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")',
            "}",
            "complete -o bashdefault -o default -F _tidegate tidegate",
            "",
        ]
    )


def fish(pages: list[Page]) -> str:
    """A rule a command, and one an option."""
    lines = ["# fish completion for tidegate"]
    firsts = dict.fromkeys(page.words.split()[0] for page in pages)
    helps = {page.words: page.help for page in pages} | cli.GROUPS
    for first in firsts:
        lines.append(f"complete -c tidegate -n __fish_use_subcommand -f -a {first} -d {_quoted(helps[first])}")
    for page in pages:
        first, _, second = page.words.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            no_other = f"{seen}; and not __fish_seen_subcommand_from {' '.join(_below(pages, first))}"
            lines.append(f"complete -c tidegate -n '{no_other}' -f -a {second} -d {_quoted(page.help)}")
            seen += f"; and __fish_seen_subcommand_from {second}"
        for option in page.options:
            takes = " -r" if option.value else ""
            lines.append(f"complete -c tidegate -n '{seen}' -l {option.name[2:]}{takes} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def zsh(pages: list[Page]) -> str:
    """`_arguments` for each command; the first word, or two, choose which."""
    firsts = dict.fromkeys(page.words.split()[0] for page in pages)
    helps = {page.words: page.help for page in pages} | cli.GROUPS
    lines = ["#compdef tidegate", "_tidegate() {", "    if (( CURRENT == 2 )); then", "        local -a names=("]
    lines += [f"            {_quoted(f'{_plain(first)}:{helps[first]}')}" for first in firsts]
    lines += ["        )", "        _describe command names", "        return", "    fi", "    case $words[2] in"]
    for first in firsts:
        below = _below(pages, first)
        if not below:
            [page] = (page for page in pages if page.words == first)
            lines += [f"        {first})", *_zsh_arguments(page, 2), "            ;;"]
            continue
        lines += [f"        {first})", "            if (( CURRENT == 3 )); then"]
        lines += [f"                _values command {' '.join(below)}", "                return", "            fi"]
        lines += ["            case $words[3] in"]
        for second in below:
            [page] = (page for page in pages if page.words == f"{first} {second}")
            lines += [f"                {second})", *_zsh_arguments(page, 3), "                    ;;"]
        lines += ["            esac", "            ;;"]
    return "\n".join([*lines, "    esac", "}", '_tidegate "$@"', ""])


def _zsh_arguments(page: Page, words: int) -> Iterator[str]:
    yield f"            shift {words - 1} words; (( CURRENT -= {words - 1} ))"
    yield "            _arguments \\"
    for option in page.options:
        value = f":{_plain(option.value)}:_files" if option.value else ""
        yield f"                {_quoted(f'{option.name}[{_plain(option.help)}]{value}')} \\"
    yield "                '*:file:_files'"


def _below(pages: list[Page], first: str) -> list[str]:
    return [page.words.split()[1] for page in pages if page.words.startswith(f"{first} ")]


def _plain(text: str) -> str:
    """Without what `_arguments` takes for its own syntax."""
    return re.sub(r"[\[\]:]", " ", text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "’") + "'"
