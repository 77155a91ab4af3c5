"""Who reads what of the tier: reads added up by client, partition and minute (docs/operations.md#who-reads-what).

Rule 1. What is counted are record bytes of the tier that the client's connection has taken: the operating system's
        socket has them, or with TLS the whole piece that was encrypted. What is left of an answer when the connection
        ends is not counted.
Rule 2. A row is kept from its first read to the end of its minute, and no longer than there are ROWS_MAX of them: the
        next one has all of them written early, in as many lines more. So a flood of client ids costs lines, not memory.
Rule 3. Texts that a client chooses are left out if they are longer than TEXT_CHARS_MAX or not printable: no line is
        longer than LINE_BYTES_MAX.
Rule 4. A group is told on a connection with the group's coordinator, as a rule another one than that which reads. It is
        reported if connections of the same host, name and client id tell one, and no other.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from protocol.sign_in_name import SignInName
from protocol.wire.group_id import peek_group
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords

ROWS_MAX: Final = 5000
"""Of the minute that runs: about 2 MiB, 10 MiB if a client makes its names as long as it may."""

GROUPS_MAX: Final = 10_000
"""Connections whose group is remembered, closed ones among them until a minute has ended; further ones tell none."""

TEXT_CHARS_MAX: Final = 256

LINE_BYTES_MAX: Final = 4096
"""What a pipe takes from several writers without mixing it up (PIPE_BUF of Linux). Three texts have 3 KiB at most."""

MINUTE_S: Final = 60


class Signed(Protocol):
    """A connection's sign-in; see `protocol.sign_in.SignIn`."""

    @property
    def signed_in_as(self) -> SignInName | None: ...


class Reader(NamedTuple):
    """Whose reads one row adds up. `address`: host and port of the connection."""

    address: str
    signed_in_as: SignInName | None
    client_id: str | None
    partition: TopicIdPartition


@dataclass(slots=True)
class Row:
    """What one reader has taken in one minute; offsets from the lowest to one more than the highest."""

    first_offset: int
    end_offset: int
    size_bytes: int
    answers: int


Rows = Mapping[Reader, Row]

