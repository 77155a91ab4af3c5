"""Writes Grafana's dashboard, from the root of the checkout:

    python -m deploy.grafana.make_dashboard > deploy/grafana/dashboards/tidegate-dashboard.json

The rows are in `service_rows` and `tier_rows`; `panels` turns them into JSON. A test holds the file current and every
query to the names of docs/metrics.md; another asks a real Prometheus every query.

Recorded series are not used, so that the dashboard works where the rule file is not loaded.
"""

import json
import sys
from typing import Any, Final

from deploy.grafana.copy_rows import COPYING
from deploy.grafana.panels import panels_json
from deploy.grafana.service_rows import CLIENTS, HEALTH, PROCESS
from deploy.grafana.tier_rows import CACHE, CATALOG, READ_AHEAD, STORE, TIER

UID: Final = "tidegate"
SCHEMA_VERSION: Final = 41
"""Grafana 12's. Newer ones convert it, older ones read what they know."""

ROWS: Final = (HEALTH, CLIENTS, TIER, CACHE, STORE, READ_AHEAD, CATALOG, COPYING, PROCESS)


def dashboard() -> dict[str, Any]:
    """The whole dashboard as Grafana's JSON has it."""
    return {
        "uid": UID,
        "title": "Tidegate",
        "description": "Health, clients, tier reads, cache, object store, read-ahead, catalog and process of Tidegate.",
        "tags": ["kafka", "tidegate"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": panels_json(ROWS),
    }


def _variables() -> list[dict[str, Any]]:
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        {**datasource, "current": {}, "hide": 0, "includeAll": False, "multi": False, "refresh": 1, "regex": ""},
        _labels("job", "Job", "label_values(tidegate_build_info, job)"),
        _labels("instance", "Instance", 'label_values(tidegate_build_info{job=~"$job"}, instance)'),
    ]


def _labels(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "current": {"text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "multi": True,
        "hide": 0,
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
