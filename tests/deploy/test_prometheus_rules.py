"""The alert rules are valid, ask for what is exported, are each tested by promtool, and lead to the guide."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus import CONFIG, FOLDER, ROOT, RULES, exported_names, names_in, promtool, rules

TESTS = sorted((FOLDER / "tests").glob("*.yml"))
ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
FUNCTIONS = {"humanizeDuration", "humanizePercentage", "printf"}


@pytest.mark.needs("prometheus")
def test_promtool_takes_the_rules_and_the_configuration_that_names_them() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)
    assert "1 rule files found" in promtool("check", "config", CONFIG)


@pytest.mark.needs("prometheus")
def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", *TESTS)


def test_a_rule_asks_for_what_is_exported() -> None:
    known = exported_names() | RECORDED | {"up"}
    for rule in rules():
        assert set() < names_in(rule["expr"]) <= known, rule


def test_promtool_tests_show_every_alert_firing_and_quiet() -> None:
    seen: set[tuple[str, bool]] = set()
    for test in (test for path in TESTS for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]):
        seen |= {(asked["alertname"], bool(asked["exp_alerts"])) for asked in test.get("alert_rule_test", [])}
        about = test["name"].partition(" ")[0]
        for asked in test.get("promql_expr_test", []):
            if "ALERTS" in asked["expr"]:
                labels = " ".join(sample["labels"] for sample in asked["exp_samples"])
                if not labels or f'alertname="{about}"' in labels:
                    seen.add((about, bool(labels)))
    assert {(rule["alert"], fires) for rule in ALERTS for fires in (False, True)} <= seen


def test_an_alert_says_what_it_is_about() -> None:
    for rule in ALERTS:
        annotations = rule["annotations"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(annotations) == {"summary", "description", "runbook"}
        assert "{{ $labels.instance }}" in annotations["summary"]
        for template in re.findall(r"{{(.*?)}}", " ".join(annotations.values())):
            words = set(re.findall(r"[a-zA-Z]\w*", re.sub(r'"[^"]*"|\$labels\.\w+|\$value', "", template)))
            assert words <= FUNCTIONS, template


def test_runbooks_are_headings_of_the_guide_and_the_guide_has_no_other() -> None:
    guide = (ROOT / "docs" / "operate" / "monitor.md").read_text(encoding="utf-8")
    _, _, section = guide.partition("\n## Alerts\n")
    headings = re.findall(r"^### (.+)$", section.partition("\n## ")[0], re.MULTILINE)
    assert sorted(headings) == sorted({rule["alert"] for rule in ALERTS})
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/operate/monitor.md#{rule['alert'].lower()}"


def test_the_command_in_the_rules_makes_links_of_all_runbooks(tmp_path: Path) -> None:
    (command,) = re.findall(r"^#     (sed .*)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    shutil.copy(RULES, tmp_path)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    changed = yaml.safe_load((tmp_path / RULES.name).read_text(encoding="utf-8"))
    annotations = [rule["annotations"] for group in changed["groups"] for rule in group["rules"] if "alert" in rule]
    links = [each["runbook_url"].partition("/docs/") for each in annotations]
    assert ["docs/" + path for _, _, path in links] == [rule["annotations"]["runbook"] for rule in ALERTS]
    assert {begin for begin, _, _ in links} == {"https://git.example.org/tidegate/blob/v0.2.0"}
