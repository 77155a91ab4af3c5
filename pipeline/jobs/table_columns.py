"""Whether a backfill's columns fit a table that is there, and how they are brought to its own.

Columns are matched by name, as Spark compares names (without case, unless `spark.sql.caseSensitive`). The table's order
does not matter. What only the table has is null.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as sql

from table.schema import NEVER_NULL

_WIDER: dict[type[types.DataType], tuple[type[types.DataType], ...]] = {
    types.IntegerType: (types.LongType,),
    types.FloatType: (types.DoubleType,),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """`missing`: columns that the table lacks. `problems`: a sentence for each that cannot be."""

    missing: tuple[types.StructField, ...]
    problems: tuple[str, ...]


def fit(rows: types.StructType, table: types.StructType, *, is_case_sensitive: bool) -> Fit:
    """Return what keeps rows of the one from going into the other."""
    known = {_key(field.name, is_case_sensitive): field for field in table.fields}
    missing, problems = [], []
    for field in rows.fields:
        there = known.pop(_key(field.name, is_case_sensitive), None)
        if there is None:
            missing.append(field)
        elif not _fits(field.dataType, there.dataType):
            problems.append(
                f"column {there.name} is {there.dataType.simpleString()}, and the rows have "
                f"{field.dataType.simpleString()}"
            )
        elif not there.nullable and field.name not in _NEVER_NULL:
            problems.append(f"column {there.name} is NOT NULL, and rows may have none")
    for there in known.values():
        if not there.nullable and not _fills_itself(there):
            problems.append(f"column {there.name} {there.dataType.simpleString()} is NOT NULL, and the rows lack it")
    return Fit(tuple(missing), tuple(problems))


_NEVER_NULL = NEVER_NULL | {"date", "offset_range"}


def added_columns(missing: Sequence[types.StructField]) -> str:
    """As `ALTER TABLE … ADD COLUMNS (…)` takes them."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in missing)


def as_table(rows: DataFrame, table: types.StructType, *, is_case_sensitive: bool, fills_nulls: bool) -> DataFrame:
    """The rows with the table's columns, in its order.

    Args:
        fills_nulls: with null for what only the table has; else its format does that.
    """
    known = {_key(name, is_case_sensitive): name for name in rows.columns}
    columns: list[Column] = []
    for field in table.fields:
        name = known.get(_key(field.name, is_case_sensitive))
        if name is not None:
            columns.append(sql.col(f"`{name}`").cast(field.dataType).alias(field.name))
        elif fills_nulls:
            columns.append(sql.lit(None).cast(field.dataType).alias(field.name))
    return rows.select(*columns)


def _key(name: str, is_case_sensitive: bool) -> str:
    return name if is_case_sensitive else name.lower()


def _fits(ours: types.DataType, table: types.DataType) -> bool:
    if isinstance(ours, types.ArrayType) and isinstance(table, types.ArrayType):
        return (table.containsNull or not ours.containsNull) and _fits(ours.elementType, table.elementType)
    if isinstance(ours, types.MapType) and isinstance(table, types.MapType):
        values = (table.valueContainsNull or not ours.valueContainsNull) and _fits(ours.valueType, table.valueType)
        return values and _fits(ours.keyType, table.keyType)
    if isinstance(ours, types.StructType) and isinstance(table, types.StructType):
        return ours.names == table.names and all(
            (there.nullable or not field.nullable) and _fits(field.dataType, there.dataType)
            for field, there in zip(ours.fields, table.fields, strict=True)
        )
    return ours == table or isinstance(table, _WIDER.get(type(ours), ()))


def _fills_itself(field: types.StructField) -> bool:
    return any(
        key in field.metadata for key in ("CURRENT_DEFAULT", "delta.generationExpression", "delta.identity.start")
    )
