"""Spark 4.1's filters by name and shape (pyspark.sql.datasource there): the tests' pyspark 4.0 has none."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class EqualNullSafe(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class GreaterThanOrEqual(EqualTo):
    pass


class LessThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class In(EqualTo):
    pass


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]


class StringStartsWith(EqualTo):
    pass


@dataclass(frozen=True)
class Not:
    child: EqualTo
