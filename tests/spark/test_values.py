"""Values with a schema: what Confluent's serializers wrote with a real registry, as columns of `format("tidegate")`.

Avro is compared with Spark's own from_avro, JSON with from_json, Protobuf (whose connector is not to be had) with the
messages that were produced. Some records cannot be decoded: their rows stay, and say why.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.avro.functions import from_avro

from pipeline.jobs.command_line import main
from pipeline.jobs.tables import DELTA
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.needs import ROOT
from tests.support.page_blocks import blocks_of
from tests.support.schema_registry import guarded_registry, schema_registry
from tests.support.secret_search import files_below, found_in, ui_pages
from tests.support.source_rows import assert_same_rows, read_kafka, read_tier, with_tail
from tests.support.spark_topics import SparkTopics
from tests.support.table_runs import table_name, table_settings
from tests.support.value_schemas import ORDER, ORDER_JSON, ORDER_JSON_DDL, ORDER_V2, order, order_messages

if TYPE_CHECKING:
    from tests.support.spark_session import RunningSpark

pytestmark = [pytest.mark.needs("spark", "java", "kafka", "schema-registry"), pytest.mark.integration]

RECORDS = 900
WRONG = 450
"""The offset of a record that nothing can decode."""
NULL = 451
PASSWORD = "planted/registry+secret=0cc175b9"


@dataclass(frozen=True, slots=True)
class FilledValues:
    """A topic of each format: records of two versions of a schema, one wrong record, and a null."""

    url: str
    avro: str
    protobuf: str
    json: str


@pytest.fixture(scope="module")
def values(spark_topics: SparkTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledValues]:
    folder = tmp_path_factory.mktemp("values")
    cluster = spark_topics.cluster
    names = {kind: fresh_name(f"values-{kind}") for kind in ("avro", "protobuf", "json")}
    with schema_registry(folder) as url:
        with SchemaRegistryClient({"url": url}) as client:
            writers = {
                "avro": avro_writer(client),
                "protobuf": protobuf_writer(client, folder),
                "json": json_writer(client),
            }
            for kind, name in names.items():
                cluster.create_topic(name, 1, {**TIERED, **small_segments(4)})
                context = SerializationContext(name, MessageField.VALUE)
                records = (
                    Record(0, b"%d" % number, value_of(writers[kind], number, context)) for number in range(RECORDS)
                )
                produce(cluster, name, records, batch_num_messages=50)
            for name in names.values():
                wait_settled(cluster, name)
        yield FilledValues(url, **names)


Writer = Callable[[int, SerializationContext], bytes | None]


def value_of(write: Writer, number: int, context: SerializationContext) -> bytes | None:
    if number == WRONG:
        return b"\0\xff\xff\xff\xfe\x80\x80"
    return None if number == NULL else write(number, context)


def avro_writer(client: SchemaRegistryClient) -> Writer:
    old, new = (AvroSerializer(client, json.dumps(schema)) for schema in (ORDER, ORDER_V2))

    def write(number: int, context: SerializationContext) -> bytes | None:
        if number < RECORDS // 2:
            written: bytes | None = old(order(number), context)
        else:
            written = new({**order(number), "channel": "web"}, context)
        return written

    return write


def protobuf_writer(client: SchemaRegistryClient, folder: Path) -> Writer:
    messages = order_messages()
    write = ProtobufSerializer(messages.order, client, {"use.deprecated.format": False})
    return lambda number, context: write(messages.make(number), context)


def json_writer(client: SchemaRegistryClient) -> Writer:
    write = JSONSerializer(json.dumps(ORDER_JSON), client)
    return lambda number, context: write(json_order(number), context)


def json_order(number: int) -> dict[str, Any]:
    return {"id": number, "customer": {"name": f"name {number}"}, "tags": ["a", "b"], "scores": {"x": number / 4}}


def read(spark: SparkSession, topics: SparkTopics, topic: str, options: Mapping[str, str]) -> DataFrame:
    return read_tier(spark, topics, topic, with_tail(topics, {"includeHeaders": "false", **options}))


def test_avro_is_read_as_sparks_own_from_avro_reads_it(
    spark: SparkSession, spark_topics: SparkTopics, values: FilledValues
) -> None:
    """Given values of two versions of a schema, when they are read by the newest, then as from_avro has them: it is
    given each record's own schema, as it knows no registry."""
    typed = read(spark, spark_topics, values.avro, {"valueFormat": "avro", "schemaRegistry": values.url})
    good = typed.where(f"offset not in ({WRONG}, {NULL})").select("offset", "value.*").orderBy("offset").collect()
    payload = functions.expr("substring(value, 6)")
    direct = read_kafka(spark, spark_topics.cluster.bootstrap_servers, values.avro)
    options = {"avroSchema": json.dumps(ORDER_V2)}
    expected = []
    for schema, where in ((ORDER, f"offset < {WRONG}"), (ORDER_V2, f"offset > {NULL}")):
        rows = direct.where(where).select("offset", from_avro(payload, json.dumps(schema), options).alias("value"))
        expected += rows.select("offset", "value.*").orderBy("offset").collect()
    assert len(good) == RECORDS - 2
    assert [row.asDict(recursive=True) for row in good] == [row.asDict(recursive=True) for row in expected]
    assert len({row.schemaId for row in typed.select("schemaId").distinct().collect()} - {None, -2}) == 2


