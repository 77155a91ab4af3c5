"""Who reads what of the tier: reads added up by client, partition and minute (docs/operate/secure.md#who-reads-what).

Rule 1. What is counted are record bytes of the tier that the client's connection has taken: the operating system's
        socket has them, or with TLS the whole piece that was encrypted. What is left of an answer when the connection
        ends is not counted.
Rule 2. A row is kept from its first read to the end of its minute, and no longer than there are ROWS_MAX of them: the
        next one has all of them written early, in as many lines more. So a flood of client ids costs lines, not memory.
Rule 3. Names are bounded (proxy.connection.names), so no line is longer than LINE_BYTES_MAX.
Rule 4. A group is reported if connections of the same host, name and client id tell one, and no other.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.sign_in_name import SignInName
from proxy.connection.names import Application, ClientName, Groups, host_of, shown
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords

ROWS_MAX: Final = 5000
"""Rows of the minute that runs: about 2 MiB, 10 MiB if a client makes its names as long as it may."""

LINE_BYTES_MAX: Final = 4096
"""What a pipe takes from several writers without mixing it up (PIPE_BUF of Linux). Three texts have 3 KiB at most."""

MINUTE_S: Final = 60


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
        groups: what clients' connections tell.
        clock: seconds since 1970.
    """

    def __init__(
        self, write: Callable[[int, Rows], None], groups: Groups, clock: Callable[[], float] = time.time
    ) -> None:
        self._write = write
        self._groups = groups
        self._clock = clock
        self._minute = 0
        self._rows: dict[Reader, Row] = {}

    def client(self, name: ClientName) -> "ClientAudit":
        """For a new connection."""
        return ClientAudit(self, name)

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
        """Hand over what there is to be written. Call it as each minute ends; return in how many seconds the next one
        does."""
        self._hand_over()
        now_s = self._clock()
        if now_s // MINUTE_S != self._minute:
            self._minute = int(now_s // MINUTE_S)
        return MINUTE_S - now_s % MINUTE_S

    def group_of(self, reader: Reader) -> str | None:
        """The one group that the reader's connections tell. From any thread."""
        groups = self._groups.of(Application(host_of(reader.address), reader.signed_in_as, reader.client_id))
        return groups[0] if len(groups) == 1 else None

    def _hand_over(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, {}
            self._write(self._minute, rows)


class ClientAudit:
    """One connection's. Every method returns at once, and raises for no byte of a peer's."""

    def __init__(self, audit: Audit, name: ClientName) -> None:
        self._audit = audit
        self._name = name
        self._pending: list[_Pending] = []

    def serves(self, client_id: str | None, partition: TopicIdPartition, records: TierRecords) -> None:
        """These records, which are not empty, are in the answer that is sent next."""
        self._pending.append(_Pending(shown(client_id), partition, records, records.offsets()))

    def sent(self, left_bytes: Mapping[int, int]) -> None:
        """The answer is sent, or no more of it will be.

        Args:
            left_bytes: what was not sent, by the identity of the records that it is of.
        """
        signed_in_as = self._name.signed_in_as
        for pending in self._pending:
            size_bytes = pending.records.size_bytes - left_bytes.get(id(pending.records), 0)
            if size_bytes:
                reader = Reader(self._name.address, signed_in_as, pending.client_id, pending.partition)
                self._audit.count(reader, *pending.offsets, size_bytes)
        self._pending.clear()

    def forget(self) -> None:
        """No answer is under way: what was to be in one has not been sent."""
        self._pending.clear()


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
