"""`tidegate scan` and `tidegate sql` over a tier in a folder and a dump of its metadata: no broker runs."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import crc32c
import pyarrow.dataset as ds
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from storage.model import uuid_to_text
from tests.support.for_each import for_each
from tests.support.program import run_command, tidegate_python
from tests.support.schema_registry import schema_registry
from tests.support.segments import ProducerFields, Record, build_segment, data_batch, filled_segment
from tests.support.table_tier import TableTier
from tests.support.value_schemas import ORDER, ORDER_JSON, order, order_messages
from tests.support.waiting import wait_until
from tools.demo.kafka_properties import properties_text

Captured = pytest.CaptureFixture[str]

PRODUCER = ProducerFields(producer_id=7, producer_epoch=2, base_sequence=40, transactional=True)
WRONG = 3
"""The offset of a value that nothing can decode."""
VALUES = 6


@pytest.fixture
def tier(tmp_path: Path) -> TableTier:
    folder = tmp_path / "tier"
    folder.mkdir()
    return TableTier(folder)


def words(tier: TableTier, command: str, what: str) -> list[str]:
    file = tier.folder / "tidegate.properties"
    file.write_text(properties_text(tier.config))
    return [command, str(file), what, "--catalog", str(tier.dump)]


def rows(capsys: Captured, tier: TableTier, command: str, what: str, *more: str) -> list[dict[str, Any]]:
    code, out, err = run_command(capsys, *words(tier, command, what), *more)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


# --- sql ---


def test_a_query_may_name_the_columns_on_demand(tier: TableTier, capsys: Captured) -> None:
    """Failed before: a query found the columns alone that a scan gives without being asked."""
    tier.add(build_segment([data_batch(0, record_count=2, leader_epoch=4), data_batch(2, producer=PRODUCER)]))
    named = "leader_epoch, producer_id, o.producer_epoch, Sequence, is_transactional, batch_offset"
    query = f'SELECT {named} FROM orders o WHERE segment_id IS NOT NULL AND schema_id IS NULL ORDER BY "offset"'
    assert [tuple(row.values()) for row in rows(capsys, tier, "sql", query)] == [
        *[(4, None, None, None, False, 0)] * 2,
        (0, 7, 2, 40, True, 2),
    ]
    query = (
        "SELECT x.segment_id, min(x.size_bytes) AS least FROM orders x JOIN orders y USING (batch_offset) GROUP BY 1"
    )
    [row] = rows(capsys, tier, "sql", query)
    assert (row["segment_id"], row["least"] > 0) == (uuid_to_text(tier.segments[0].segment_id.id), True)
    [first, *_] = rows(capsys, tier, "sql", "FROM orders")
    assert [*first] == ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]


def test_a_query_that_counts_reads_no_record(tier: TableTier, capsys: Captured) -> None:
    batch = bytearray(data_batch(10, record_count=5))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = crc32c.crc32c(batch[21:]).to_bytes(4, "big")
    tier.add(build_segment([data_batch(0, record_count=10), bytes(batch)]))
    assert rows(capsys, tier, "sql", "SELECT count(*) AS n FROM orders") == [{"n": 15}]
    query = 'SELECT min("offset") AS first, max("offset") AS last, count(*) AS n FROM orders WHERE leader_epoch = 0'
    assert rows(capsys, tier, "sql", query) == [{"first": 0, "last": 14, "n": 15}]


def test_an_end_in_time_ends_the_reading_where_an_order_is_declared(tier: TableTier, capsys: Captured) -> None:
    for hour in range(4):
        tier.add(build_segment([data_batch(hour, first_timestamp_ms=hour * 3_600_000)], interval_bytes=0))
    early = "timestamp < '1970-01-01T00:30Z'"
    for command, what, more in (("scan", "orders", ("--where", early)), ("sql", f"FROM orders WHERE {early}", ())):
        for declared, segments in (((), 4), (("--disorder", "10m"), 2)):
            code, out, err = run_command(capsys, *words(tier, command, what), *more, *declared)
            assert (code, len(out.splitlines())) == (0, 1), err
            assert f"{segments} of 4 segments" in err


# --- exports ---


def test_a_killed_export_goes_on_where_it_was(tier: TableTier, capsys: Captured, tmp_path: Path) -> None:
    """Given an export that is killed in its third file, when the same command runs again and the segments of the first
    files are gone, then those files are as they were, no record is missing or there twice, and the last line tells of
    what was read this time."""
    for partition in range(4):
        tier.add(filled_segment(0), filled_segment(200), partition=partition)
    logs = [[*tier.folder.rglob(f"orders-{partition}-*/*.log")] for partition in range(4)]
    output = tmp_path / "out"
    command = [*words(tier, "scan", "orders"), "--format", "parquet", "--output", str(output)]
    with nobody_writes(logs[2][0]):
        started = subprocess.Popen([tidegate_python(), "-m", "tidegate", *command], stderr=subprocess.PIPE)
        try:
            wait_until((output / ".part-00002.parquet.tmp").exists, "the third file to be begun")
        finally:
            started.kill()
            started.communicate()
    assert started.returncode == -signal.SIGKILL
    done = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in output.glob("part-*")}
    assert sorted(done) == ["part-00000.parquet", "part-00001.parquet"]
    for log in (*logs[0], *logs[1]):
        log.unlink()

    code, _, err = run_command(capsys, *command)

    assert (code, err.startswith("tidegate: 800 rows of 800 offsets; 4 of 8 segments")) == (0, True), err
    for name, before in done.items():
        assert ((output / name).stat().st_ino, (output / name).stat().st_mtime_ns) == before
    written = ds.dataset(output, format="parquet", exclude_invalid_files=False).to_table()
    pairs = zip(written["partition"].to_pylist(), written["offset"].to_pylist(), strict=True)
    assert sorted(pairs) == [(partition, offset) for partition in range(4) for offset in range(400)]


@contextmanager
def nobody_writes(path: Path) -> Iterator[None]:
    """A program that opens the file waits, until the block ends."""
    kept = path.with_name(f"{path.name}.kept")
    path.rename(kept)
    os.mkfifo(path)
    yield
    kept.replace(path)


# --- values with a schema ---


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


Write = Callable[[int, SerializationContext], bytes | None]


def writer(form: str, client: SchemaRegistryClient) -> Write:
    """Confluent's serializers."""
    if form == "avro":
        avro = AvroSerializer(client, json.dumps(ORDER))
        return lambda number, context: avro(order(number), context)
    if form == "json":
        document = JSONSerializer(json.dumps(ORDER_JSON), client)
        return lambda number, context: document({"id": number, "tags": ["a"]}, context)
    message = ProtobufSerializer(order_messages().order, client, {"use.deprecated.format": False})
    return lambda number, context: message(order_messages().make(number), context)


