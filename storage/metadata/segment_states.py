"""The states of a remote log segment and the moves between them (docs/kafka-tier.md#states).

    (none) → COPY_SEGMENT_STARTED → COPY_SEGMENT_FINISHED
                     │                       │
                     └──────────┬────────────┘
                                ▼
                     DELETE_SEGMENT_STARTED → DELETE_SEGMENT_FINISHED (forgotten)

Staying in a state is legal: records may be repeated. Everything else is dropped with a log line, never raised.

Records with a key come from a log that may be compacted (KIP-1266): it keeps the last record of each key, so a reader
may miss what lay between. There every move forward is possible.
"""

from storage.model import RemoteLogSegmentState

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

LEGAL_TRANSITIONS: frozenset[tuple[RemoteLogSegmentState | None, RemoteLogSegmentState]] = frozenset(
    {
        (None, _STARTED),
        (_STARTED, _FINISHED),
        (_STARTED, _DELETE_STARTED),
        (_FINISHED, _DELETE_STARTED),
        (_DELETE_STARTED, _DELETE_FINISHED),
    }
    | {(state, state) for state in RemoteLogSegmentState}
)


def is_legal_transition(current: RemoteLogSegmentState | None, target: RemoteLogSegmentState) -> bool:
    """Return whether a segment in `current` (None: unknown) may go to `target`."""
    return (current, target) in LEGAL_TRANSITIONS


def is_possible_when_compacted(current: RemoteLogSegmentState, target: RemoteLogSegmentState) -> bool:
    """Return whether a reader that last saw `current` may see `target` next in a log that was compacted."""
    return target >= current
