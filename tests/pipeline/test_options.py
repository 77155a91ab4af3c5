"""Options as a user writes them: what they mean, and what the error for every wrong one says."""

import contextlib
import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.options import parse_options, schema_options
from table.planning.request import OffsetEdge, OptionsError, PartitionOffsets, PartitionTimestamps, SameTimestamp
from table.schema import COLUMNS, DEFAULT_COLUMNS
from table.tasks import MIB
from tests.support.for_each import for_each

BASE = {"config": "tidegate.properties", "subscribe": "orders"}


def problems_of(options: dict[str, str], *, is_streaming: bool = False) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as raised:
        parse_options(options, is_streaming=is_streaming)
    # As Spark copies it between processes.
    assert copy.deepcopy(raised.value).problems == raised.value.problems
    return raised.value.problems


def test_topics_are_to_be_named_and_assign_names_partitions() -> None:
    (problem,) = problems_of({"config": "a"})
    assert problem.startswith("one of subscribe, subscribePattern and assign is needed")

    options = parse_options({"config": "a", "assign": '{"orders":[2,0,0],"payments":[1]}'})

    assert options.selection.assigned == {"orders": (0, 2), "payments": (1,)}
    assert options.selection.names == ("orders", "payments")


WRONG_VALUES = {
    "assign": ["", "[]", "{}", '{"a":0}', '{"a":[-1]}', '{"a":[true]}', '{"a":[]}', "[" * 100_000],
    "subscribePattern": ["orders("],
    "startingOffsets": ["{", '{"orders":{"x":1}}', '{"orders":{"0":-3}}', '{"orders":{"0":1.5}}', '{"a":{}}'],
    "taskBytes": ["", "7m", "-64m", "64.5m", "64x", "9" * 30, "9999999999t"],
    "timestampDisorder": ["", "5", "-1s", "1.5h", "soon"],
    "timestampTo": ["2023-11-14", "2023-11-14T22:13:20", "soon", "-5"],
}


@for_each("name, value", [(name, value) for name, values in WRONG_VALUES.items() for value in values])
def test_a_wrong_value_is_told_by_its_options_name(name: str, value: str) -> None:
    base = {"config": "a"} if name in ("assign", "subscribePattern") else BASE
    (problem,) = problems_of({**base, name: value})

    assert problem.startswith(f"{name} is ")


REFUSED = "is refused: credentials belong in the file that `config` names: options show in Spark's plan"
NOT_OURS = "is not an option of this source: "
SECRETS = (
    "rsm.config.dir kafka.sasl.jaas.config kafka.ssl.truststore.location myPassword aws.secret.key "
    "schema.registry.basic.auth.user.info"
)


@for_each(
    "given_options, said",
    [
        ("startingOffset=earliest", rf"startingOffset {NOT_OURS}did you mean startingOffsets\?$"),
        ("path=7", f"path {NOT_OURS}.*subscribe"),
        ("minPartitions=7", f"minPartitions {NOT_OURS}.*bytesPerPartition"),
        ("maxOffsetsPerTrigger=7", f"maxOffsetsPerTrigger {NOT_OURS}.*maxBytesPerTrigger"),
        # A name like no other had the nearest one proposed: deadLetter, for header.
        *((f"{name}=7", f"{name} {NOT_OURS}it has config, subscribe, ") for name in ("header", "rowsPerSecond")),
        # The hint once named the nearest option, which was not meant, or called them credentials.
        ("schema.registry.url=http://r", f"schema.registry.url {NOT_OURS}schemaRegistry is the registry's address$"),
        ("timestampMax=7", f"timestampMax {NOT_OURS}timestampFrom and timestampTo"),
        ("format=avro", f"format {NOT_OURS}valueFormat and keyFormat"),
        ("group.id=a", rf"group\.id {NOT_OURS}a stream's place .* commitGroup"),
        ("topic=orders", f"topic {NOT_OURS}name the topic by subscribe"),
        ("maxTriggerDelay=5m", f"maxTriggerDelay {NOT_OURS}the Kafka source has it; here a trigger"),
        ("minOffsetsPerTrigger=5", f"minOffsetsPerTrigger {NOT_OURS}the Kafka source has it; here a trigger"),
        *(
            (f"{name}=5", f"{name} {NOT_OURS}the Kafka source has it; here brokers are asked again")
            for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs")
        ),
        ("kafka.auto.offset.reset=earliest", rf"kafka\.auto\.offset\.reset {NOT_OURS}startingOffsets"),
        ("bootstrap.servers=a:1", rf"bootstrap\.servers {NOT_OURS}the brokers are in the file of `config`"),
        ("maxBytesPerTrigger=1g", "maxBytesPerTrigger is for streaming reads only$"),
        ("timestampFrom=2 timestampTo=1", "timestampFrom is after timestampTo$"),
        (
            "isolation=read_committed kafka.isolation.level=read_uncommitted",
            "isolation and kafka.isolation.level do not say the same$",
        ),
        ('assign={"a":[0]}', "one of subscribe, subscribePattern and assign is needed"),
        *((f"{name}=planted", f"{name} {REFUSED}$") for name in SECRETS.split()),
        ("valueFormat=xml", "valueFormat is 'xml': it has to be binary or avro or protobuf or json$"),
        ("schemaRegistry=http://r", "schemaRegistry is given, and neither valueFormat nor keyFormat is$"),
        ("valueSchemaFile=a.avsc", "valueSchemaFile is given, and valueFormat is not$"),
        (
            "keyFormat=avro keySchemaFile=a keySchemaSubject=b",
            "keySchemaFile and keySchemaSubject are given: keep one of them$",
        ),
        (
            "keyFormat=avro keySchemaFile=a keySchemaVersion=2",
            "keySchemaFile and keySchemaVersion are given: keep one of them$",
        ),
        ("valueSchemaVersion=2", "valueSchemaVersion is given, and valueFormat is not$"),
        ("valueFormat=avro valueSchemaVersion=0", "valueSchemaVersion is '0': it has to be a whole number from 1 on$"),
        ("valueFormat=avro valueMessage=M", "valueMessage is given, and valueFormat is not protobuf$"),
        (
            "valueFormat=avro schemaRegistry=r:8081",
            "schemaRegistry must be an address that begins with http:// or https://$",
        ),
        (
            "valueFormat=avro schemaRegistry=http://me:planted@r",
            "schemaRegistry must not hold a user: schema.registry.basic.auth.user.info of the properties file is for",
        ),
        ("valueFormat=avro deadLetter=fail deadLetterPath=/x", "deadLetterPath is given, and deadLetter is fail$"),
        ("columns=deadLetter", "columns names deadLetter, and neither valueFormat nor keyFormat is given$"),
    ],
)
def test_what_is_wrong_is_one_sentence_without_a_secret(given_options: str, said: str) -> None:
    (problem,) = problems_of({**BASE, **dict(option.split("=", 1) for option in given_options.split())})

    assert re.match(said, problem), problem
    assert "planted" not in problem


