"""The table: every MBean once, named by the rules of spec/kafka-remote.md §8.2."""

import re

import pytest

from metrics.family import Kind
from metrics.kip405 import ROWS, Kip405Row, Writer

EXPORTED = [row for row in ROWS if row.family is not None]

BROKER_TOPIC_BEANS = {
    "RemoteFetchBytesPerSec",
    "RemoteFetchRequestsPerSec",
    "RemoteFetchErrorsPerSec",
    "RemoteCopyBytesPerSec",
    "RemoteCopyRequestsPerSec",
    "RemoteCopyErrorsPerSec",
    "RemoteCopyLagBytes",
    "RemoteCopyLagSegments",
    "RemoteDeleteRequestsPerSec",
    "RemoteDeleteErrorsPerSec",
    "RemoteDeleteLagBytes",
    "RemoteDeleteLagSegments",
    "RemoteLogMetadataCount",
    "RemoteLogSizeBytes",
    "RemoteLogSizeComputationTime",
    "BuildRemoteLogAuxStateRequestsPerSec",
    "BuildRemoteLogAuxStateErrorsPerSec",
}


def set_a_name(row: Kip405Row) -> str:
    """Strimzi's rules, written independently of the table: lower-cased, PerSec cut off, Percent set apart."""
    domain, _, properties = row.mbean.partition(":")
    bean_type = properties.removeprefix("type=").partition(",")[0]
    bean = re.sub(r"Percent$", "_percent", re.sub(r"PerSec$", "", row.name))
    return f"{domain.replace('.', '_')}_{bean_type}_{bean}".lower()


def test_every_row_is_exported_or_says_why_not() -> None:
    for row in ROWS:
        assert (row.family is None) is (row.no_meaning is not None), row.mbean
        assert row.no_meaning != ""


def test_every_mbean_has_one_row() -> None:
    # 17 of BrokerTopicMetrics, 8 of the manager and its pools, 6 of what waits, 6 of the quotas
    assert len({row.mbean for row in ROWS}) == len(ROWS) == 17 + 8 + 6 + 6


def test_every_bean_of_broker_topic_metrics_is_there() -> None:
    assert {row.name for row in ROWS if "BrokerTopicMetrics" in row.mbean} == BROKER_TOPIC_BEANS


def test_exported_beans_can_be_looked_up_by_their_name() -> None:
    families: dict[str, set[object]] = {}
    for row in EXPORTED:
        families.setdefault(row.type_and_name, set()).add(row.family)
    assert all(len(of_bean) == 1 for of_bean in families.values())


@pytest.mark.parametrize("row", EXPORTED, ids=lambda row: row.name)
def test_exported_name_follows_set_a(row: Kip405Row) -> None:
    assert row.family is not None
    assert row.family.name == set_a_name(row)


@pytest.mark.parametrize("row", EXPORTED, ids=lambda row: row.name)
def test_meters_are_counters_and_topic_beans_have_the_topic_label(row: Kip405Row) -> None:
    assert row.family is not None
    assert (row.family.kind is Kind.COUNTER) is row.name.endswith("PerSec")
    assert (row.family.labels == ("topic",)) is ("BrokerTopicMetrics" in row.mbean)


def test_first_names_are_those_of_kip_405() -> None:
    prefix = "kafka_server_brokertopicmetrics_"
    assert {row.name: row.original_name for row in ROWS if row.original_name} == {
        "RemoteFetchRequestsPerSec": prefix + "remotereadrequests",
        "RemoteFetchBytesPerSec": prefix + "remotebytesin",
        "RemoteFetchErrorsPerSec": prefix + "remotereaderror",
        "RemoteCopyBytesPerSec": prefix + "remotebytesout",
        "RemoteCopyErrorsPerSec": prefix + "remotewriteerror",
    }


def test_only_what_copies_or_deletes_waits_for_the_copier() -> None:
    for row in EXPORTED:
        by_copier = re.search(r"Copy|Delete|ManagerTasks|ComputationTime", row.name) is not None
        assert (row.writer is Writer.COPIER) is by_copier, row.name
