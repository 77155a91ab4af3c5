"""How a command line is read, and which properties file it means.

FILE is `--config FILE`, or the first word after the command that is a file or ends in `.properties`; else it is found:
`TIDEGATE_CONFIG`, then the usual places. A word that nothing else of the command could take is FILE, too, so that a
misspelt one is named as a file that is not there.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

VARIABLE: Final = "TIDEGATE_CONFIG"
PLACES: Final = ("tidegate.properties", "/etc/tidegate/tidegate.properties")
NOWHERE: Final = (
    f"there is no FILE: name one, or set {VARIABLE}, or write {' or '.join(PLACES)}; `tidegate init` writes one"
)
ENDING: Final = ".properties"


def found_file(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the file where none is named, and the words that say where it was found; None: there is none."""
    if environ.get(VARIABLE):
        return environ[VARIABLE], f"by {VARIABLE}"
    for place in PLACES:
        if Path(place).is_file():
            return place, "a usual place"
    return None


class Parser(argparse.ArgumentParser):
    """Says where to read on. Help is one screen, so what a command's place is called has no line of its own."""

    takes_file = False

    def add_file(self) -> None:
        """Make it a command that takes FILE, which is in `file`; `found` says where if no one has named it."""
        self.takes_file = True
        usual = f"the properties file; default: ${VARIABLE}, ./{', '.join(PLACES)}"
        self.add_argument("file", metavar="FILE", type=Path, help=usual)
        self.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the same")
        self.set_defaults(found="")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # argparse's own
        """The same, with FILE where argparse takes it wherever it stood."""
        if not self.takes_file:
            return super().parse_known_args(args, namespace)
        words, found = self._with_file(list(args))
        parsed, rest = super().parse_known_args(words, namespace)
        if found is None:
            self.error(NOWHERE)
        parsed.found = found
        return parsed, rest

    def format_help(self) -> str:
        return super().format_help().replace("\n  COMMAND\n", "\n", 1)

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}; {self.prog} --help shows how it is used")

    def _with_file(self, words: list[str]) -> tuple[list[str], str | None]:
        """Return the words with FILE before the first of the others, and where it was found, "" if it was named."""
        named, places = self._places(words)
        others = [each for each in self._actions if not each.option_strings and each.dest != "file"]
        found: str | None = ""
        if named is not None:
            at, count, file = named
            del words[at : at + count]
            if len(places) > len(others):
                self.error(f"FILE stands there twice: --config {file}, and {words[self._places(words)[1][0]]}")
        elif places and self._is_file(words[places[0]], len(places), others):
            file = words.pop(places[0])
        else:
            file, found = found_file(os.environ) or ("", None)
        rest = self._places(words)[1]
        at = rest[0] if rest else 0
        return [*words[:at], *([file or "."]), *words[at:]], found

    @staticmethod
    def _is_file(word: str, count: int, others: Sequence[argparse.Action]) -> bool:
        """Return whether the first of so many words is FILE; one that is needed elsewhere is so by its ending alone."""
        if word.endswith(ENDING) or count > len(others):
            return True
        is_there = Path(word).exists() and not Path(word).is_dir()
        return is_there and count > sum(each.required for each in others)

    def _places(self, words: Sequence[str]) -> tuple[tuple[int, int, str] | None, list[int]]:
        """Return where `--config` stands, over how many words, and what it names; and where words of no option are."""
        named, places, at = None, list[int](), 0
        while at < len(words):
            word, _, value = words[at].partition("=")
            count = 1
            if not word.startswith("-"):
                places.append(at)
            else:
                known = [each for each in self._actions if any(name.startswith(word) for name in each.option_strings)]
                meant = [each for each in known if word in each.option_strings] or known
                if len(meant) == 1 and meant[0].nargs != 0 and "=" not in words[at]:
                    count = 2
                if len(meant) == 1 and meant[0].dest == "config" and (value or at + 1 < len(words)):
                    named = at, count, value or words[at + 1]
            at += count
        return named, places