def test_offsets_come_as_json_with_earliest_and_latest() -> None:
    options = parse_options(
        {**BASE, "startingOffsets": '{"orders":{"0":23,"1":-2}}', "endingOffsets": '{"orders":{"0":-1,"1":40}}'}
    )

    assert options.starting == PartitionOffsets({("orders", 0): 23, ("orders", 1): -2})
    assert options.ending == PartitionOffsets({("orders", 0): -1, ("orders", 1): 40})
    assert copy.deepcopy(options) == options


def test_a_batch_read_cannot_start_at_latest_nor_end_at_earliest_and_a_stream_may() -> None:
    assert len(problems_of({**BASE, "startingOffsets": "latest", "endingOffsets": "earliest"})) == 2
    assert len(problems_of({**BASE, "startingOffsets": '{"a":{"0":-1}}', "endingOffsets": '{"a":{"0":-2}}'})) == 2
    options = parse_options({**BASE, "startingOffsets": "latest", "maxBytesPerTrigger": "1g"}, is_streaming=True)
    assert options.starting is OffsetEdge.LATEST
    assert options.bytes_per_trigger_max == 1024 * MIB

    (problem,) = problems_of({**BASE, "endingOffsets": "latest"}, is_streaming=True)
    assert problem.startswith("endingOffsets is not for streaming reads")


def test_one_time_for_all_goes_before_times_and_those_before_offsets() -> None:
    options = parse_options(
        {
            **BASE,
            "startingOffsets": '{"orders":{"0":23}}',
            "startingOffsetsByTimestamp": '{"orders":{"0":1000}}',
            "startingTimestamp": "2000",
            "endingOffsets": "latest",
            "endingOffsetsByTimestamp": '{"orders":{"0":3000}}',
        }
    )

    assert options.starting == SameTimestamp(2000)
    assert options.ending == PartitionTimestamps({("orders", 0): 3000})


def test_with_the_tail_the_end_is_latest_and_isolation_goes_by_kafkas_name_too() -> None:
    assert parse_options({**BASE, "tail": "kafka"}).ending is OffsetEdge.LATEST
    assert parse_options({**BASE, "tail": "kafka", "endingOffsets": "tiered"}).ending is OffsetEdge.TIERED
    assert parse_options({**BASE, "kafka.isolation.level": "READ_COMMITTED"}).read_committed


def test_columns_are_those_named_in_that_order() -> None:
    assert schema_options({"columns": "Offset, value"}).columns == ("offset", "value")
    assert schema_options({"columns": "offset", "includeHeaders": "true"}).columns == ("offset", "headers")
    assert schema_options({"includeHeaders": "true"}).columns == COLUMNS
    with pytest.raises(OptionsError, match="names 'size', which is none of key"):
        schema_options({"columns": "offset,size"})
    with pytest.raises(OptionsError, match="columns names offset twice"):
        schema_options({"columns": "offset,offset"})


def test_time_filters_are_milliseconds_or_iso_8601_rounded_to_what_they_include() -> None:
    options = parse_options(
        {**BASE, "timestampFrom": "2023-11-14T22:13:20.0005+00:00", "timestampTo": "2023-11-15T00:13:21.0005+02:00"}
    )
    assert (options.timestamp_min_ms, options.timestamp_max_ms) == (1_700_000_000_001, 1_700_000_001_000)

    assert parse_options({**BASE, "timestampFrom": "1700000000000"}).timestamp_min_ms == 1_700_000_000_000


@given(
    st.sampled_from(["startingOffsets", "endingOffsetsByTimestamp", "assign", "taskBytes", "timestampTo"]), st.text()
)
def test_no_value_leads_to_another_error(name: str, value: str) -> None:
    with contextlib.suppress(OptionsError):
        parse_options({**BASE, name: value})


def test_values_with_a_schema_bring_their_columns() -> None:
    options = {**BASE, "valueFormat": "Avro", "schemaRegistry": "http://registry:8081/"}
    parsed = parse_options(options)
    assert parsed.columns[-2:] == ("schemaId", "deadLetter")
    assert parsed.values.registry_url == "http://registry:8081"
    assert parsed.read_options.columns == DEFAULT_COLUMNS
    failing = parse_options({**options, "keyFormat": "json", "deadLetter": "fail"})
    assert failing.columns[-2:] == ("schemaId", "keySchemaId")
    ids = parse_options({**BASE, "columns": "schemaId,partition"})
    assert (ids.columns, ids.read_options.columns) == (("schemaId", "partition"), ("value", "partition"))