EXPECTED: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "avro": lambda number: {
        "id": number,
        "name": f"name {number}",
        "paid": number % 2 == 0,
        "address": None if number % 3 == 0 else {"street": f"street {number}"},
        "tags": [f"tag {each}" for each in range(number % 4)],
        "sum": f"0.00{number}",
    },
    "json": lambda number: {"id": number, "customer": None, "tags": ["a"], "scores": None},
    "protobuf": lambda number: {
        "id": number,
        "large": 2**64 - 1 - number,
        "at": f"1970-01-01T00:00:0{number}.00000{number}Z" if number else "1970-01-01T00:00:00.000Z",
        "state": "DONE" if number % 2 else "NEW",
        "by_name": {"first": {"item": f"item {number}", "count": number}},
        "weight": 0.25 if number % 2 else None,
    },
}
"""Members of each value as JSON has them."""


@pytest.mark.needs("java", "schema-registry")
@for_each("form", EXPECTED)
def test_values_are_decoded_by_the_registry(
    tier: TableTier, registry: str, form: str, tmp_path: Path, capsys: Captured
) -> None:
    topic = f"typed-{form}"
    with SchemaRegistryClient({"url": registry}) as client:
        write, context = writer(form, client), SerializationContext(topic, MessageField.VALUE)
        values = [b"\0\0\0\0" if number == WRONG else write(number, context) for number in range(VALUES)]
        known = client.get_latest_version(f"{topic}-value").schema_id
    tier.add(build_segment([data_batch(0, records=[Record(value=value) for value in values])]), topic=topic)
    given = ["--value-format", form, "--schema-registry", registry]
    given += ["--value-message", "shop.Order"] if form == "protobuf" else []
    found = rows(capsys, tier, "scan", topic, *given)
    assert [row["schema_id"] for row in found if row["offset"] != WRONG] == [known] * (VALUES - 1)
    for row in found:
        if row["offset"] == WRONG:
            assert row["value"] is None
            [letter] = row["dead_letter"]
            assert letter["column"] == "value"
        else:
            expected = EXPECTED[form](row["offset"])
            assert row["dead_letter"] is None
            assert {name: row["value"][name] for name in expected} == expected
    query = f'SELECT count(*) AS good, sum(value.id) AS ids FROM "{topic}" WHERE dead_letter IS NULL'
    assert rows(capsys, tier, "sql", query, *given) == [{"good": VALUES - 1, "ids": sum(range(VALUES)) - WRONG}]
    code, _, err = run_command(capsys, *words(tier, "scan", topic), *given, "--dead-letter", "fail")
    assert (code, "value" in err.splitlines()[-1]) == (1, True), err
