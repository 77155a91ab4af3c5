"""Segments into a real S3 server that deletes nothing, or one object at a time: a front refuses what such stores do."""

from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import DeletionRefusedError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.plain_objects import PlainObjects
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import S3Server
from tests.support.scripted_http import s3_error
from tests.support.segments import filled_segment
from tests.support.writing_tiers import aiven_config, copied

SEGMENT = filled_segment(100, batch_count=4)

pytestmark = pytest.mark.needs("versitygw")


@pytest.fixture(params=["aiven", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(kind: str, server: S3Server, front: S3Front, folder: Path) -> RemoteStorageManager:
    config = server.at(front.endpoint_url).config(server.make_bucket())
    return PlainObjects(config) if kind == "plain" else AivenRemoteStorageManager({**config, **aiven_config(folder)})


def test_without_the_right_to_delete_segments_are_copied_and_stay(gateway: S3Server, kind: str, tmp_path: Path) -> None:
    with s3_front(gateway.endpoint_url) as front, closing(opened(kind, gateway, front, tmp_path)) as manager:
        for request in ("DELETE *", "POST delete*"):
            front.refuse(s3_error(403, "AccessDenied"), request=request)
        metadata = copied(manager, tmp_path / "local", SEGMENT)
        assert front.refused == 0, "no delete was asked for"
        with pytest.raises(DeletionRefusedError, match="s3:DeleteObject"):
            manager.delete_log_segment_data(metadata)
        assert manager.fetch_log_segment(metadata, 0) == SEGMENT.log
        front.heal()
        manager.delete_log_segment_data(metadata)
        assert list(manager.list_objects()) == []


def test_without_deletes_of_several_objects_each_is_deleted(gateway: S3Server, kind: str, tmp_path: Path) -> None:
    with s3_front(gateway.endpoint_url) as front, closing(opened(kind, gateway, front, tmp_path)) as manager:
        front.refuse(s3_error(501, "NotImplemented"), request="POST delete*")
        for attempt in range(2):
            metadata = copied(manager, tmp_path / "local", SEGMENT, copy_attempt=attempt)
            manager.delete_log_segment_data(metadata)
            assert list(manager.list_objects()) == []
        assert front.refused == 1, "found out once"
