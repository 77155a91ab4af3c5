"""The blocks of a Markdown page, by the section that they stand in: `Section 1`, `Section 2`.

A block is fenced. Lines that are indented as code are a block, too, of the language `indented`: nothing on a page is
code that nobody looks at.
"""

import re
from dataclasses import dataclass

_HEADING = re.compile(r"#{1,6} (?P<title>.+)")
_FENCE = re.compile(r"\s*```(?P<language>\w*)")


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    language: str
    body: str


def blocks_of(markdown: str) -> dict[str, Block]:
    """By name, in the order of the page."""
    found: dict[str, Block] = {}
    section, counts = "", {"": 0}
    lines = iter(markdown.splitlines())
    before = ""
    indented: list[str] = []

    def add(language: str, body: list[str]) -> None:
        counts[section] = counts.get(section, 0) + 1
        name = f"{section} {counts[section]}"
        found[name] = Block(name, language, "\n".join(body) + "\n")

    for line in lines:
        if line.startswith("    ") and (indented or not before.strip()):
            indented.append(line[4:])
            continue
        if indented:
            add("indented", indented)
            indented = []
        if fence := _FENCE.fullmatch(line):
            body = []
            while (inner := next(lines)).strip() != "```":
                body.append(inner)
            add(fence["language"], body)
        elif heading := _HEADING.fullmatch(line):
            section = heading["title"]
        before = line
    if indented:
        add("indented", indented)
    return found
