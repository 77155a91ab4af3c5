"""The group that a request names, of requests that consumers of a group send to its coordinator.

| api | flexible from | where the group id is |
|---|---|---|
| OffsetCommit (8) | 8 | first in the body |
| OffsetFetch (9) | 6 | first in the body; from version 8 on first in each of its groups, of which consumers name one |
| JoinGroup (11) | 6 | first in the body |
| Heartbeat (12) | 4 | first in the body |
| ConsumerGroupHeartbeat (68, KIP-848) | 0 | first in the body |

(Kafka's message definitions, clients/src/main/resources/common/message.)
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor

GROUP_APIS: Final[Mapping[int, int]] = {8: 8, 9: 6, 11: 6, 12: 4, 68: 0}
"""Api keys, with their first flexible versions."""

HEAD_BYTES: Final = 1024
"""The part of a frame that is looked at: room for a client id and a group id of some hundred bytes each."""

_OFFSET_FETCH = 9
_MANY_GROUPS_VERSION_MIN = 8


class NamedGroup(NamedTuple):
    """A client's own word, which nobody has checked."""

    client_id: str | None
    group: str


def peek_group(head: memoryview) -> NamedGroup | None:
    """The group that a request names, from its first HEAD_BYTES or all of it, length field included.

    None: it names none or more than one, is malformed, or its names are longer than what is here.
    """
    try:
        cursor = Cursor(head, 4)
        api_key, api_version = cursor.int16(), cursor.int16()
        cursor.skip(4)
        client_id = cursor.string(flexible=False)
        flexible = api_version >= GROUP_APIS[api_key]
        if flexible:
            cursor.skip_tags()
        if api_key == _OFFSET_FETCH and api_version >= _MANY_GROUPS_VERSION_MIN and cursor.compact_length() != 1:
            return None
        group = cursor.string(flexible=flexible)
    except PeerProtocolError:
        return None
    return NamedGroup(client_id, group) if group else None
