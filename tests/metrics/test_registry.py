"""The registry: names by configuration and by rule, limits on labels, no series that a broker has not."""

import re

from metrics.kip405 import Kind, Kip405Names
from metrics.meters import Meters
from metrics.page import render
from metrics.registry import OTHER_LABEL, Children, Registry

PREFIX = "kafka_server_brokertopicmetrics_"
TOPIC = {"topic": "orders"}


def counted(registry: Registry) -> Children[str]:
    children = Children[str](registry.kip405_counter("BrokerTopicMetrics.RemoteFetchBytesPerSec"), registry.topics)
    children["orders"].value += 5
    return children


def lines(registry: Registry) -> list[str]:
    page = render(registry)[1].decode()
    return [line for line in page.splitlines() if not line.startswith("#")]


def test_names_are_as_configured_and_the_second_follows_the_first() -> None:
    for names, exported in (
        (Kip405Names.CURRENT, ["remotefetchbytes"]),
        (Kip405Names.ORIGINAL, ["remotebytesin"]),
        (Kip405Names.BOTH, ["remotefetchbytes", "remotebytesin"]),
    ):
        registry = Registry(names)
        counted(registry)["orders"].value += 2
        assert lines(registry) == [f'{PREFIX}{name}_total{{topic="orders"}} 7.0' for name in exported]


def test_a_bean_without_a_first_name_keeps_its_name() -> None:
    registry = Registry(Kip405Names.ORIGINAL)
    registry.kip405_counter("DelayedRemoteFetchMetrics.ExpiresPerSec").labels()
    assert lines(registry) == ["kafka_server_delayedremotefetchmetrics_expires_total 0.0"]


def test_there_is_no_series_without_the_topic_and_none_of_creation_times() -> None:
    registry = Registry()
    counted(registry)
    assert registry.sample_value(f"{PREFIX}remotefetchbytes_total", TOPIC) == 5
    assert registry.sample_value(f"{PREFIX}remotefetchbytes_total") is None
    assert "_created" not in render(registry)[1].decode()


def test_topics_beyond_the_limit_share_one_series() -> None:
    registry = Registry(topics_max=2)
    counter = registry.kip405_counter("BrokerTopicMetrics.RemoteFetchBytesPerSec")
    children = Children[str](counter, registry.topics)
    for topic in ("a", "b", "c", "d", "a", "c"):
        children[topic].value += 1
    values = {topic: registry.sample_value(f"{PREFIX}remotefetchbytes_total", {"topic": topic}) for topic in "abcd"}
    assert values == {"a": 2, "b": 2 - 1, "c": None, "d": None}
    assert registry.sample_value(f"{PREFIX}remotefetchbytes_total", {"topic": OTHER_LABEL}) == 3
    assert set(children) == {"a", "b"}


def test_partitions_beyond_the_limit_share_one_series_whatever_their_topic() -> None:
    registry = Registry()
    counter = registry.kip405_counter("DelayedRemoteListOffsetsMetrics.ExpiresPerSec")
    children = Children[tuple[str, int]](counter, registry.topics, 2)
    for partition in (0, 1, 2, 3, 0):
        children["orders", partition].value += 1
    name = "kafka_server_delayedremotelistoffsetsmetrics_expires_total"
    values = [registry.sample_value(name, {"topic": "orders", "partition": str(number)}) for number in range(4)]
    assert values == [2, 1, None, None]
    assert registry.sample_value(name, {"topic": OTHER_LABEL, "partition": OTHER_LABEL}) == 2


def test_names_are_ours_and_leave_the_suffix_to_the_library() -> None:
    families = [family for family in Meters().registry.families if not family.name.startswith("kafka_")]
    assert all(re.fullmatch(r"tidegate_[a-z_]+[a-z]", family.name) for family in families)
    assert not [family.name for family in families if family.name.endswith(("_total", "_count", "_bucket"))]
    assert not [family.name for family in families if not family.help.endswith(".")]
    assert all(family.name.endswith("_seconds") for family in families if family.kind is Kind.HISTOGRAM)
