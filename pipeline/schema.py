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
"""

from collections.abc import Sequence

import pyarrow as pa

HEADERS = "headers"

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("int", pa.int32()),
    HEADERS: ("array<struct<key:string,value:binary>>", pa.list_(_HEADER)),
}

COLUMNS: tuple[str, ...] = tuple(_TYPES)
DEFAULT_COLUMNS: tuple[str, ...] = tuple(name for name in COLUMNS if name != HEADERS)
"""Without headers, as the Kafka source without `includeHeaders`."""


def spark_schema(columns: Sequence[str]) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {_TYPES[name][0]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])
