"""The page's second command for a backfill into a table; tests/spark/test_backfill_table.py has the first."""

import pytest

from tests.spark.test_backfill_table import command, pytestmark, test_a_topic_goes_into_a_table_day_by_day

__all__ = ["command", "pytestmark", "test_a_topic_goes_into_a_table_day_by_day"]


@pytest.fixture
def block() -> str:
    return "Into tables 2"