_Application = tuple[str, SignInName | None, str | None]
"""Host, name and client id."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """Records of an answer that is not sent yet."""

    client_id: str | None
    partition: TopicIdPartition
    records: TierRecords
    offsets: tuple[int, int]


class Audit:
    """All connections'. Owned by the trio thread, but for `group_of`.

    Args:
        write: is given the rows of a minute, counted from 1970; it must not wait, and the rows are its own.
        clock: seconds since 1970.
    """

    def __init__(self, write: Callable[[int, Rows], None], clock: Callable[[], float] = time.time) -> None:
        self._write = write
        self._clock = clock
        self._minute = 0
        self._rows: dict[Reader, Row] = {}
        self._groups: dict[_Application, dict[str, int]] = {}
        """Each application's groups, by how many connections tell them."""
        self._told = 0
        self._left: list[tuple[_Application, str]] = []
        self._left_before: list[tuple[_Application, str]] = []

    def client(self, address: str, sign_in: Signed) -> "ClientAudit":
        """For a new connection; `close` must follow."""
        return ClientAudit(self, address, sign_in)

    def count(self, reader: Reader, first_offset: int, end_offset: int, size_bytes: int) -> None:
        """A client has taken records of one answer."""
        if self._clock() // MINUTE_S != self._minute:
            self.flush()
        row = self._rows.get(reader)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self._hand_over()
            self._rows[reader] = Row(first_offset, end_offset, size_bytes, 1)
            return
        row.first_offset = min(row.first_offset, first_offset)
        row.end_offset = max(row.end_offset, end_offset)
        row.size_bytes += size_bytes
        row.answers += 1

    def flush(self) -> float:
        """Have written what there is. To be called as each minute ends; in how many seconds the next one does."""
        self._hand_over()
        now_s = self._clock()
        if now_s // MINUTE_S != self._minute:
            self._minute = int(now_s // MINUTE_S)
            for application, group in self._left_before:
                self._forget(application, group)
            self._left_before, self._left = self._left, []
        return MINUTE_S - now_s % MINUTE_S

    def group_of(self, reader: Reader) -> str | None:
        """The one group that the reader's connections tell. From any thread."""
        groups = self._groups.get((host_of(reader.address), reader.signed_in_as, reader.client_id))
        names = tuple(groups or ())  # in one step, as the dictionary may change meanwhile
        return names[0] if len(names) == 1 else None

    def tell_group(self, application: _Application, group: str) -> bool:
        """A connection belongs to this group; False if there are too many. `forget_group` must follow if not."""
        if self._told >= GROUPS_MAX:
            return False
        self._told += 1
        groups = self._groups.setdefault(application, {})
        groups[group] = groups.get(group, 0) + 1
        return True

    def forget_group(self, application: _Application, group: str) -> None:
        """It has ended. Its last reads may not be written yet."""
        self._left.append((application, group))

    def _forget(self, application: _Application, group: str) -> None:
        self._told -= 1
        groups = self._groups[application]
        groups[group] -= 1
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._groups[application]

    def _hand_over(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, {}
            self._write(self._minute, rows)


class ClientAudit:
    """One connection's. Every method returns at once, and raises for no byte of a peer's."""

    def __init__(self, audit: Audit, address: str, sign_in: Signed) -> None:
        self._audit = audit
        self._address = address
        self._sign_in = sign_in
        self._pending: list[_Pending] = []
        self._told: tuple[_Application, str] | None = None

    @property
    def wants_group(self) -> bool:
        """Whether the connection's group is not known yet."""
        return self._told is None

    def on_group_request(self, head: memoryview) -> None:
        """A client that has signed in sends this request, whose api is of `GROUP_APIS`; its first bytes."""
        named = peek_group(head)
        group = _shown(None if named is None else named.group)
        if named is None or group is None:
            return
        application = host_of(self._address), self._sign_in.signed_in_as, _shown(named.client_id)
        if self._audit.tell_group(application, group):
            self._told = application, group

    def serves(self, client_id: str | None, partition: TopicIdPartition, records: TierRecords) -> None:
        """These records, which are not empty, are in the answer that is sent next."""
        self._pending.append(_Pending(_shown(client_id), partition, records, records.offsets()))

    def sent(self, left_bytes: Mapping[int, int]) -> None:
        """The answer is sent, or no more of it will be.

        Args:
            left_bytes: what was not sent, by the identity of the records that it is of.
        """
        signed_in_as = self._sign_in.signed_in_as
        for pending in self._pending:
            size_bytes = pending.records.size_bytes - left_bytes.get(id(pending.records), 0)
            if size_bytes:
                reader = Reader(self._address, signed_in_as, pending.client_id, pending.partition)
                self._audit.count(reader, *pending.offsets, size_bytes)
        self._pending.clear()

    def forget(self) -> None:
        """No answer is under way: what was to be in one has not been sent."""
        self._pending.clear()

    def close(self) -> None:
        """The connection has ended."""
        self.forget()
        if self._told is not None:
            self._audit.forget_group(*self._told)
            self._told = None


def line_of(minute: int, reader: Reader, row: Row, group: str | None) -> bytes:
    """One line of JSON, its end included; what is not known is left out."""
    partition, (mechanism, name) = reader.partition, reader.signed_in_as or (None, None)
    fields = {
        "minute": time.strftime("%Y-%m-%dT%H:%M:00Z", time.gmtime(minute * MINUTE_S)),
        "sign_in_name": name,
        "mechanism": mechanism,
        "client_id": reader.client_id,
        "group": group,
        "address": reader.address,
        "topic": partition.topic,
        "partition": partition.partition,
        "first_offset": row.first_offset,
        "end_offset": row.end_offset,
        "bytes": row.size_bytes,
        "answers": row.answers,
    }
    known = {key: value for key, value in fields.items() if value is not None}
    return json.dumps(known, ensure_ascii=False).encode() + b"\n"


def host_of(address: str) -> str:
    """Of `host:port`."""
    return address.rpartition(":")[0] or address


def _shown(text: str | None) -> str | None:
    """Rule 3."""
    return text if text is not None and len(text) <= TEXT_CHARS_MAX and text.isprintable() else None
