"""Whether a backfill's columns fit a table that is there, and how they are brought to its own.

Columns are matched by name, as Spark compares names (without case, unless `spark.sql.caseSensitive`), and so are the
fields of structs, at any depth. The table's order does not matter. What only the table has is null.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as sql

from table.schema import NEVER_NULL

_WIDER: dict[type[types.DataType], tuple[type[types.DataType], ...]] = {
    types.IntegerType: (types.LongType,),
    types.FloatType: (types.DoubleType,),
}
_NEVER_NULL = NEVER_NULL | {"date", "offset_range"}


@dataclass(frozen=True, slots=True)
class Missing:
    """A column that the table lacks, or a field inside one. `path`: from the column on, as ALTER TABLE names it."""

    path: tuple[str, ...]
    type: types.DataType

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Fit:
    """`missing`: what the table lacks. `problems`: a sentence for each that cannot be."""

    missing: tuple[Missing, ...]
    problems: tuple[str, ...]


def fit(rows: types.StructType, table: types.StructType, *, is_case_sensitive: bool) -> Fit:
    """Return what keeps rows of the one from going into the other."""
    known = {_key(field.name, is_case_sensitive): field for field in table.fields}
    missing: list[Missing] = []
    problems = []
    for ours in rows.fields:
        there = known.pop(_key(ours.name, is_case_sensitive), None)
        if there is None:
            missing.append(Missing((ours.name,), ours.dataType))
            continue
        inside = _Inside(is_case_sensitive)
        if not inside.fits(ours.dataType, there.dataType, (there.name,)):
            problems.append(
                f"column {there.name} is {there.dataType.simpleString()}, and the rows have "
                f"{ours.dataType.simpleString()}"
            )
        elif not there.nullable and ours.name not in _NEVER_NULL:
            problems.append(f"column {there.name} is NOT NULL, and rows may have none")
        else:
            missing += inside.missing
    for there in known.values():
        if not there.nullable and not _fills_itself(there):
            problems.append(f"column {there.name} {there.dataType.simpleString()} is NOT NULL, and the rows lack it")
    return Fit(tuple(missing), tuple(problems))


def added_columns(missing: Sequence[Missing]) -> str:
    """As `ALTER TABLE … ADD COLUMNS (…)` takes them."""
    return ", ".join(f"{'.'.join(map(_quoted, each.path))} {each.type.simpleString()}" for each in missing)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def as_table(rows: DataFrame, table: types.StructType, *, is_case_sensitive: bool, fills_nulls: bool) -> DataFrame:
    """The rows with the table's columns, in its order. They fit, and the table lacks nothing.

    Args:
        fills_nulls: with null for what only the table has; else its format does that. Inside of structs it is always
            null.
    """
    known = {_key(each.name, is_case_sensitive): each for each in rows.schema.fields}
    columns: list[Column] = []
    for there in table.fields:
        ours = known.get(_key(there.name, is_case_sensitive))
        if ours is not None:
            made = _as_type(sql.col(f"`{ours.name}`"), ours.dataType, there.dataType, is_case_sensitive)
            columns.append(made.alias(there.name))
        elif fills_nulls:
            columns.append(sql.lit(None).cast(there.dataType).alias(there.name))
    return rows.select(*columns)


def _as_type(value: Column, ours: types.DataType, table: types.DataType, is_case_sensitive: bool) -> Column:
    """By name inside of structs, which a cast of Spark's takes by place."""
    if ours == table:
        return value
    if isinstance(ours, types.StructType) and isinstance(table, types.StructType):
        known = {_key(each.name, is_case_sensitive): each for each in ours.fields}
        fields = []
        for there in table.fields:
            each = known.get(_key(there.name, is_case_sensitive))
            if each is None:
                fields.append(sql.lit(None).cast(there.dataType).alias(there.name))
            else:
                made = _as_type(value.getField(each.name), each.dataType, there.dataType, is_case_sensitive)
                fields.append(made.alias(there.name))
        return sql.when(value.isNotNull(), sql.struct(*fields))
    if isinstance(ours, types.ArrayType) and isinstance(table, types.ArrayType):
        of_element = partial(
            _as_type, ours=ours.elementType, table=table.elementType, is_case_sensitive=is_case_sensitive
        )
        return (
            sql.transform(value, lambda each: of_element(each)) if _is_nested(ours.elementType) else value.cast(table)
        )
    if isinstance(ours, types.MapType) and isinstance(table, types.MapType) and _is_nested(ours.valueType):
        of_value = partial(_as_type, ours=ours.valueType, table=table.valueType, is_case_sensitive=is_case_sensitive)
        return sql.transform_values(value, lambda _, each: of_value(each))
    return value.cast(table)


def _is_nested(kind: types.DataType) -> bool:
    return isinstance(kind, types.StructType | types.ArrayType | types.MapType)


def _key(name: str, is_case_sensitive: bool) -> str:
    return name if is_case_sensitive else name.lower()


@dataclass(slots=True)
class _Inside:
    """One column's fields against those of the table's; `missing` grows."""

    is_case_sensitive: bool
    missing: list[Missing] = field(default_factory=list)

    def fits(self, ours: types.DataType, table: types.DataType, path: tuple[str, ...]) -> bool:
        if isinstance(ours, types.ArrayType) and isinstance(table, types.ArrayType):
            may_be_null = table.containsNull or not ours.containsNull
            return may_be_null and self.fits(ours.elementType, table.elementType, (*path, "element"))
        if isinstance(ours, types.MapType) and isinstance(table, types.MapType):
            may_be_null = table.valueContainsNull or not ours.valueContainsNull
            # Fields of a key cannot be added: two keys could become one.
            is_same_key = _Inside(self.is_case_sensitive)
            fits_key = is_same_key.fits(ours.keyType, table.keyType, (*path, "key")) and not is_same_key.missing
            return may_be_null and fits_key and self.fits(ours.valueType, table.valueType, (*path, "value"))
        if isinstance(ours, types.StructType) and isinstance(table, types.StructType):
            return self._struct_fits(ours, table, path)
        return ours == table or isinstance(table, _WIDER.get(type(ours), ()))

    def _struct_fits(self, ours: types.StructType, table: types.StructType, path: tuple[str, ...]) -> bool:
        known = {_key(each.name, self.is_case_sensitive): each for each in table.fields}
        for each in ours.fields:
            there = known.pop(_key(each.name, self.is_case_sensitive), None)
            if there is None:
                self.missing.append(Missing((*path, each.name), each.dataType))
            else:
                is_null = each.nullable and not there.nullable
                if is_null or not self.fits(each.dataType, there.dataType, (*path, there.name)):
                    return False
        return all(there.nullable for there in known.values())


def _fills_itself(column: types.StructField) -> bool:
    return any(
        key in column.metadata for key in ("CURRENT_DEFAULT", "delta.generationExpression", "delta.identity.start")
    )
