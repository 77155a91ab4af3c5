"""Where a streaming query is, committed for a consumer group from outside of the query.

The option `commitGroup` does that from within, at the trigger that follows a batch. With the trigger `availableNow`
there is none after the last batch, so the code that waits for the query commits what it has reached:

    query.awaitTermination()
    commit_offsets(query, config="tidegate.properties", group="orders-to-lake")
"""

import json
import os
from typing import TYPE_CHECKING

from pipeline.stream_progress import TOPIC_IDS, parse_progress
from storage.config.client_settings import client_settings
from table.brokers.client import BrokerClient
from table.driver import load_config

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from table.planning.request import TopicPartition


def commit_offsets(query: "StreamingQuery", *, config: str, group: str) -> None:
    """Commit for `group` what the query has done by its last progress; nothing if it has told none of our sources.

    Raises:
        ConfigError: the file of `tidegate serve` is wrong.
        GroupInUseError, GroupAuthorizationError, TopicAuthorizationError, UpstreamError: as the option's.
    """
    offsets: dict[TopicPartition, int] = {}
    for progress in query.recentProgress:
        for source in progress["sources"]:
            end = json.loads(source["endOffset"] or "null")
            if isinstance(end, dict) and TOPIC_IDS in end:
                offsets |= parse_progress(end).offsets
    if offsets:
        with BrokerClient(client_settings(load_config(config, os.environ).upstream)) as client:
            client.commit_offsets(group, offsets)
