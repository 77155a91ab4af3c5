"""Typed values into a folder; tests/spark/test_values.py writes them into a table."""

import pytest

from tests.spark.test_values import pytestmark, test_a_backfill_writes_typed_values_and_dead_letters

__all__ = ["pytestmark", "test_a_backfill_writes_typed_values_and_dead_letters"]


@pytest.fixture
def where() -> str:
    return "--output"
