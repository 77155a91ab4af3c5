"""The rows as Spark has them, and a schema that the user gives against that."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from table.schema import NEVER_NULL, arrow_schema

if TYPE_CHECKING:
    from table.values.settled import SettledColumn


def spark_types(columns: Sequence[str], settled: "Sequence[SettledColumn]") -> StructType:
    """The rows as Spark has them."""
    types = arrow_schema(columns)
    if settled:
        from table.values.settled import typed_schema

        types = typed_schema(columns, settled)
    return from_arrow_schema(types, prefer_timestamp_ntz=True)


def schema_problems(given: StructType, ours: StructType) -> list[str]:
    """Why rows of ours cannot be of the schema that is given: a sentence for each column."""
    types = {field.name: field.dataType for field in ours}
    problems = []
    for name in dict.fromkeys(given.names):
        wanted = [field for field in given if field.name == name]
        if name not in types:
            problems.append(f"the schema names {name!r}, which is none of {', '.join(types)}")
        elif len(wanted) > 1:
            problems.append(f"the schema names {name} twice")
        elif wanted[0].dataType != types[name]:
            shown = [each.simpleString() for each in (wanted[0].dataType, types[name])]
            if shown[0] == shown[1]:  # what may be null inside is not in that
                shown = [each.json() for each in (wanted[0].dataType, types[name])]
            problems.append(f"the schema has {name} as {shown[0]}, and it is {shown[1]}")
        elif not wanted[0].nullable and name not in NEVER_NULL:
            problems.append(f"the schema has {name} as not null, and a record may have none")
    return problems
