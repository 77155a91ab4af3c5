"""The notebook of the documents, and their page on tables, run over a day of a million records in a real tier."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tests.support.kafka import TIERED, Record, produce, wait_settled
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "mkdocs")]

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOK, PAGE = DOCS / "a-day-of-a-topic.ipynb", DOCS / "tables.md"
TOPIC = "clicks"
RECORDS = 1_000_000
DAY_MS = 86_400_000
FIRST_MS = 1_769_817_600_000
"""2026-01-31T00:00:00Z."""
CONFIGS = {**TIERED, "segment.bytes": str(8 * 1024 * 1024)}


def clicks() -> Iterator[Record]:
    """More at noon than at midnight: the moment until which a part of them has come is that part, bent by a sine."""
    for number in range(RECORDS):
        part = number / RECORDS
        at_ms = FIRST_MS + int(DAY_MS * (part + math.sin(2 * math.pi * part) / 8))
        yield Record(0, b"/page/%d" % (number % 37), b'{"click":%d,"ms":%d}' % (number, number % 400), (), at_ms)


def test_the_notebook_runs(kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.create_topic(TOPIC, 1, CONFIGS)
    produce(kafka, TOPIC, clicks(), compression_type="lz4")
    tiered = wait_settled(kafka, TOPIC)[0].latest_tiered_offset + 1
    assert tiered > 0.7 * RECORDS
    keys = {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "broker.config": str(kafka.server_properties_path(1)),
    }
    (tmp_path / "tidegate.properties").write_text(properties_text(keys), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {}
    for number, source in enumerate(code_cells()):
        exec(compile(source, f"{NOTEBOOK.name}, cell {number}", "exec"), names)
    for source in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(source, PAGE.name, "exec"), names)
    assert names["minutes"]["len"].sum() == tiered
    assert names["minutes"]["len"].max() > 2 * names["minutes"]["len"].min()
    assert (tmp_path / "a-day.svg").stat().st_size > 1000
    assert next(page for page, _ in names["busiest"].fetchall()).startswith("/page/")
    assert names["recent"].count() == names["table"].num_rows > 0
    assert parquet.read_table(tmp_path / "clicks-2026-01-31").num_rows == tiered


def code_cells() -> list[str]:
    """Return the sources that a reader runs, in their order."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
