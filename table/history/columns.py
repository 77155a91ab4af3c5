"""The columns of a scan. Names are Python's; rows inside have those of Spark's source (table.schema)."""

from typing import Final

from table.planning.value_options import ValueOptions
from table.schema import DEAD_LETTER, HEADERS, KEY_SCHEMA_ID, LOG_COLUMNS, SCHEMA_ID

_PUBLIC: Final = {
    "timestampType": "timestamp_type",
    SCHEMA_ID: "schema_id",
    KEY_SCHEMA_ID: "key_schema_id",
    DEAD_LETTER: "dead_letter",
}
_INTERNAL: Final = {public: internal for internal, public in _PUBLIC.items()}

DEFAULT_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", HEADERS)
ON_DEMAND_COLUMNS: Final = (*LOG_COLUMNS, "schema_id", "key_schema_id")


def internal_name(name: str) -> str:
    """Return a column's name in table.schema."""
    return _INTERNAL.get(name, name)


def value_columns(values: ValueOptions) -> tuple[str, ...]:
    """The columns that values with a schema bring."""
    ids = [name for name, column in (("schema_id", "value"), ("key_schema_id", "key")) if values.formats(column)]
    return (*ids, "dead_letter") if values.columns and not values.fails_on_dead_letter else tuple(ids)


def all_columns(values: ValueOptions) -> tuple[str, ...]:
    """Every column that can be asked for."""
    return tuple(dict.fromkeys((*DEFAULT_COLUMNS, *value_columns(values), *ON_DEMAND_COLUMNS)))


def public_name(name: str) -> str:
    """Return what a scan calls a column of table.schema."""
    return _PUBLIC.get(name, name)
