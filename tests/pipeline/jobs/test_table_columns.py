"""Which columns of a backfill go into a table that somebody else made, and what is said of the others."""

from collections.abc import Mapping

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipeline.jobs.job_context import UsageError
from pipeline.jobs.table_columns import added_columns, fit
from pipeline.jobs.table_format import TableName
from tests.support.cases import case
from tests.support.for_each import for_each

INT, LONG, TEXT, BINARY = IntegerType(), LongType(), StringType(), BinaryType()


def headers(value: str) -> DataType:
    return ArrayType(StructType([StructField("key", TEXT), StructField(value, BINARY)]))


def schema(columns: Mapping[str, DataType], required: str = "") -> StructType:
    return StructType([StructField(name, kind, nullable=name != required) for name, kind in columns.items()])


PLACE: dict[str, DataType] = {"partition": INT, "offset": LONG}
HEADERS = {"headers": headers("value")}
HEADERS_TYPE = "array<struct<key:string,{}:binary>>"
ALL = PLACE | {"value": BINARY} | HEADERS
ROWS = schema(ALL)


@for_each(
    "table, missing, problems",
    [
        (ROWS, "", ()),
        (schema({"extra": TEXT, "VALUE": BINARY, "Offset": LONG, "partition": LONG, **HEADERS}), "", ()),
        (schema(PLACE | HEADERS, required="offset"), "`value` binary", ()),
        (schema(PLACE | {"value": BINARY}), f"`headers` {HEADERS_TYPE.format('value')}", ()),
        (schema(ALL | {"value": TEXT}), "", ("column value is string, and the rows have binary",)),
        (schema(ALL | {"offset": INT}), "", ("column offset is int, and the rows have bigint",)),
        (schema(ALL | {"headers": headers("data")}), "`headers`.`element`.`value` binary", ()),
        (schema(ALL | {"region": TEXT}, "region"), "", ("column region string is NOT NULL, and the rows lack it",)),
        (schema(ALL, required="value"), "", ("column value is NOT NULL, and rows may have none",)),
    ],
)
def test_columns_fit_by_name(table: StructType, missing: str, problems: tuple[str, ...]) -> None:
    found = fit(ROWS, table, is_case_sensitive=False)
    assert (added_columns(found.missing), found.problems) == (missing, problems)


def order(*fields: tuple[str, DataType], nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable=nullable) for name, kind in fields])


ID = ("id", LONG)
KEYED = (MapType(order(ID), TEXT), MapType(order(ID, ("c", TEXT)), TEXT))
"""A field of a key could make two keys of one."""


@for_each(
    "ours, table, missing, is_problem",
    [
        (order(ID, ("zip", TEXT)), order(ID), "`value`.`zip` string", False),
        (order(ID), order(ID, ("zip", TEXT)), "", False),
        (order(("zip", TEXT), ("ID", INT)), order(ID, ("zip", TEXT)), "", False),
        (order(("a", order(ID, ("b", TEXT)))), order(("a", order(ID))), "`value`.`a`.`b` string", False),
        (ArrayType(order(ID, ("b", TEXT))), ArrayType(order(ID)), "`value`.`element`.`b` string", False),
        (MapType(TEXT, order(ID, ("b", TEXT))), MapType(TEXT, order(ID)), "`value`.`value`.`b` string", False),
        (KEYED[1], KEYED[0], "", True),
        (order(("id", TEXT)), order(ID), "", True),
        (order(ID), order(ID, ("zip", TEXT), nullable=False), "", True),
    ],
)
def test_fields_of_structs_fit_by_name_at_any_depth(
    ours: DataType, table: DataType, missing: str, is_problem: bool
) -> None:
    """One field more in a nested record ended the daily backfill."""
    found = fit(schema({"value": ours}), schema({"value": table}), is_case_sensitive=False)
    assert (added_columns(found.missing), bool(found.problems)) == (missing, is_problem)


def test_names_have_a_case_where_spark_says_so() -> None:
    found = fit(schema({"offset": LONG}), schema({"Offset": LONG}), is_case_sensitive=True)
    assert added_columns(found.missing) == "`offset` bigint"


@for_each(
    "text, parts, is_path",
    [
        ("lake.db.orders", ("lake", "db", "orders"), False),
        ("delta.`s3a://lake/or-ders`", ("delta", "s3a://lake/or-ders"), True),
        ("`a-b`.`c``d`", ("a-b", "c`d"), False),
    ],
)
def test_a_tables_name(text: str, parts: tuple[str, ...], is_path: bool) -> None:
    name = TableName.parse(text)
    assert (name.parts, str(name), name.is_path) == (parts, text, is_path)

    for wrong in ("", ".", "a.", "a..b", "a b", "a;DROP TABLE b", "`a", "``"):
        with case(wrong), pytest.raises(UsageError, match="is no table's name"):
            TableName.parse(wrong)
