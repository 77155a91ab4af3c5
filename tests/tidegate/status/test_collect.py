"""The document of a whole application before an upstream that is not there: what it asks, and what fails in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from proxy.fetch.frontiers import Frontier
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.encoding import encode_custom_metadata
from storage.metadata.catalog import PartitionSummary
from storage.model import TopicIdPartition
from tests.support.config_files import load_lines
from tests.support.metadata_records import COPY_FINISHED, apply_all, finish, moved, named_partition, started
from tests.support.serving import without_kafka
from tidegate.application import Application
from tidegate.serve import run
from tidegate.status.collect import hole_of

pytestmark = pytest.mark.usefixtures("restored_logging")


@asynccontextmanager
async def running(folder: Path, **more: str) -> AsyncIterator[tuple[Application, httpx.AsyncClient]]:
    """`more`: keys with _ for a dot."""
    (folder / "tier").mkdir()
    keys = without_kafka(folder) | {name.replace("_", "."): value for name, value in more.items()}
    lines = [f"{key}={value}\n" for key, value in keys.items()]
    config = load_lines(folder, "".join(lines), minimal=False)
    async with run(config) as application:
        host, port = application.admin
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as admin:
            yield application, admin


async def test_a_part_that_fails_is_named_and_others_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as (application, admin):
        first, second = named_partition("first"), named_partition("second")
        finish(application.catalog, *(started(each.topic, 0, 9, partition=each) for each in (first, second)))
        summary = application.catalog.summary

        def broken(partition: TopicIdPartition) -> PartitionSummary | None:
            if partition == first:
                raise ValueError("a bad row")
            return summary(partition)

        monkeypatch.setattr(application.catalog, "summary", broken)
        rows = (await admin.get("/status.json")).json()["partitions"]["rows"]
        assert rows[0]["problem"] == "ValueError: a bad row"
        assert rows[1]["cloud_log_last_offset"] == 9
        monkeypatch.setattr(application.catalog, "partitions", lambda: 1 / 0)
        answer = await admin.get("/status.json")
        document = answer.json()
        assert answer.status_code == 200
        assert {each["section"] for each in document["failed_sections"]} == {"catalog", "partitions"}
        assert document["cache"][0]["level"] == "memory"
        page = (await admin.get("/")).text
        assert "ZeroDivisionError" in page
        assert "proxy.connections.max" in page


async def test_sizes_are_told_as_stored_where_every_segment_says_so(tmp_path: Path) -> None:
    """Failed before: what is billed was in no place but `verify`."""
    async with running(
        tmp_path,
        remote_log_storage_manager_class_name="io.aiven.kafka.tieredstorage.RemoteStorageManager",
        rsm_config_storage_backend_class="io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
        rsm_config_storage_root=str(tmp_path / "tier"),
    ) as (application, admin):
        whole, part = named_partition("all-say-so"), named_partition("one-does-not")
        for partition, sizes in ((whole, (300, 400)), (part, (300, None))):
            for number, size_bytes in enumerate(sizes):
                segment = started(f"{partition.topic}{number}", 10 * number, 10 * number + 9, partition=partition)
                custom = encode_custom_metadata(CustomMetadataFields(remote_size_bytes=size_bytes))
                apply_all(application.catalog, segment, moved(segment, COPY_FINISHED, custom))
        rows = (await admin.get("/status.json")).json()["partitions"]["rows"]
        told = {row["topic"]: (row["cloud_log_size_bytes"], row["cloud_stored_size_bytes"]) for row in rows}
        assert told == {"all-say-so": (2000, 700), "one-does-not": (2000, None)}


def test_offsets_that_nobody_has_are_a_hole() -> None:
    for log_start, tier, local_start, hole in (
        (0, (0, 99), 100, None),
        (0, (0, 149), 100, None),
        (50, (0, 99), 100, None),
        (0, (10, 99), 100, "0 to 9"),
        (0, (0, 89), 100, "90 to 99"),
        (0, (60, 99), 40, "0 to 39"),
        (-1, (10, 99), 100, None),
        (100, (0, 50), 100, None),
        (60, (0, 50), 100, "60 to 99"),
    ):
        found = hole_of(PartitionSummary(1, 1, *tier), Frontier(local_start, 200, 0, 0.0, log_start))
        case = (log_start, tier, local_start, found)
        assert (found is None) if hole is None else (found is not None and f"offsets {hole} are" in found), case
