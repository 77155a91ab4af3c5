"""Prometheus for tests: Debian's own program before a Tidegate, and what a PromQL expression asks for.

    with running_prometheus(folder, "127.0.0.1:9464") as prometheus:
        prometheus.query('up{job="tidegate"}')

It runs with deploy/prometheus/prometheus.yml and its rule file; only the target and the intervals are others.
"""

import functools
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from metrics.copy_meters import CopyMeter, MetadataTopicMeter
from metrics.kip405 import Family, Kind
from metrics.meters import Meters
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_process import JavaProcess

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "deploy" / "prometheus"
CONFIG: Final = FOLDER / "prometheus.yml"
RULES: Final = FOLDER / "tidegate-rules.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "dashboards" / "tidegate-dashboard.json"

INTERVAL: Final = "1s"
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 10.0
ANSWER_S_MAX: Final = 20.0
LINTED: Final = 3
"""How promtool ends when it can read metrics and does not like them."""

_SUFFIXES: Final = {
    Kind.COUNTER: ("_total",),
    Kind.GAUGE: ("",),
    Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
    Kind.TIMER: ("", "_sum", "_count"),
}
_OF_THE_LIBRARY: Final = ("process_", "python_")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABEL_LIST: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTOR: Final = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_WORD: Final = re.compile(r"(?<![\w:.$])[A-Za-z_:][\w:]*(?!\s*\(|[\w:])")
_OPERATORS: Final = {"and", "or", "unless", "bool", "offset", "Inf", "NaN"}


@dataclass(frozen=True, slots=True)
class RunningPrometheus:
    """A Prometheus that is ready."""

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its API.

        Raises:
            AssertionError: it answered with an error, or with a warning.
        """
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        assert not found.get("warnings"), found
        return found["data"]

    def query(self, expression: str) -> dict[str, float]:
        """The series of an instant query, by their labels as text, and their values."""
        found = self.get("query", query=expression)
        assert found["resultType"] == "vector", expression
        return {json.dumps(series["metric"], sort_keys=True): float(series["value"][1]) for series in found["result"]}


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[RunningPrometheus]:
    """Start Prometheus on a free port with its data in `folder`, and stop it at the end."""
    shutil.copy(RULES, folder / RULES.name)
    config = folder / CONFIG.name
    config.write_text(yaml.safe_dump(config_for(target)), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    process = JavaProcess("Prometheus", command, folder / "prometheus.log")
    try:
        process.wait_for_log("Server is ready to receive web requests", START_S_MAX)
        yield RunningPrometheus(address)
    finally:
        process.stop(STOP_S_MAX)


def config_for(target: str) -> dict[str, Any]:
    """deploy/prometheus/prometheus.yml with another target and short intervals."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["global"] = dict.fromkeys(config["global"], INTERVAL)
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    return config


def promtool(*arguments: str | Path) -> str:
    """Return what promtool says.

    Raises:
        AssertionError: it found something wrong; with what it said.
    """
    ended = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    return said


def metric_complaints(page: str) -> set[str]:
    """Return what `promtool check metrics` has to say about a page of /metrics, each once.

    Raises:
        AssertionError: it cannot read the page at all.
    """
    command = ["promtool", "check", "metrics"]
    ended = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    said = set((ended.stdout + ended.stderr).splitlines())
    assert ended.returncode in (0, LINTED), said
    return said


def rules() -> list[dict[str, Any]]:
    """All rules of the rule file, alerts and recorded ones."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@functools.cache
def dashboard() -> dict[str, Any]:
    """The dashboard as it is shipped; not to be changed."""
    read: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return read


def dashboard_queries() -> dict[str, str]:
    """Each query of the dashboard by its panel's title and letter."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    }


def names_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression names."""
    bare = _SELECTOR.sub("", _LABEL_LIST.sub("", _STRING.sub("", expression)))
    return set(_WORD.findall(bare)) - _OPERATORS


def all_meters() -> Meters:
    """Every meter that there is."""
    meters = Meters()
    CopyMeter(meters.registry)
    MetadataTopicMeter(meters.registry)
    return meters


@functools.cache
def exported_names() -> frozenset[str]:
    """The names of all series that Tidegate may export, a copier's among them."""
    registry = all_meters().registry
    of_library = {
        sample.name
        for metric in registry.collect()
        for sample in metric.samples
        if metric.name.startswith(_OF_THE_LIBRARY)
    }
    return frozenset(of_library.union(*(series_names(family) for family in registry.families)))


@functools.cache
def copier_names() -> frozenset[str]:
    """The names of the series that only a copier exports."""
    others = {family.name for family in Meters().registry.families}
    copiers = [family for family in all_meters().registry.families if family.name not in others]
    return frozenset().union(*map(series_names, copiers))


def series_names(family: Family) -> set[str]:
    """The names of one family's series."""
    return {family.name + suffix for suffix in _SUFFIXES[family.kind]}
