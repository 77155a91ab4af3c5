"""The store against the metadata: objects that belong to no segment.

A segment keeps its objects in every state but DELETE_SEGMENT_FINISHED. An object that was written less than the grace
period before the metadata were read may be that of a copy under way, whose first record had not been read.
"""

from collections.abc import Callable, Iterator

from storage.checks.finding import Finding, FindingKind, segment_finding
from storage.model import RemoteLogSegmentId, RemoteLogSegmentState
from storage.object_store.retries import PATIENT_ATTEMPTS_MAX, Wait, call_with_retries, wait_in_thread
from storage.remote_storage_manager import RemoteStorageManager

GRACE_MS = 60 * 60 * 1000

StateOf = Callable[[RemoteLogSegmentId], RemoteLogSegmentState | None]
"""A segment's state; None: the metadata know no such segment (any longer)."""


class StoreCheck:
    """One listing of the store. `objects` and `stored_bytes` count what was listed so far.

    Args:
        metadata_read_ms: when reading the metadata began.
        topic: only the objects of topics of that name.
    """

    def __init__(
        self,
        manager: RemoteStorageManager,
        state_of: StateOf,
        *,
        metadata_read_ms: int,
        grace_ms: int = GRACE_MS,
        topic: str | None = None,
    ) -> None:
        self.objects = 0
        self.stored_bytes = 0
        self._manager = manager
        self._state_of = state_of
        self._written_before_ms = metadata_read_ms - grace_ms
        self._topic = topic

    def findings(self) -> Iterator[Finding]:
        """Every orphan, as the listing comes to it.

        Raises:
            RemoteStorageError: the store cannot be listed.
        """
        for stored in self._manager.list_objects(self._topic):
            self.objects += 1
            self.stored_bytes += stored.size_bytes
            if stored.modified_ms >= self._written_before_ms:
                continue
            if stored.segment_id is None:
                yield Finding(
                    kind=FindingKind.ORPHAN,
                    object_name=stored.name,
                    detail=f"its name is none that this format gives ({stored.size_bytes} bytes)",
                )
                continue
            state = self._state_of(stored.segment_id)
            if state in (None, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
                why = "the metadata know no such segment" if state is None else "its segment was deleted"
                yield segment_finding(
                    FindingKind.ORPHAN,
                    stored.segment_id,
                    f"{why} ({stored.size_bytes} bytes)",
                    object_name=stored.name,
                )


def check_store(
    manager: RemoteStorageManager,
    state_of: StateOf,
    *,
    metadata_read_ms: int,
    grace_ms: int = GRACE_MS,
    topic: str | None = None,
    wait: Wait = wait_in_thread,
) -> list[Finding]:
    """All orphans; a listing that breaks off is begun again.

    Raises:
        RemoteStorageError: the store cannot be listed.
    """
    return call_with_retries(
        lambda: list(
            StoreCheck(manager, state_of, metadata_read_ms=metadata_read_ms, grace_ms=grace_ms, topic=topic).findings()
        ),
        None,
        wait,
        attempts_max=PATIENT_ATTEMPTS_MAX,
    )
