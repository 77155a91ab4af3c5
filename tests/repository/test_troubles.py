"""The list of troubles, walked: each has a sentence, a place in the guide, an alert, and somebody who tells of it."""

import re
from typing import Any

import yaml

from metrics.troubles import GUIDE, TROUBLES, Severity, TroubleId
from tests.repository.sources import PACKAGE_FILES, ROOT, none_of, text_of

PAGES = {path.stem: text_of(path) for path in (ROOT / GUIDE).glob("*.md")}
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(text_of(ROOT / "deploy" / "prometheus" / "tidegate-rules.yml"))["groups"]
    for rule in group["rules"]
    if rule.get("labels", {}).get("severity") == "critical"
]
ALERTS = {rule["alert"].lower() for rule in RULES if rule["alert"] != "TidegateTrouble"}


def sections() -> dict[str, str]:
    """Each place of the guide, with its text."""
    found = {}
    for page, text in PAGES.items():
        plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for heading, body in re.findall(r"^##+ (.+)$((?:\n(?!##).*)*)", plain, re.MULTILINE):
            found[f"{page}#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")] = body
    return found


def link(section: str) -> str:
    """From the page of all troubles."""
    return section.replace("#", ".md#").removeprefix("monitor.md")


def test_each_has_a_cause_a_remedy_and_a_place_in_the_guide() -> None:
    assert [*TROUBLES] == [*TroubleId]
    none_of([each.value for each in TroubleId if not re.fullmatch(r"[a-z]+(_[a-z]+)*", each.value)])
    none_of([each.value for each, known in TROUBLES.items() if not (known.about and known.means and known.remedy)])
    none_of([f"{each}: {known.section}" for each, known in TROUBLES.items() if known.section not in sections()])


def test_the_guide_has_a_line_for_each() -> None:
    for severity, heading in ((Severity.CRITICAL, "critical"), (Severity.WARNING, "warnings")):
        text = " ".join(sections()[f"monitor#{heading}"].split())
        for each in (each for each, known in TROUBLES.items() if known.severity is severity):
            line = f"[`{each}`]({link(TROUBLES[each].section)})"
            explained = "" if TROUBLES[each].section.startswith("monitor#tidegate") else f": {TROUBLES[each].means}"
            assert line + explained in text, each


def test_the_page_by_symptom_names_those_that_lead_there() -> None:
    found = sections()
    of_it = [(each, known.section) for each, known in TROUBLES.items() if known.section.startswith("troubleshoot#")]
    assert of_it
    none_of([each.value for each, section in of_it if f"`{each}`" not in found[section]])


def test_each_critical_one_has_an_alert() -> None:
    """Its own, to whose section it leads, or the one of those that have none."""
    (rule,) = [rule for rule in RULES if rule["alert"] == "TidegateTrouble"]
    named = [each for ids in re.findall(r'id=~"([^"]+)"', rule["expr"]) for each in ids.split("|")]
    critical = [each for each, known in TROUBLES.items() if known.severity is Severity.CRITICAL]
    assert named == [each.value for each in critical if TROUBLES[each].section.partition("#")[2] not in ALERTS]


def test_somebody_tells_of_each_by_the_table() -> None:
    """Ids are members of the enumeration: mypy refuses others, and nobody writes one as a text."""
    code = {path: text_of(path) for path in PACKAGE_FILES if path != ROOT / "metrics" / "troubles.py"}
    none_of([each.value for each in TroubleId if not any(f"TroubleId.{each.name}" in text for text in code.values())])
    calls = [(path, call) for path, text in code.items() for call in re.findall(r"readiness\.tell\(\s*(\S+)", text)]
    none_of([f"{path}: {call}" for path, call in calls if not re.match(r"TroubleId\.[A-Z_]+|trouble\b", call)])
