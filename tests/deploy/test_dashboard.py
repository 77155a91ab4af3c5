"""The dashboard is current, valid and about what is exported; Grafana's provisioning of compose finds it."""

import itertools
import re
import subprocess
import sys
from typing import Any

import yaml

from tests.support.prometheus import (
    CONFIG,
    DASHBOARD,
    ROOT,
    all_meters,
    dashboard,
    dashboard_queries,
    exported_names,
    names_in,
    series_names,
)

GRAFANA = ROOT / "deploy" / "grafana"
MAKE = "deploy.grafana.make_dashboard"
PANELS: list[dict[str, Any]] = dashboard()["panels"]
CHARTS = [panel for panel in PANELS if panel["type"] != "row"]
UNITS = {"none", "s", "ms", "ops", "reqps", "Bps", "bytes", "percentunit"}
COLUMNS = 24

NOT_SHOWN = {
    "kafka_server_delayedremotelistoffsetsmetrics_expires": "by partition, and only once one expires: deadline misses "
    "has it",
    "tidegate_store_tls_python": "it does not change: the ready line and the status page have it",
}
"""Families without a panel, and why."""


def test_the_file_is_what_the_script_makes() -> None:
    made = subprocess.run([sys.executable, "-m", MAKE], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    shown = DASHBOARD.relative_to(ROOT)
    assert DASHBOARD.read_text(encoding="utf-8") == made, f"run: python -m {MAKE} > {shown}"


def test_panels_have_ids_and_titles_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in CHARTS}) == len(CHARTS)
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        columns = range(place["x"], place["x"] + place["w"])
        for cell in itertools.product(columns, range(place["y"], place["y"] + place["h"])):
            assert cell not in taken, f"{panel['title']} lies upon {taken[cell]}"
            taken[cell] = panel["title"]
    # A row is above its panels and below those before.
    tops = [panel["gridPos"]["y"] for panel in PANELS]
    assert tops == sorted(tops)


def test_a_panel_has_a_unit_and_queries_whose_series_have_names() -> None:
    for panel in CHARTS:
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        targets = panel["targets"]
        assert targets, panel["title"]
        assert len({target["refId"] for target in targets}) == len(targets), panel["title"]
        assert all(target["legendFormat"] for target in targets), panel["title"]
        assert all(target["datasource"] == panel["datasource"] for target in targets)


def test_a_query_asks_for_what_is_exported_of_the_chosen_instances() -> None:
    for title, expression in dashboard_queries().items():
        names = names_in(expression)
        assert names, title
        assert names <= exported_names(), title
        selectors = re.findall(r"\{([^}]*)\}", expression)
        assert all('job=~"$job", instance=~"$instance"' in selector for selector in selectors), title
        assert len(selectors) == sum(len(re.findall(rf"\b{name}\{{", expression)) for name in names), title


def test_every_family_has_a_panel_or_a_reason() -> None:
    shown = {name for expression in dashboard_queries().values() for name in names_in(expression)}
    absent = {family.name for family in all_meters().registry.families if not series_names(family) & shown}
    assert absent == set(NOT_SHOWN)


def test_grafana_of_compose_is_given_the_data_source_and_the_folder() -> None:
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"]
    assert (source["uid"], source["type"]) == ("tidegate-prometheus", "prometheus")
    scraped = yaml.safe_load(CONFIG.read_text("utf-8"))["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tidegate.yml").read_text("utf-8"))["providers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in compose["volumes"])
    assert mounts[f"./{DASHBOARD.parent.relative_to(ROOT)}"] == provider["options"]["path"]
    assert mounts[f"./{provisioning.relative_to(ROOT)}"] == "/etc/grafana/provisioning"
