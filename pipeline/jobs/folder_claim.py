"""One job at a time in a folder: `_tidegate/driver.json` says which one, and changes for as long as that one lives.

A job that starts while yesterday's still runs would otherwise take it for killed, and delete what it is writing.

Rules:
1. A claim is rewritten every BEAT_S. A job that finds one looks whether it changes: if so, another job lives, and ours
   is refused; if it stays as it is for STALE_S, its job was killed. No clocks of two machines are compared.
2. A claim of a process of this machine that has ended is nobody's, and nothing is waited for.
3. File systems differ in what they promise two writers at once. So a job that finds another's claim in place of its own
   says so, and its steps are not done (rule 2 of pipeline.jobs.backfill_folder).
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark import InheritableThread

from pipeline.jobs.job_context import JobError
from pipeline.jobs.job_folder import JobFolder

CLAIM: Final = "_tidegate/driver.json"
BEAT_S: Final = 10.0
STALE_S: Final = 45.0
"""Four beats and a bit: a store may be slow for a while."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class FolderClaimError(JobError):
    """Another job writes into the folder."""


class FolderClaim:
    """The claim of one job. `wait`: returns after so many seconds."""

    def __init__(
        self, folder: JobFolder, say: Callable[[str], None], *, wait: Callable[[float], object] | None = None
    ) -> None:
        self._folder = folder
        self._say = say
        self._ended = threading.Event()
        self._wait = wait or threading.Event().wait
        self._claim = {"id": str(uuid.uuid4()), "host": socket.gethostname(), "process": os.getpid()}
        self._is_lost = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder until the block ends.

        Raises:
            FolderClaimError: another job lives.
        """
        self._wait_for_others()
        self._write(beat=0)
        thread = InheritableThread(target=self._beat, name="folder-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._release()

    def check(self) -> None:
        """Check that the folder is still ours.

        Raises:
            FolderClaimError: it is not.
        """
        if self._is_lost:
            raise FolderClaimError(f"another job has begun to write into {self._folder.root}: this one ends")

    def _wait_for_others(self) -> None:
        found = self._look()
        if found is None or _has_ended(found, self._claim["host"]):
            return
        who = f"process {found.get('process')} of {found.get('host')}"
        self._say(f"{who} has claimed {self._folder.root}: waiting for {STALE_S:.0f} s to see whether it lives")
        absent = 0
        for _ in range(round(STALE_S / BEAT_S * 2)):
            self._wait(BEAT_S / 2)
            seen = self._look()
            # It may be absent for a moment while it is rewritten.
            absent = absent + 1 if seen is None else 0
            if absent > 1:
                return
            if seen is not None and seen != found:
                raise FolderClaimError(
                    f"another job writes into {self._folder.root} ({who}): run this one again when that has ended"
                )

    def _look(self) -> dict[str, Any] | None:
        try:
            found = self._folder.read_json(CLAIM)
        except (ValueError, Py4JError):
            return {"unreadable": True}  # just now it is written; or its job was killed then
        return found if found is None or isinstance(found, dict) else {"unreadable": True}

    def _beat(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT_S):
            beat += 1
            try:
                if self._is_anothers():
                    self._is_lost = True
                    return
                self._write(beat)
            except (OSError, ValueError, Py4JError) as error:
                # The next beat may do better; should it be too late, another job's claim is found then.
                _log.warning("claim_not_renewed", folder=self._folder.root, error=str(error).partition("\n")[0])

    def _release(self) -> None:
        try:
            if not self._is_anothers():
                self._folder.delete(CLAIM)
        except (OSError, ValueError, Py4JError) as error:
            # The next job waits for STALE_S, and takes it over.
            _log.warning("claim_not_released", folder=self._folder.root, error=str(error).partition("\n")[0])

    def _write(self, beat: int) -> None:
        self._folder.write_json(CLAIM, {**self._claim, "beat": beat}, writer=f"-{self._claim['id']}")

    def _is_anothers(self) -> bool:
        found = self._folder.read_json(CLAIM)
        return found is not None and found["id"] != self._claim["id"]


def _has_ended(claim: Any, host: Any) -> bool:
    """Return whether it is of a process of this machine that is no more."""
    if claim.get("host") != host:
        return False
    try:
        os.kill(int(claim["process"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
