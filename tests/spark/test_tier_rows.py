"""Plans made in the job's own process: the source's rows, of one tier that is opened once for all of them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from pyspark.sql import SparkSession

from pipeline import data_source
from pipeline.jobs.tier_rows import tier_rows
from storage.config.tier_client import TierClientConfig
from table import driver
from table.driver import KeptTier, Tier, open_tier
from tests.support.source_rows import assert_same_rows, read_tier, tier_options
from tests.support.spark_topics import PLAIN, TRANSACTIONAL, SparkTopics


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TierClientConfig]]:
    """The tiers that this process opens."""
    found: list[TierClientConfig] = []

    def counted(config: TierClientConfig) -> AbstractContextManager[Tier]:
        found.append(config)
        return open_tier(config)

    kept = KeptTier()
    monkeypatch.setattr(driver, "open_tier", counted)
    monkeypatch.setattr(data_source, "kept_tier", kept)
    yield found
    kept.close()


def test_rows_planned_here_are_the_sources_and_the_tier_is_opened_once(
    spark: SparkSession, spark_topics: SparkTopics, opened: list[TierClientConfig]
) -> None:
    for topic, options in ((PLAIN, {"bytesPerPartition": "64k"}), (TRANSACTIONAL, {"isolation": "read_committed"})):
        rows = tier_rows(spark, tier_options(spark_topics, topic, options))
        assert_same_rows(rows, read_tier(spark, spark_topics, topic, options))
    assert len(opened) == 1

    nothing = tier_rows(spark, tier_options(spark_topics, PLAIN, {"timestampFrom": "2100-01-01T00:00:00Z"}))
    assert nothing.isEmpty()
