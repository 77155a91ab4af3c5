"""The report: a line for each finding, the table of keys, a verdict."""

import io
import json

from proxy.commands.report import Report
from proxy.config.model import EffectiveKey
from tests.proxy.commands.test_output import Terminal


def test_findings_are_one_line_each_and_only_wrong_ones_count() -> None:
    out = io.StringIO()
    report = Report(out)
    report.ok("broker 1 at a:1")
    report.warning("w" * 300)
    report.wrong("[bold]no[/bold] :smile:")
    report.verdict()
    assert out.getvalue().splitlines() == [
        "ok      broker 1 at a:1",
        "warning " + "w" * 300,
        "WRONG   [bold]no[/bold] :smile:",
        "",
        "1 wrong",
    ]
    assert report.wrong_count == 1


def test_each_key_has_its_value_and_origin_on_one_line() -> None:
    out = io.StringIO()
    keys = [
        EffectiveKey(name="upstream.sasl.password", value="[hidden]", origin="tidegate.properties:3", text="secret"),
        EffectiveKey(name="mode", value="replica", origin="default", text="replica"),
    ]
    Report(out).keys(keys)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines == [
        ["key", "value", "origin"],
        ["upstream.sasl.password", "[hidden]", "tidegate.properties:3"],
        ["mode", "replica", "default"],
    ]


def test_as_json_it_is_one_document_and_progress_is_for_terminals() -> None:
    out, terminal, file = io.StringIO(), Terminal(), io.StringIO()
    report = Report(out, as_json=True, progress=terminal)
    report.keys([EffectiveKey(name="mode", value="replica", origin="default", text="replica")])
    report.section("Tier")
    report.progress("1 of 2")
    report.warning("slow")
    report.wrong("gone")
    assert out.getvalue() == ""
    report.verdict()
    findings = [{"verdict": "warning", "sentence": "slow"}, {"verdict": "wrong", "sentence": "gone"}]
    assert json.loads(out.getvalue()) == {
        "keys": [{"name": "mode", "value": "replica", "origin": "default"}],
        "sections": [{"title": "Tier", "findings": findings}],
        "wrong": 1,
        "warnings": 1,
        "verdict": "1 wrong",
    }
    assert "1 of 2" in terminal.getvalue()
    Report(io.StringIO(), progress=file).progress("1 of 2")
    assert file.getvalue() == ""
