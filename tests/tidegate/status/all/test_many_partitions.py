"""The document of an application that has ten thousand partitions, in front of brokers that are not there."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.metadata_records import finish, named_partition, started
from tests.tidegate.status.test_collect import running
from tidegate.status.model import PAGE_ROWS

PARTITIONS = 10_000

pytestmark = pytest.mark.usefixtures("restored_logging")


async def test_ten_thousand_partitions_are_paged_and_found_by_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as (application, admin):
        for number in range(PARTITIONS):
            topic, partition = divmod(number, 100)
            named = named_partition(f"topic-{topic:03}", partition)
            finish(application.catalog, started(f"s{number}", 0, 99, partition=named, size_bytes=500))
        # The folder is not the brokers', so nobody has found the tier to be there.
        assert (await admin.get("/status.json")).json()["conditions"]["tier"]["state"] == "pending"
        last: dict[str, Any] = (await admin.get("/status.json?page=200")).json()["partitions"]
        assert (last["total"], last["page"], last["pages"], len(last["rows"])) == (PARTITIONS, 200, 200, PAGE_ROWS)
        assert {row["topic"] for row in last["rows"]} == {"topic-099"}
        assert [row["partition"] for row in last["rows"]] == [*range(50, 100)]
        assert last["rows"][0]["cloud_log_size_bytes"] == 500
        # Nobody is there to tell its offsets: the row says so, and what the catalog has is shown all the same.
        assert "upstream" in last["rows"][0]["problem"]
        assert (await admin.get("/status.json?page=999")).json()["partitions"]["page"] == 200
        found = (await admin.get("/status.json?topic=c-042")).json()["partitions"]
        assert (found["total"], found["pages"]) == (100, 2)
        assert "topic-042-7<" in (await admin.get("/?topic=c-042")).text
