"""A daily backfill, for more days than tests/spark/test_backfill_daily.py has."""

import pytest

from tests.spark.test_backfill_daily import pytestmark, test_each_day_gives_what_is_new_and_every_record_is_there_once

__all__ = ["pytestmark", "test_each_day_gives_what_is_new_and_every_record_is_there_once"]


@pytest.fixture
def days() -> int:
    return 5
