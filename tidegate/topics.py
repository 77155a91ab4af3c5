"""Keeps the names and leaders of topics current, and notices topics that we may not describe.

Rule 1. Each topic of the catalog is asked for when it appears there, whether anybody reads it or not: one without
        Describe would else be read by the brokers, and nothing would say so.
Rule 2. What was learned is asked for again once in TOPICS_INTERVAL_S, and so is what should have been: a right may have
        come or gone. A name that became another topic is found at once by the probe, which goes by id.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

import structlog
import trio

from protocol.client.errors import UpstreamError
from proxy.fetch.fallback import Fallback
from proxy.upstream.cluster import TOPICS_MAX, Cluster
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition

TOPICS_INTERVAL_S = 30.0
NEW_TOPICS_INTERVAL_S = 1.0
ANSWER_S_MAX = 10.0

_log = structlog.get_logger(__name__)


async def follow_topics(cluster: Cluster, catalog: Catalog, fallback: Fallback) -> None:
    """Until cancelled; `fallback` hears of what is not described."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_learn_again, cluster, catalog)
        await _learn_new(cluster, catalog, fallback)


async def _learn_again(cluster: Cluster, catalog: Catalog) -> None:
    """In small requests, spread over the interval."""
    pause_s = TOPICS_INTERVAL_S
    while True:
        await trio.sleep(pause_s)
        parts = _parts(islice(_topics(cluster, catalog), cluster.settings.topics_max)) or [[]]
        pause_s = TOPICS_INTERVAL_S / len(parts)
        for number, part in enumerate(parts):
            await trio.sleep(pause_s if number else 0)
            await _is_learned(cluster, part)


def _topics(cluster: Cluster, catalog: Catalog) -> Iterator[str]:
    yield from cluster.topic_names()
    yield from (name for name in catalog.topic_names() if cluster.topic_id(name) is None)


def _parts(names: Iterable[str]) -> list[list[str]]:
    all_names = [*names]
    return [all_names[at : at + TOPICS_MAX] for at in range(0, len(all_names), TOPICS_MAX)]


async def _learn_new(cluster: Cluster, catalog: Catalog, fallback: Fallback) -> None:
    asked: set[str] = set()
    told: object = None
    while True:
        names = catalog.topic_names()
        asked &= names
        for part in _parts(names - asked):
            if not await _is_learned(cluster, part):
                break
            asked.update(part)
        denied = names & cluster.denied
        if told != (news := (denied, catalog.changes if denied else None)):
            told = news
            partitions = await trio.to_thread.run_sync(_partitions_of, catalog, denied) if denied else ()
            fallback.leave_undescribed(partitions, cluster.describe_missing(sorted(denied)))
        await trio.sleep(NEW_TOPICS_INTERVAL_S)


async def _is_learned(cluster: Cluster, names: Sequence[str]) -> bool:
    """Return whether upstream answered."""
    try:
        with trio.fail_after(ANSWER_S_MAX):
            await cluster.learn_topics(names)
    except (UpstreamError, trio.TooSlowError) as error:
        # It is said, once a spell, by the task that asks for the brokers.
        _log.debug("topics_not_refreshed", topics=len(names), reason=str(error))
        return False
    return True


def _partitions_of(catalog: Catalog, topics: AbstractSet[str]) -> list[TopicIdPartition]:
    return [partition for partition in catalog.partitions() if partition.topic in topics]
