"""A backfill's steps into Delta and Iceberg tables, each record once, also beside other writers.

The rows are made by Spark, so that what is tested is the table's side alone.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.test_table_sink import (
    _kill_and_repeat,
    both,
    folder,
    name,
    plain,
    session,
    test_a_killed_driver_is_followed,
    test_a_table_is_dropped_and_made_anew,
    test_a_table_is_rolled_back,
    test_a_table_that_somebody_else_made,
    test_columns_that_do_not_fit,
    test_commits_that_are_gone,
    test_runs_follow_each_other,
)

__all__ = [
    "folder",
    "name",
    "plain",
    "session",
    "test_a_killed_driver_is_followed",
    "test_a_table_is_dropped_and_made_anew",
    "test_a_table_is_rolled_back",
    "test_a_table_that_somebody_else_made",
    "test_columns_that_do_not_fit",
    "test_commits_that_are_gone",
    "test_runs_follow_each_other",
]

pytestmark = [pytest.mark.needs("spark"), pytest.mark.needs("tables")]


@pytest.fixture
def table_format() -> str:
    return "delta"


@both
@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["with-its-jvm", "alone"])
@pytest.mark.parametrize("files", [1, 3, 5, 8, 12, 17, 23, 30, 38, 47, 57, 68, 80])
def test_drivers_are_killed_at_many_moments(
    session: "SparkSession",
    name: str,
    table_format: str,
    folder: Path,
    plain: str,
    kill: Callable[[int, int], None],
    files: int,
) -> None:
    _kill_and_repeat(session, name, table_format, folder, plain, files=files, kill=kill)
