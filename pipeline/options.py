"""The data source's options: a case-insensitive mapping of text, as Spark gives them, to typed values.

- Names and precedence are the Kafka source's where it has them: `startingTimestamp` goes before
  `startingOffsetsByTimestamp`, and that before `startingOffsets`; the same for the end.
- `subscribePattern` is matched by Python's `re.fullmatch`, which knows nearly all of what a Java pattern has.
- Without an end the read takes what the tier has (`tiered`), or with `tail=kafka` all there is (`latest`).
- Every wrong option gives one sentence that names it, and all sentences come in one OptionsError.
- Credentials are refused: Spark prints options in its plan, its UI and its event log. No sentence repeats the value
  of an option that is not known.
- `path` (what `load(path)` sets) is refused: it could be a topic, a file or a folder, and would have to be guessed.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from table.planning.option_values import OptionReader
from table.planning.request import (
    BYTES_PER_PARTITION,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetBound,
    OffsetEdge,
    OptionsError,
    PartitionOffsets,
    PartitionTimestamps,
    SameTimestamp,
    SourceOptions,
    TopicSelection,
)
from table.planning.value_options import VALUE_OPTION_NAMES, ValueOptions, read_value_options
from table.schema import COLUMNS, DEAD_LETTER, DEFAULT_COLUMNS, HEADERS, KEY_SCHEMA_ID, SCHEMA_ID, VALUE_COLUMNS
from table.tasks import MIB, TASK_BYTES_MAX

BYTES_PER_PARTITION_MIN = 4 * 1024
"""An entry of the offset index every 4 KiB: smaller ranges would mostly be empty."""

TASK_BYTES_MIN = 8 * MIB

_NAMES = (
    *("config", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("isolation", "kafka.isolation.level", "columns", "includeHeaders", "timestampFrom", "timestampTo"),
    "timestampDisorder",
    *("bytesPerPartition", "taskBytes", "maxBytesPerTrigger", "badRecords", "badRecordsPath", "failOnDataLoss"),
    *("tail", "kafka.bootstrap.servers", "commitGroup"),
    *VALUE_OPTION_NAMES,
)

_TOPIC_HINT = "name the topic by subscribe, subscribePattern or assign"

_TRIGGER_HINT = "the Kafka source has it; here a trigger takes what there is, and its interval says how often"

_RETRY_HINT = "the Kafka source has it; here brokers are asked again for as long as it helps"

_GROUP_HINT = "a stream's place is in its checkpoint; commitGroup shows it to Kafka's tools"

_FORMAT_HINT = "valueFormat and keyFormat say how values and keys are decoded"

_TIMES_HINT = "timestampFrom and timestampTo bound the rows by time"

_HINTS = {
    "path": _TOPIC_HINT,
    "topic": _TOPIC_HINT,
    "topics": _TOPIC_HINT,
    "minpartitions": "the Kafka source has it; here bytesPerPartition decides how many tasks there are",
    "maxrecordsperpartition": "the Kafka source has it; here bytesPerPartition decides how large a task is",
    "maxoffsetspertrigger": "the Kafka source has it; here maxBytesPerTrigger limits what a trigger takes",
    "kafka.group.id": _GROUP_HINT,
    "groupidprefix": _GROUP_HINT,
    "groupid": _GROUP_HINT,
    "group.id": _GROUP_HINT,
    "minoffsetspertrigger": _TRIGGER_HINT,
    "maxtriggerdelay": _TRIGGER_HINT,
    "kafka.auto.offset.reset": "startingOffsets says where to begin",
    "bootstrap.servers": "the brokers are in the file of `config`; with tail=kafka it is kafka.bootstrap.servers",
    "schema.registry.url": "schemaRegistry is the registry's address",
    "checkpointlocation": "it is one of writeStream",
    "format": _FORMAT_HINT,
    "value.deserializer": _FORMAT_HINT,
    "key.deserializer": _FORMAT_HINT,
    "timestamp": _TIMES_HINT,
    "timestampmin": _TIMES_HINT,
    "timestampmax": _TIMES_HINT,
    "kafkaconsumer.polltimeoutms": _RETRY_HINT,
    "fetchoffset.numretries": _RETRY_HINT,
    "fetchoffset.retryintervalms": _RETRY_HINT,
}

_NEAR = 0.8
"""How alike names must be for one to be a slip of the other."""

_CREDENTIAL = re.compile(
    r"(rsm\.config\.|schema\.registry\.|kafka\.sasl\.|kafka\.ssl\.).*|.*(password|secret|token|credential).*"
)

_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "timestampDisorder")

_STREAMS_ONLY = ("maxBytesPerTrigger", "commitGroup")


def parse_options(options: Mapping[str, str], *, is_streaming: bool = False) -> SourceOptions:
    """The options of one read.

    Args:
        is_streaming: a streaming read has no end, may start at the latest offset, and alone may have
            `maxBytesPerTrigger`.

    Raises:
        OptionsError: with a sentence for every option that is wrong.
    """
    values = {name.lower(): value for name, value in options.items()}
    problems = _unknown(values, options)
    reader = OptionReader(values, problems)
    selection = _selection(reader)
    config = _config(reader)
    if is_streaming:
        problems += [f"{name} is not for streaming reads: they have no end" for name in _ENDING if reader.has(name)]
    else:
        problems += [f"{name} is for streaming reads only" for name in _STREAMS_ONLY if reader.has(name)]
    reads_tail = reader.choice("tail", ("none", "kafka")) == "kafka"
    timestamp_min_ms = reader.moment("timestampFrom", rounds_up=True)
    timestamp_max_ms = reader.moment("timestampTo", rounds_up=False)
    if timestamp_min_ms is not None and timestamp_max_ms is not None and timestamp_min_ms > timestamp_max_ms:
        problems.append("timestampFrom is after timestampTo")
    value_options = read_value_options(reader)
    parsed = SourceOptions(
        config=config,
        selection=selection,
        starting=_starting(reader, is_streaming),
        ending=_ending(reader, reads_tail),
        starts_at_latest_without_match=reader.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        read_committed=_read_committed(reader),
        columns=_columns(reader, value_options),
        bytes_per_partition=reader.size("bytesPerPartition", BYTES_PER_PARTITION, minimum=BYTES_PER_PARTITION_MIN),
        skips_bad_records=reader.choice("badRecords", ("fail", "skip")) == "skip",
        bad_records_path=reader.text("badRecordsPath") or None,
        fails_on_data_loss=reader.boolean("failOnDataLoss", default=True),
        reads_tail=reads_tail,
        tail_bootstrap_servers=reader.text("kafka.bootstrap.servers") or None,
        bytes_per_trigger_max=reader.size("maxBytesPerTrigger", None, minimum=1),
        commit_group=reader.text("commitGroup") or None,
        timestamp_min_ms=timestamp_min_ms,
        timestamp_max_ms=timestamp_max_ms,
        timestamp_disorder_ms=reader.duration("timestampDisorder"),
        task_bytes_max=reader.size("taskBytes", TASK_BYTES_MAX, minimum=TASK_BYTES_MIN),
        values=value_options,
    )
    if parsed.bad_records_path is not None and not parsed.skips_bad_records:
        problems.append("badRecordsPath is given, and badRecords is not skip")
    if problems:
        raise OptionsError(problems)
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """What the rows' types depend on. `config` and `selection` are there if a column has a format."""

    columns: tuple[str, ...]
    values: ValueOptions = field(default_factory=ValueOptions)
    config: Path | None = None
    selection: TopicSelection | None = None


