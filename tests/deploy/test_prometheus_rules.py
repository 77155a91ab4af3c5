"""The alert rules are valid, ask for what is exported, are each tested by promtool, and lead to the guide."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus import CONFIG, FOLDER, ROOT, RULES, config_for, exported_names, names_in, promtool, rules

TESTS = sorted((FOLDER / "tests").glob("*.yml"))
ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
FUNCTIONS = {"humanizeDuration", "humanizePercentage", "printf"}


def promtool_tests(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
    return found


@pytest.mark.needs("prometheus")
def test_promtool_takes_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)


@pytest.mark.needs("prometheus")
def test_promtool_takes_the_configuration_and_finds_the_rules_by_it() -> None:
    assert "1 rule files found" in promtool("check", "config", CONFIG)


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    promtool("test", "rules", path)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_what_is_exported(rule: dict[str, str]) -> None:
    names = names_in(rule["expr"])
    assert names
    assert names <= exported_names() | RECORDED | {"up"}


@pytest.mark.parametrize("alert", sorted({alert["alert"] for alert in ALERTS}))
def test_promtool_tests_show_an_alert_firing_and_quiet(alert: str) -> None:
    fires, quiet = False, False
    for test in (test for path in TESTS for test in promtool_tests(path)):
        about = str(test["name"]).startswith(f"{alert} ")
        for asked in test.get("alert_rule_test", []):  # type: ignore[attr-defined]  # YAML has no types
            fires |= asked["alertname"] == alert and bool(asked["exp_alerts"])
            quiet |= asked["alertname"] == alert and not asked["exp_alerts"]
        for asked in test.get("promql_expr_test", []):  # type: ignore[attr-defined]  # YAML has no types
            if about and "ALERTS" in asked["expr"]:
                fires |= any(f'alertname="{alert}"' in sample["labels"] for sample in asked["exp_samples"])
                quiet |= not asked["exp_samples"]
    assert fires, "no test expects it to fire"
    assert quiet, "no test expects it to be quiet"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_an_alert_says_what_it_is_about(rule: dict[str, dict[str, str]]) -> None:
    annotations = rule["annotations"]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(annotations) == {"summary", "description", "runbook"}
    assert "{{ $labels.instance }}" in annotations["summary"]
    for template in re.findall(r"{{(.*?)}}", " ".join(annotations.values())):
        words = set(re.findall(r"[a-zA-Z]\w*", re.sub(r'"[^"]*"|\$labels\.\w+|\$value', "", template)))
        assert words <= FUNCTIONS, template


def test_runbooks_are_headings_of_the_guide_and_the_guide_has_no_other() -> None:
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    _, _, section = guide.partition("\n## Alerts\n")
    headings = re.findall(r"^### (.+)$", section.partition("\n## ")[0], re.MULTILINE)
    assert sorted(headings) == sorted({rule["alert"] for rule in ALERTS})
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_the_command_in_the_rules_makes_links_of_all_runbooks(tmp_path: Path) -> None:
    (command,) = re.findall(r"^#     (sed .*)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    shutil.copy(RULES, tmp_path)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    changed = yaml.safe_load((tmp_path / RULES.name).read_text(encoding="utf-8"))
    annotations = [rule["annotations"] for group in changed["groups"] for rule in group["rules"] if "alert" in rule]
    links = [each["runbook_url"].partition("/docs/") for each in annotations]
    assert ["docs/" + path for _, _, path in links] == [rule["annotations"]["runbook"] for rule in ALERTS]
    assert {begin for begin, _, _ in links} == {"https://git.example.org/tidegate/blob/v0.1.0"}


def test_the_test_configuration_differs_in_target_and_intervals_only() -> None:
    shipped = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    changed = config_for("127.0.0.1:1")
    assert changed["global"].keys() == shipped["global"].keys()
    shipped["global"] = changed["global"]
    shipped["scrape_configs"][0]["static_configs"] = [{"targets": ["127.0.0.1:1"]}]
    assert changed == shipped


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (job) (rate(a_total{x="b(c"}[5m])) / on (job) b:c > 0.5', {"a_total", "b:c"}),
        ("time() - (a_seconds > 0 or b_seconds) > 30 * 86400", {"a_seconds", "b_seconds"}),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket{}[$__rate_interval])))", {"a_bucket"}),
        ("up == 0 and on (job) a unless b", {"up", "a", "b"}),
    ],
)
def test_the_names_of_an_expression_are_found(expression: str, names: set[str]) -> None:
    assert names_in(expression) == names
