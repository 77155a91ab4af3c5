"""Rows, panels and queries of a Grafana dashboard, and the JSON that they become.

The queries select by the dashboard's variables `job` and `instance`. Rates of several instances are added up; gauges
are a line an instance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

COLUMNS: Final = 24
HEIGHTS: Final = {"row": 1, "stat": 4, "timeseries": 7}
_OF_INSTANCES: Final = 'job=~"$job", instance=~"$instance"'
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; `legend` names its series by their labels."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `unit` is Grafana's id of it; of a stat, `words` stand for 0 and 1, each with its colour, and `shows`
    is Grafana's text mode."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    words: tuple[tuple[str, str], ...] = ()
    shows: str = "auto"


@dataclass(frozen=True, slots=True)
class Row:
    """A row that can be folded; its panels flow from left to right."""

    title: str
    panels: tuple[Panel, ...]


def stat(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str = "none",
    words: tuple[tuple[str, str], ...] = (),
    shows: str = "auto",
) -> Panel:
    """A single number by instance."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(query,),
        kind="stat",
        width=4,
        words=words,
        shows=shows,
    )


def graph(title: str, description: str, unit: str, *queries: Query, width: int = 8) -> Panel:
    """Lines over time."""
    return Panel(title=title, description=description, unit=unit, queries=queries, width=width)


def gauge(name: str, *labels: str, where: str = "") -> Query:
    """A gauge's values by instance and these labels."""
    by = ("instance", *labels)
    return Query(f"sum by ({', '.join(by)}) ({selected(name, where)})", _legend(by))


def rate(name: str, *labels: str, where: str = "", legend: str = "") -> Query:
    """A counter's rate by these labels, all instances together."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return Query(f"sum{by} (rate({selected(name, where)}[$__rate_interval]))", legend or _legend(labels))


def ratio(part: Query, whole: Query, legend: str) -> Query:
    """One rate as a share of another."""
    return Query(f"{part.expression} / {whole.expression}", legend)


def plus(one: Query, other: Query) -> Query:
    """Two rates together."""
    return Query(f"({one.expression} + {other.expression})", one.legend)


def or_zero(query: Query) -> Query:
    """A line at 0 where nothing has happened yet: such a family has no series before its first event."""
    return Query(f"{query.expression} or vector(0)", query.legend)


def busiest(query: Query) -> Query:
    """The ten largest: topics may be a thousand."""
    return Query(f"topk(10, {query.expression})", query.legend)


def quantiles(name: str, where: str = "", label: str = "") -> tuple[Query, ...]:
    """Median, 99th percentile and mean of a histogram, all instances together; by one more label where it is named."""
    suffix = f" {{{{{label}}}}}" if label else ""
    labels = (label,) if label else ()
    buckets = rate(f"{name}_bucket", "le", *labels, where=where).expression
    mean = ratio(
        rate(f"{name}_sum", *labels, where=where), rate(f"{name}_count", *labels, where=where), f"mean{suffix}"
    )
    return (
        Query(f"histogram_quantile(0.5, {buckets})", f"p50{suffix}"),
        Query(f"histogram_quantile(0.99, {buckets})", f"p99{suffix}"),
        mean,
    )


def selected(name: str, where: str = "") -> str:
    """A metric of the chosen instances."""
    return f"{name}{{{_OF_INSTANCES}{', ' + where if where else ''}}}"


def panels_json(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """Grafana's list of panels: ids counted from 1, places from the top left, each row's header before its panels."""
    made: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"h": HEIGHTS["row"], "w": COLUMNS, "x": 0, "y": top}
        header = {"type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        made.append({"id": len(made) + 1, **header})
        top += HEIGHTS["row"]
        for panel, place in _placed(row.panels, top):
            made.append({"id": len(made) + 1, **_panel_json(panel), "gridPos": place})
            top = max(top, place["y"])
        top += HEIGHTS[row.panels[-1].kind]
    return made


def _placed(panels: tuple[Panel, ...], top: int) -> Iterator[tuple[Panel, dict[str, int]]]:
    """Lines of panels of one height; a panel that does not fit, or is of another height, begins a new line."""
    left, height = 0, HEIGHTS[panels[0].kind]
    for panel in panels:
        if left + panel.width > COLUMNS or HEIGHTS[panel.kind] != height:
            top, left, height = top + height, 0, HEIGHTS[panel.kind]
        yield panel, {"h": height, "w": panel.width, "x": left, "y": top}
        left += panel.width


def _panel_json(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": {**_STAT_OPTIONS, "textMode": panel.shows} if panel.kind == "stat" else _GRAPH_OPTIONS,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "editorMode": "code",
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
                "instant": False,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": [{"color": "text", "value": None}]},
        "mappings": [],
    }
    if panel.words:
        texts = {
            str(value): {"index": value, "text": text, "color": colour}
            for value, (text, colour) in enumerate(panel.words)
        }
        defaults["mappings"] = [{"type": "value", "options": texts}]
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": False}
    return defaults


_STAT_OPTIONS: Final = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "none",
    "orientation": "auto",
    "justifyMode": "auto",
}
_GRAPH_OPTIONS: Final = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def _legend(labels: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels) or "all"
