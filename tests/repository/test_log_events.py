"""Log events: snake_case, and each in the lists of docs/operate/events.md with its level and its meaning."""

import ast
import functools
import re
from collections import defaultdict

from tests.repository.sources import PACKAGE_FILES, ROOT, none_of, text_of

LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
HELPERS = {"log"}
"""Functions and variables that stand for a logger's method; their level is chosen while running."""

SECTION = re.compile(r"^### (Errors|Warnings|Information|Debug)$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^- ((?:`\w+`,?\s+)*`\w+`)(?:\s+\(also\s([a-z, ]+)\))?:\s+\S", re.MULTILINE)
LEVEL = {"Errors": "error", "Warnings": "warning", "Information": "info", "Debug": "debug"}


def listed() -> dict[str, set[str]]:
    """Each event of the page, with its levels: that of its section, and those that it may have too."""
    found: dict[str, set[str]] = {}
    for heading, section in SECTION.findall(text_of(ROOT / "docs" / "operate" / "events.md")):
        items = [(names.replace("`", "").replace(",", " ").split(), also) for names, also in ITEM.findall(section)]
        assert len(items) == len(re.findall("^- ", section, re.MULTILINE))
        assert [names[0] for names, _ in items] == sorted(names[0] for names, _ in items)
        for names, also in items:
            assert not found.keys() & names
            found |= {event: {LEVEL[heading], *also.split(", ")} - {""} for event in names}
    return found


@functools.cache
def logged() -> tuple[dict[str, set[str]], set[object]]:
    """Each event that stands in a call of a logger, with its levels as far as they stand there too; and all constants
    of the code, among which are those that are put together before."""
    found: dict[str, set[str]] = defaultdict(set)
    constants: set[object] = set()
    for path in PACKAGE_FILES:
        for call in ast.walk(ast.parse(text_of(path))):
            if isinstance(call, ast.Constant):
                constants.add(call.value)
            if not isinstance(call, ast.Call) or not call.args:
                continue
            level = level_of(call.func)
            events = [node.value for node in parts(call.args[0]) if isinstance(node, ast.Constant)]
            if level is not None:
                for event in events:
                    found[str(event)] |= {level} - {""}
    return found, constants


def level_of(function: ast.expr) -> str | None:
    """Empty for a helper; None if this is no call of a logger."""
    if isinstance(function, ast.Name):
        return "" if function.id in HELPERS else None
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    if function.value.id.strip("_") != "log" or function.attr not in LEVELS:
        return None
    return "error" if function.attr == "exception" else function.attr


def parts(expression: ast.expr) -> tuple[ast.expr, ...]:
    return (expression.body, expression.orelse) if isinstance(expression, ast.IfExp) else (expression,)


def test_events_are_in_snake_case_and_on_the_page_with_their_levels() -> None:
    events, _ = logged()
    assert len(events) > 50
    page = listed()
    none_of([event for event in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)])
    none_of([f"{event}: {sorted(levels)}" for event, levels in events.items() if not levels <= page.get(event, set())])


def test_every_event_of_the_page_is_in_the_code() -> None:
    _, constants = logged()
    none_of([event for event in listed() if event not in constants])
