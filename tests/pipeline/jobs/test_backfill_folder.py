"""A folder's sink without Spark: who lost the claim to the folder reports no step."""

from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from pipeline.jobs import backfill_folder
from pipeline.jobs.backfill_folder import FolderSink
from pipeline.jobs.folder_claim import FolderClaimError


class Folder:
    """What was written into it, by name."""

    root = "out"

    def __init__(self) -> None:
        self.written: dict[str, object] = {}

    def write_json(self, name: str, content: object) -> None:
        self.written[name] = content


class Claim:
    """Somebody takes it over while the step's rows are counted."""

    def __init__(self) -> None:
        self.is_lost = False

    def count(self) -> dict[str, int]:
        self.is_lost = True
        return {"rows": 1}

    def check(self) -> None:
        if self.is_lost:
            raise FolderClaimError("another job writes into out")


def test_a_step_whose_folder_is_anothers_by_now_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # The other job repeats the step: reported as well, its rows would be there twice.
    folder, claim = Folder(), Claim()
    rows = MagicMock()
    monkeypatch.setattr(backfill_folder, "JobFolder", lambda *_: folder)
    monkeypatch.setattr(backfill_folder, "FolderClaim", lambda *_: claim)
    monkeypatch.setattr(backfill_folder, "with_folders", lambda *_: (rows, []))
    sink = FolderSink(cast(Any, object()), "out")
    with pytest.raises(FolderClaimError):
        sink.append(rows, MagicMock(), MagicMock(), claim.count)
    assert folder.written == {}
