"""What the guides name exists: metrics, keys, log events, sentences of errors, alerts, ACL commands."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.repository.sources import PACKAGE_FILES, ROOT, text_of
from tidegate.config.model import SERVE_KEYS

OPERATE = sorted((ROOT / "docs" / "operate").glob("*.md"))
MONITOR, TROUBLESHOOT = (ROOT / "docs" / "operate" / f"{name}.md" for name in ("monitor", "troubleshoot"))
PAGES = (ROOT / "docs" / "compatibility.md", ROOT / "docs" / "upgrade.md")
GUIDES = (*OPERATE, *sorted((ROOT / "docs").glob("getting-started*.md")), *PAGES)
CHART = ROOT / "deploy" / "helm" / "tidegate"
RULES = ROOT / "deploy" / "prometheus" / "tidegate-rules.yml"
FAILURES_MIN = 25

KAFKAS_OWN = {
    "advertised.listeners",
    "api.version.request.timeout.ms",
    "auto.offset.reset",
    "connections.max.idle.ms",
    "enable.idempotence",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "listener.security.protocol.map",
    "max.connections",
    "max.partition.fetch.bytes",
    "reconnect.backoff.max.ms",
    "remote.log.storage.system.enable",
    "remote.storage.enable",
    "request.timeout.ms",
    "retention.ms",
    "sasl.jaas.config",
    "security.protocol",
    "server.properties",
    "session.timeout.ms",
    "socket.timeout.ms",
    "ssl.truststore.location",
    "ssl.truststore.type",
}
"""Keys of brokers and clients that the guides speak of; and the file's name, which looks like one."""

OTHER_NAMES = {"0.0.0.0", "brokers.json", "catalog.snapshot", "catalog.snapshot.bad", "tidegate.properties"}
"""An address, and files that are not the project's."""

PLUG_IN_PREFIXES = ("rsm.config.", "rlmm.config.", "remote.log.metadata.common.client.", "remote.log.")

LIBRARYS_METRICS = {"process_cpu_seconds_total", "python_gc_collections_total"}
"""From prometheus_client's own collectors."""

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_KEY = re.compile(r"(?P<key>[a-z0-9]+(?:\.[a-z0-9_]+)+)(?:=.*)?")
_METRIC = re.compile(r"\b(?:tidegate|kafka_server|kafka_log|process|python)_[a-z0-9_]+")


def _prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(path), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def _sentences() -> list[str]:
    """All texts of the code, with … for what is filled in."""
    found: list[str] = []
    for path in PACKAGE_FILES:
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(_filled_in(part) for part in node.values))
    return found


def _filled_in(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"


def _is_said(sentence: str) -> bool:
    pattern = re.compile(".*".join(re.escape(piece) for piece in sentence.split("…")), re.DOTALL)
    return any(pattern.search(text) for text in _sentences())


def _is_chart_value(key: str) -> bool:
    """A value of the Helm chart, or a group of them."""
    found: object = yaml.safe_load(text_of(CHART / "values.yaml"))
    for name in key.split("."):
        if not isinstance(found, dict) or name not in found:
            return False
        found = found[name]
    return True


def _failure_rows() -> Iterator[list[str]]:
    for table in text_of(TROUBLESHOOT).split("\n| what you see ")[1:]:
        for line in table.partition("\n\n")[0].splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_metrics_are_exported() -> None:
    reference = {
        name.removesuffix("_bucket") for name in re.findall(r"`([a-z0-9_]+)[`{]", text_of(ROOT / "docs" / "metrics.md"))
    }
    for path in GUIDES:
        assert {*_METRIC.findall(text_of(path))} <= reference | LIBRARYS_METRICS, path.name


def test_keys_are_in_the_tables() -> None:
    """Files of the project are written as keys are, with dots; those have to exist."""
    known = {*SERVE_KEYS.by_name, *KAFKAS_OWN, *OTHER_NAMES}
    for path in GUIDES:
        for span in _SPAN.findall(_prose(path)):
            key = found["key"] if (found := _KEY.fullmatch(span)) else None
            if key is None or key in known or key.startswith(PLUG_IN_PREFIXES) or _is_chart_value(key):
                continue
            folders = (".", "docs", "docs/operate", CHART)
            assert span in known or any((ROOT / folder / span).exists() for folder in folders), path.name


def test_properties_of_the_guides_are_keys() -> None:
    for path in GUIDES:
        for block in re.findall(r"^```properties\n(.*?)^```$", text_of(path), re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                assert line.partition("=")[0] in SERVE_KEYS.by_name, line


def test_outcomes_and_causes_exist() -> None:
    """Whatever else is written in snake_case: outcomes, causes, fields."""
    spans = [span for page in OPERATE for span in _SPAN.findall(_prose(page))]
    words = [span for span in spans if re.fullmatch(r"[a-z]+(_[a-z]+)+", span)]
    unknown = [word for word in words if word not in _sentences() and not _METRIC.fullmatch(word)]
    assert not [word for word in unknown if word != "consumer_byte_rate"]  # a quota of the broker's


def test_the_failure_table_quotes_what_is_said() -> None:
    """Sentences in code spans are Tidegate's own; those of clients stand in quotation marks."""
    rows = [*_failure_rows()]
    assert len(rows) >= FAILURES_MIN
    assert all(len(row) == 3 and all(row) for row in rows)
    sentences = [span for row in rows for span in _SPAN.findall(row[0]) if " " in span]
    assert sentences
    assert not [sentence for sentence in sentences if not _is_said(sentence)]


def test_each_alert_has_its_section() -> None:
    alerts = set(re.findall(r"^\s*- alert: (\w+)$", text_of(RULES), re.MULTILINE))
    _, _, behind = text_of(MONITOR).partition("\n## Alerts\n")
    section, _, _ = behind.partition("\n## ")
    assert alerts == set(re.findall(r"^### (\w+)$", section, re.MULTILINE))
    for part in section.split("\n### ")[1:]:
        meaning, _, rest = part.partition("\n\n")[2].partition("\n\n")
        assert meaning.endswith("."), part
        assert rest.startswith("**Do:** "), part
