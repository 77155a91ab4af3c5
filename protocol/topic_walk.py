"""Topics by name with their partitions, as many a request and response has them."""

from collections.abc import Callable

from protocol.fetch.messages import REQUEST_BYTES_MAX
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor


def read_topics(
    cursor: Cursor, read: Callable[[str], None], partitions_max: int | None, *, flexible: bool, is_request: bool = False
) -> None:
    """Walk an array of topics that stands at the cursor.

    Args:
        read: takes the topic's name, and reads one partition's fields up to its tagged section.
        partitions_max: more are refused; of a response, those that were asked for. None: any number.
        is_request: refuse what is larger than the requests that are read.

    Raises:
        PeerProtocolError: truncated, an impossible length or count, or a request that is too large.
    """
    room = partitions_max
    if is_request and cursor.end > REQUEST_BYTES_MAX:
        raise PeerProtocolError(f"a request of {cursor.end} bytes; {REQUEST_BYTES_MAX} are read: ask for less at once")
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic = cursor.string(flexible=flexible)
        if topic is None:
            raise PeerProtocolError(f"null topic name at {cursor.position}")
        count = cursor.present_array_length(flexible=flexible)
        if room is not None and (room := room - max(1, count)) < 0:
            raise PeerProtocolError(f"more than {partitions_max} partitions in one message: ask for fewer at once")
        for _ in range(count):
            read(topic)
            if flexible:
                cursor.skip_tags()
        if flexible:
            cursor.skip_tags()


def require_end(cursor: Cursor, what: str, *, flexible: bool) -> None:
    """The message ends here, its own tagged section aside."""
    if flexible:
        cursor.skip_tags()
    if cursor.position != cursor.end:
        raise PeerProtocolError(f"{cursor.end - cursor.position} bytes after the end of a {what}")