def schema_options(options: Mapping[str, str]) -> SchemaOptions:
    """Return what a schema depends on, as it is asked for before the read is known to be one of a stream or not.

    Raises:
        OptionsError: one of these is wrong.
    """
    reader = OptionReader({name.lower(): value for name, value in options.items()}, [])
    values = read_value_options(reader)
    found = SchemaOptions(columns=_columns(reader, values), values=values)
    if values.columns:
        found = replace(found, config=_config(reader), selection=_selection(reader))
    if reader.problems:
        raise OptionsError(reader.problems)
    return found


def _config(reader: OptionReader) -> Path:
    if not reader.text("config"):
        reader.problems.append("config is missing: the path of the properties file of tidegate serve")
    return Path(reader.text("config"))


def _unknown(values: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    known = {name.lower(): name for name in _NAMES}
    as_given = {name.lower(): name for name in options}
    problems = []
    for name in sorted(values.keys() - known.keys()):
        shown = as_given[name]
        if _CREDENTIAL.fullmatch(name) and name not in _HINTS:
            problems.append(
                f"{shown} is refused: credentials belong in the file that `config` names: options show in Spark's plan"
            )
        elif name in _HINTS:
            problems.append(f"{shown} is not an option of this source: {_HINTS[name]}")
        elif name.startswith("kafka."):
            problems.append(f"{shown} is not an option of this source: a client's settings are in the file of `config`")
        else:
            nearest = [known[near] for near in difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)]
            remedy = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(_NAMES)}"
            problems.append(f"{shown} is not an option of this source: {remedy}")
    return problems


