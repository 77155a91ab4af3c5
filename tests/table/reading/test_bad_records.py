"""BadRecords: a count, and one file that a repeat replaces."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from table.reading import left_out
from table.reading.left_out import BadBatch, BadRecords
from tests.support.segments import filled_segment, metadata_of, topic_partition
from tests.table.reading.test_segment_task import task_of

TASK = task_of(metadata_of(topic_partition(), filled_segment()), start_position=100, end_position=9000)


def test_a_task_with_bad_batches_writes_one_file_and_a_repeat_replaces_it(tmp_path: Path) -> None:
    with capture_logs() as lines:
        BadRecords(TASK).finish(str(tmp_path / "bad"))
    assert not (tmp_path / "bad").exists()
    assert not lines

    for reason in ("first", "second"):
        bad = BadRecords(TASK)
        bad.add(BadBatch(1231, 77, reason))
        bad.add(BadBatch(5000, 4000, "nothing left", is_rest=True))
        bad.finish(str(tmp_path / "bad"))

    (path,) = (tmp_path / "bad").iterdir()
    report = json.loads(path.read_text())

    assert (report["topic"], report["partition"], report["bad_batches"], report["bad_bytes"]) == ("orders", 0, 2, 4077)
    assert report["batches"][0] == {"position": 1231, "size_bytes": 77, "reason": "second", "is_rest": False}


def test_beyond_a_limit_bad_batches_are_only_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "ENTRIES_MAX", 3)
    bad = BadRecords(TASK)
    for position in range(5):
        bad.add(BadBatch(position, 1, "bad"))
    bad.finish(str(tmp_path))

    report = json.loads(next(tmp_path.iterdir()).read_text())

    assert (report["bad_batches"], len(report["batches"])) == (5, 3)
