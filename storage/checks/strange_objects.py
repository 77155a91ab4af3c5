"""The store against the metadata: objects that belong to no segment.

A segment keeps its objects in every state but DELETE_SEGMENT_FINISHED. An object that was written less than the grace
period before the metadata were read may be that of a copy under way, whose first record had not been read.
"""

from collections.abc import Callable

from storage.checks.finding import Finding, FindingKind, segment_finding
from storage.model import RemoteLogSegmentId, RemoteLogSegmentState
from storage.object_store.retries import PATIENT_ATTEMPTS_MAX, Wait, call_with_retries, wait_in_thread
from storage.remote_storage_manager import RemoteStorageManager, StoredObject

GRACE_MS = 60 * 60 * 1000

StateOf = Callable[[RemoteLogSegmentId], RemoteLogSegmentState | None]
"""A segment's state; None: the metadata know no such segment (any longer)."""


def check_store(
    manager: RemoteStorageManager,
    state_of: StateOf,
    *,
    metadata_read_ms: int,
    grace_ms: int = GRACE_MS,
    topic: str | None = None,
    wait: Wait = wait_in_thread,
) -> list[Finding]:
    """Every orphan; a listing that breaks off is begun again.

    Args:
        metadata_read_ms: when reading the metadata began.
        topic: only the objects of topics of that name.

    Raises:
        RemoteStorageError: the store cannot be listed.
    """
    written_before_ms = metadata_read_ms - grace_ms

    def orphans() -> list[Finding]:
        old = (each for each in manager.list_objects(topic) if each.modified_ms < written_before_ms)
        found = (_orphan(stored, state_of) for stored in old)
        return [finding for finding in found if finding is not None]

    return call_with_retries(orphans, None, wait, attempts_max=PATIENT_ATTEMPTS_MAX)


def _orphan(stored: StoredObject, state_of: StateOf) -> Finding | None:
    """Return what is wrong with an object that is old enough; None: nothing."""
    if stored.segment_id is None:
        detail = f"its name is none that this format gives ({stored.size_bytes} bytes)"
        return Finding(kind=FindingKind.ORPHAN, object_name=stored.name, detail=detail)
    state = state_of(stored.segment_id)
    if state not in (None, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
        return None
    why = "the metadata know no such segment" if state is None else "its segment was deleted"
    detail = f"{why} ({stored.size_bytes} bytes)"
    return segment_finding(FindingKind.ORPHAN, stored.segment_id, detail, object_name=stored.name)
