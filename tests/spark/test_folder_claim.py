"""A folder that a job has claimed: refused while that job lives, taken over when it was killed."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.folder_claim import CLAIM, FolderClaim, FolderClaimError
from pipeline.jobs.job_folder import JobFolder
from tests.support.waiting import wait_until


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> JobFolder:
    return JobFolder(spark, str(tmp_path))


def leave(folder: JobFolder, **claim: object) -> None:
    """Another job's claim, but for what is given."""
    folder.write_json(CLAIM, {"id": "other", "host": "elsewhere", "process": 1, "beat": 0, **claim})


def test_a_claim_is_there_while_it_is_held(folder: JobFolder) -> None:
    """Given a job of a process that lives, when a second one comes, then it sees the first one's next beat."""
    with FolderClaim(folder, print).held():
        held = folder.read_json(CLAIM)
        assert held["process"] == os.getpid()
        second = FolderClaim(folder, print, wait=lambda _: leave(folder, **{**held, "beat": 1}))
        with pytest.raises(FolderClaimError, match="another job writes into"), second.held():
            pytest.fail("it was held twice")
    assert not folder.exists(CLAIM)


def test_a_killed_jobs_claim_is_taken_over_when_it_has_not_changed(folder: JobFolder) -> None:
    leave(folder)
    waits: list[float] = []
    said: list[str] = []
    with FolderClaim(folder, said.append, wait=waits.append).held():
        assert folder.read_json(CLAIM)["id"] != "other"
    assert sum(waits) == pytest.approx(45)
    assert said == [f"process 1 of elsewhere has claimed {folder.root}: waiting for 45 s to see whether it lives"]


def test_a_claim_of_a_process_of_this_machine_that_has_ended_is_taken_over_at_once(folder: JobFolder) -> None:
    ended = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(ended, 0)
    leave(folder, host=os.uname().nodename, process=ended)
    with FolderClaim(folder, pytest.fail, wait=lambda _: pytest.fail("it waited")).held():
        assert folder.read_json(CLAIM)["process"] == os.getpid()


def test_a_claim_that_goes_away_is_waited_for_no_longer(folder: JobFolder) -> None:
    """Given a claim that is absent for a moment while it is written, and then for good, then the job sees which."""
    leave(folder)
    looks = iter([False, True, False, False])

    def wait(_: float) -> None:
        if next(looks):
            leave(folder)
        else:
            folder.delete(CLAIM)

    with FolderClaim(folder, print, wait=wait).held():
        assert folder.read_json(CLAIM)["id"] != "other"
    assert next(looks, None) is None


def test_a_job_whose_claim_was_taken_ends(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given another job that writes its claim just after our first beat, when the next beat looks, then ours ends."""
    monkeypatch.setattr("pipeline.jobs.folder_claim.BEAT_S", 0.01)
    claim = FolderClaim(folder, print)
    write = folder.write_json

    def write_and_be_written_over(name: str, value: dict[str, object], *, writer: str) -> None:
        write(name, value, writer=writer)
        if value["beat"]:
            write(name, {**value, "id": "other"})

    monkeypatch.setattr(folder, "write_json", write_and_be_written_over)
    with claim.held():
        wait_until(lambda: refuses(claim), "it has seen the other claim")
    assert folder.read_json(CLAIM)["id"] == "other"
    assert not list(folder.names("_made*"))


def refuses(claim: FolderClaim) -> bool:
    try:
        claim.check()
    except FolderClaimError:
        return True
    return False