def test_the_block_of_the_page_reads_them(spark: SparkSession, spark_topics: SparkTopics, values: FilledValues) -> None:
    body = blocks_of((ROOT / "docs" / "spark.md").read_text("utf-8"))["Values with a schema 1"].body
    for text, own in (
        ("tidegate.properties", str(spark_topics.tidegate.process.properties_path)),
        ('"orders"', f'"{values.avro}"'),
        ("http://registry.example.org:8081", values.url),
    ):
        assert text in body
        body = body.replace(text, own)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(body, "Values with a schema 1", "exec"), names)
    rows: DataFrame = names["rows"]
    assert rows.where("value.price > 1 and deadLetter is null").count() > 0


def as_text(rows: DataFrame) -> DataFrame:
    """Whole rows as text: Spark compares no maps."""
    return rows.select(functions.expr("to_json(struct(*))"))


def test_protobuf_is_read_as_it_was_produced(
    spark: SparkSession, spark_topics: SparkTopics, values: FilledValues
) -> None:
    options = {"valueFormat": "protobuf", "schemaRegistry": values.url, "valueMessage": "Order"}
    typed = read(spark, spark_topics, values.protobuf, options)
    rows = typed.where(f"offset not in ({WRONG}, {NULL})").select("offset", "value.*").orderBy("offset").collect()
    expected = [order_messages().row(number) for number in range(RECORDS) if number not in (WRONG, NULL)]
    assert [row.asDict(recursive=True) for row in rows] == expected
    assert [row.offset for row in typed.where("deadLetter is not null").collect()] == [WRONG]


def test_json_is_read_as_sparks_own_from_json_reads_it(
    spark: SparkSession, spark_topics: SparkTopics, values: FilledValues
) -> None:
    typed = read(spark, spark_topics, values.json, {"valueFormat": "json", "schemaRegistry": values.url})
    direct = read_kafka(spark, spark_topics.cluster.bootstrap_servers, values.json)
    text = functions.expr("cast(substring(value, 6) as string)")
    expected = direct.where(f"offset not in ({WRONG}, {NULL})").select(
        "offset", functions.from_json(text, ORDER_JSON_DDL).alias("value")
    )
    rows = typed.where("value is not null").select("offset", "value")
    found = rows.orderBy("offset").collect()
    assert found == expected.orderBy("offset").collect()
    assert len(found) == RECORDS - 2
    assert rows.schema["value"].dataType == expected.schema["value"].dataType


@pytest.mark.needs("tables")
@pytest.mark.usefixtures("logs_stay_as_they_are")
def test_a_backfill_writes_typed_values_and_dead_letters(
    spark: SparkSession,
    spark_topics: SparkTopics,
    values: FilledValues,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    target = table_name(DELTA, tmp_path, "orders")
    command = ["backfill", "--topic", values.avro, "--table", target, "--config"]
    command += [str(spark_topics.tidegate.process.properties_path), "--option", "valueFormat=avro"]
    command += ["--option", f"schemaRegistry={values.url}", "--steps-at-once", "2", "--bytes-per-step", "32k"]
    own = table_settings(tmp_path)
    command += [part for key, value in own.items() for part in ("--conf", f"{key}={value}")]
    command += ["--table-format", "delta"]
    try:
        assert main(command) == 0, capfd.readouterr().err
        assert main(command) == 0
        assert "nothing new since run 1" in capfd.readouterr().out
        options = {"includeHeaders": "false", "valueFormat": "avro", "schemaRegistry": values.url}
        rows = read_tier(spark, spark_topics, values.avro, options)
        assert rows.where("deadLetter is not null").count() == 1
        assert_same_rows(as_text(spark.table(target).drop("date")), as_text(rows))
    finally:
        for key in own:
            spark.conf.unset(key)


def test_the_registrys_password_is_used_and_is_in_nothing_that_spark_shows(
    spark: SparkSession,
    spark_files: "RunningSpark",
    spark_topics: SparkTopics,
    values: FilledValues,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a registry that asks who is there, when the properties file has the password, then values are decoded on
    driver and executors, and it is in no option, plan, page, event log or log; nor is it if it is wrong."""
    serve = spark_topics.tidegate.process.properties_path.read_text("utf-8")
    sent = f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"
    config = tmp_path / "tidegate.properties"
    with guarded_registry(values.url, authorization=sent) as guard:
        keys = f"schema.registry.url={guard.url}\nschema.registry.basic.auth.user.info="
        config.write_text(f"{serve}\n{keys}me:{PASSWORD}\n", "utf-8")
        options = {"config": str(config), "valueFormat": "avro"}
        rows = read(spark, spark_topics, values.avro, options)
        assert rows.where("value is not null").count() == RECORDS - 2
        rows.explain(mode="extended")
        config.write_text(f"{serve}\n{keys}you:{PASSWORD}\n", "utf-8")
        with pytest.raises(PySparkException, match=r"refuses our credentials \(HTTP 401\)") as caught:
            read(spark, spark_topics, values.avro, options)
        assert any("/schemas/ids/" in path for path in guard.paths), "executors asked, too"
    texts = [("explain()", capsys.readouterr().out.encode()), ("error", f"{caught.value!r}".encode())]
    texts += [(str(spark_files.driver_log), spark_files.driver_log.read_bytes())]
    texts += files_below(spark_files.event_log_dir)
    texts += ui_pages(str(spark.sparkContext.uiWebUrl)).items()
    assert found_in(values.avro, texts), "the search finds what is there"
    for secret in (PASSWORD, sent.removeprefix("Basic ")):
        assert found_in(secret, texts) == []