def _selection(reader: OptionReader) -> TopicSelection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if reader.has(name)]
    if len(given) != 1:
        which = "none is given" if not given else f"{' and '.join(given)} are given"
        reader.problems.append(f"one of subscribe, subscribePattern and assign is needed, and {which}")
        return TopicSelection(topics=())
    if given == ["subscribe"]:
        return TopicSelection(topics=reader.names("subscribe"))
    if given == ["assign"]:
        return TopicSelection(assigned=reader.partitions("assign"))
    pattern = reader.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        reader.problems.append(f"subscribePattern is not a pattern that Python's re takes: {error}")
    return TopicSelection(pattern=pattern)


def _starting(reader: OptionReader, is_streaming: bool) -> OffsetBound:
    by_time = _by_time(reader, "starting")
    if by_time is not None:
        return by_time
    text = reader.text("startingOffsets")
    if text.startswith("{"):
        offsets = reader.partition_numbers("startingOffsets", minimum=EARLIEST_OFFSET)
        if not is_streaming and LATEST_OFFSET in offsets.values():
            reader.problems.append(
                "startingOffsets is latest (-1) for a partition: only a streaming read may start there"
            )
        return PartitionOffsets(offsets)
    if text.lower() == "latest" and not is_streaming:
        reader.problems.append("startingOffsets is latest: only a streaming read may start there")
        return OffsetEdge.EARLIEST
    edges = ("earliest", "latest") if is_streaming else ("earliest",)
    return OffsetEdge(reader.choice("startingOffsets", edges, also="offsets as JSON"))


def _ending(reader: OptionReader, reads_tail: bool) -> OffsetBound:
    by_time = _by_time(reader, "ending")
    if by_time is not None:
        return by_time
    if not reader.has("endingOffsets"):
        return OffsetEdge.LATEST if reads_tail else OffsetEdge.TIERED
    if reader.text("endingOffsets").startswith("{"):
        return PartitionOffsets(reader.partition_numbers("endingOffsets", minimum=LATEST_OFFSET))
    return OffsetEdge(reader.choice("endingOffsets", ("tiered", "latest"), also="offsets as JSON"))


def _by_time(reader: OptionReader, side: str) -> OffsetBound | None:
    if reader.has(f"{side}Timestamp"):
        return SameTimestamp(reader.number(f"{side}Timestamp"))
    if reader.has(f"{side}OffsetsByTimestamp"):
        return PartitionTimestamps(reader.partition_numbers(f"{side}OffsetsByTimestamp", minimum=0))
    return None


def _read_committed(reader: OptionReader) -> bool:
    levels = ("read_uncommitted", "read_committed")
    given = {reader.choice(name, levels) for name in ("isolation", "kafka.isolation.level") if reader.has(name)}
    if len(given) > 1:
        reader.problems.append("isolation and kafka.isolation.level do not say the same")
    return "read_committed" in given


def _columns(reader: OptionReader, values: ValueOptions) -> tuple[str, ...]:
    include_headers = reader.boolean("includeHeaders", default=False)
    if not reader.has("columns"):
        return (*(COLUMNS if include_headers else DEFAULT_COLUMNS), *_default_value_columns(values))
    known = {name.lower(): name for name in (*COLUMNS, *VALUE_COLUMNS)}
    columns: list[str] = []
    for name in reader.names("columns"):
        column = known.get(name.lower())
        if column is None:
            reader.problems.append(f"columns names {name!r}, which is none of {', '.join(known.values())}")
        elif column in columns:
            reader.problems.append(f"columns names {column} twice")
        else:
            columns.append(column)
    if DEAD_LETTER in columns and not values.columns:
        reader.problems.append(f"columns names {DEAD_LETTER}, and neither valueFormat nor keyFormat is given")
    if include_headers and HEADERS not in columns:
        columns.append(HEADERS)
    return tuple(columns)


def _default_value_columns(values: ValueOptions) -> tuple[str, ...]:
    ids = [name for name, column in ((SCHEMA_ID, "value"), (KEY_SCHEMA_ID, "key")) if values.formats(column)]
    return (*ids, DEAD_LETTER) if values.columns and not values.fails_on_dead_letter else tuple(ids)
