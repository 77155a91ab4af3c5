"""The rows: exactly those of Spark's Kafka source, so that a job changes one word.

| column | Spark | Arrow |
|---|---|---|
| key, value | binary | binary |
| topic | string | string |
| partition | int | int32 |
| offset | bigint | int64 |
| timestamp | timestamp | timestamp[us, UTC] |
| timestampType | int: 0 CreateTime, 1 LogAppendTime, −1 none (message format v0) | int32 |
| headers | array<struct<key:string,value:binary>>, null for a record without any | list<struct> |

`headers` is there only with `includeHeaders`, as there.

Beside them, for values with a schema (table.values), which may also give `key` and `value` other types:

| column | Spark | |
|---|---|---|
| schemaId, keySchemaId | int | which schema wrote value and key; null without a header |
| deadLetter | array<struct<column:string,reason:string,data:binary>> | what could not be decoded; null for nothing |
"""

from collections.abc import Sequence

import pyarrow as pa

HEADERS = "headers"
OFFSET = "offset"
SCHEMA_ID = "schemaId"
KEY_SCHEMA_ID = "keySchemaId"
DEAD_LETTER = "deadLetter"

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_DEAD_LETTER = pa.struct(
    [pa.field("column", pa.string()), pa.field("reason", pa.string()), pa.field("data", pa.binary())]
)

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(_HEADER),
    SCHEMA_ID: pa.int32(),
    KEY_SCHEMA_ID: pa.int32(),
    DEAD_LETTER: pa.list_(_DEAD_LETTER),
    "leader_epoch": pa.int32(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "sequence": pa.int32(),
    "is_transactional": pa.bool_(),
    "batch_offset": pa.int64(),
    "segment_id": pa.string(),
    "size_bytes": pa.int64(),
    "batch_bytes": pa.int64(),
}

VALUE_COLUMNS = (SCHEMA_ID, KEY_SCHEMA_ID, DEAD_LETTER)
"""They are made of what has been read."""
LOG_COLUMNS = (
    *("leader_epoch", "producer_id", "producer_epoch", "sequence", "is_transactional"),
    *("batch_offset", "segment_id", "size_bytes", "batch_bytes"),
)
"""How the log has a record, for a scan that asks for it. Null is what its batch does not have; `segment_id` is null of
what is not in the tier yet, `size_bytes` is the record's own size, `batch_bytes` its batch's size in the log, and
`batch_offset` its batch's first offset."""
COLUMNS: tuple[str, ...] = tuple(name for name in _TYPES if name not in (*VALUE_COLUMNS, *LOG_COLUMNS))
DEFAULT_COLUMNS: tuple[str, ...] = tuple(name for name in COLUMNS if name != HEADERS)
"""Without headers, as the Kafka source without `includeHeaders`."""
NEVER_NULL = frozenset({"topic", "partition", OFFSET, "timestamp", "timestampType"})


def raw_columns(columns: Sequence[str], typed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what has to be read for these columns, of which `typed` ones are to be decoded."""
    needed = {SCHEMA_ID: "value", KEY_SCHEMA_ID: "key"}
    wanted = [needed.get(name, name) for name in columns]
    if DEAD_LETTER in columns:
        wanted += typed
    if typed:
        wanted.append(OFFSET)
    return tuple(name for name in dict.fromkeys(wanted) if name != DEAD_LETTER)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])
