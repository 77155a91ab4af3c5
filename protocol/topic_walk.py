"""Topics by name with their partitions, as many a request and response has them: walked in slices."""

from collections.abc import Callable

from protocol.fetch.messages import PARTITIONS_MAX, REQUEST_BYTES_MAX
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import SLICE_BYTES, Cursor, Slices


def read_topics_in_slices(
    cursor: Cursor, read: Callable[[str], None], *, flexible: bool, is_request: bool = False
) -> Slices[None]:
    """Walk an array of topics that stands at the cursor. Up to SLICE_BYTES are one slice.

    Args:
        read: takes the topic's name, and reads one partition's fields up to its tagged section.
        is_request: refuse what is larger than the requests that are read.

    Raises:
        PeerProtocolError: truncated, an impossible length or count, or a request that is too large.
    """
    room = PARTITIONS_MAX if is_request else cursor.end
    if is_request and cursor.end > REQUEST_BYTES_MAX:
        raise PeerProtocolError(f"a request of {cursor.end} bytes; {REQUEST_BYTES_MAX} are read: ask for less at once")
    slice_end = cursor.position + SLICE_BYTES
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic = cursor.string(flexible=flexible)
        if topic is None:
            raise PeerProtocolError(f"null topic name at {cursor.position}")
        count = cursor.present_array_length(flexible=flexible)
        room -= max(1, count)
        if room < 0:
            raise PeerProtocolError(f"more than {PARTITIONS_MAX} partitions in one request: ask for fewer at once")
        for _ in range(count):
            read(topic)
            if flexible:
                cursor.skip_tags()
            if cursor.position >= slice_end:
                yield
                slice_end = cursor.position + SLICE_BYTES
        if flexible:
            cursor.skip_tags()


def require_end(cursor: Cursor, what: str, *, flexible: bool) -> None:
    """The message ends here, its own tagged section aside."""
    if flexible:
        cursor.skip_tags()
    if cursor.position != cursor.end:
        raise PeerProtocolError(f"{cursor.end - cursor.position} bytes after the end of a {what}")
