"""A backfill that is run every day, while a nested field of the values' schema comes and goes: folder and tables."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from pipeline.jobs.tables import DELTA, ICEBERG
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.schema_registry import schema_registry
from tests.support.spark_topics import SparkTopics
from tests.support.table_runs import table_name, table_settings

pytestmark = [
    pytest.mark.needs("spark", "java", "kafka", "schema-registry", "tables"),
    pytest.mark.usefixtures("logs_stay_as_they_are"),
]

RECORDS = 200
"""A day; most of them are in the tier on the same day, the others on the next."""
ZIP: dict[str, object] = {"name": "zip", "type": ["null", "string"], "default": None}
DAYS: tuple[list[dict[str, object]], ...] = ([], [ZIP], [])
"""What the inner record has beside the street."""


def schema_of(day: int) -> str:
    street = {"name": "street", "type": "string"}
    place = {"type": "record", "name": "Place", "fields": [street, *DAYS[day]], "doc": f"of day {day}"}
    fields = [{"name": "id", "type": "long"}, {"name": "place", "type": place}]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def test_a_nested_field_comes_and_goes_within_three_days(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given values whose newest schema has one nested field more on the second day, and not on the third, when the
    same commands run each day into a folder, a Delta and an Iceberg table, then every record is there once, with that
    field where it was written and read on the second day, and null elsewhere."""
    topic, cluster = fresh_name("spark-schema"), spark_topics.cluster
    cluster.create_topic(topic, 1, {**TIERED, **small_segments(4)})
    settings = table_settings(tmp_path)
    tables = {kind: table_name(kind, tmp_path, "orders") for kind in (DELTA, ICEBERG)}
    targets = [["--output", str(tmp_path / "out")]]
    targets += [["--table", name, "--evolve-schema"] for name in tables.values()]
    ends: list[int] = []
    try:
        with schema_registry(tmp_path) as url, SchemaRegistryClient({"url": url}) as client:
            config = str(spark_topics.tidegate.process.properties_path)
            command = ["backfill", "--config", config, "--topic", topic, "--option", "valueFormat=avro"]
            command += ["--option", f"schemaRegistry={url}"]
            command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
            for day in range(len(DAYS)):
                write = AvroSerializer(client, schema_of(day))
                context = SerializationContext(topic, MessageField.VALUE)
                records = [Record(0, None, write(order(day, number), context)) for number in range(RECORDS)]
                produce(cluster, topic, iter(records), batch_num_messages=10)
                ends.append(wait_settled(cluster, topic)[0].latest_tiered_offset + 1)
                for target, kind in zip(targets, (None, DELTA, ICEBERG), strict=True):
                    form = ["--table-format", kind] if kind and not day else []
                    assert main([*command, *target, *form]) == 0, capfd.readouterr().err
        folder = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
        for rows in (folder, *map(spark.table, tables.values())):
            found = (
                rows.select("offset", "value.id", "value.place.street", "value.place.zip").orderBy("offset").collect()
            )
            assert [tuple(row) for row in found] == [expected(offset, ends) for offset in range(ends[-1])]
    finally:
        for key in settings:
            spark.conf.unset(key)


def order(day: int, number: int) -> dict[str, Any]:
    place = {"street": f"street {number}", **({"zip": f"zip {number}"} if DAYS[day] else {})}
    return {"id": day, "place": place}


def expected(offset: int, ends: list[int]) -> tuple[int, int, str, str | None]:
    """`ends`: of the tier on each day."""
    day, number = divmod(offset, RECORDS)
    has_zip = bool(DAYS[day]) and offset < ends[day]
    return offset, day, f"street {number}", f"zip {number}" if has_zip else None
