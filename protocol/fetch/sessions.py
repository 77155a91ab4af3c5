"""Fetch sessions (KIP-227): what a client and a broker both remember, so that neither repeats it. Sans-IO.

A session is a list of partitions, each with what was last asked of it and what was last told. A request names what
is new or no longer wanted; the answer holds what has changed. Tidegate keeps this beside the broker
(docs/protocol.md#l4):

    relayed   upstream has the session, under an id and an epoch of its own (the client's, until the session was
              ours once). Requests pass, and are noted here with work per named partition only.
    unread    relayed for good: a request named more than PARTITIONS_MAX, or the session grew beyond. Only ids and
              epochs are kept.
    ours      upstream has none. Requests are made whole from here, and answers are cut to what has changed. One that
              grows beyond PARTITIONS_MAX ends: the client opens it again, and it is unread then.

Rule 1. The id is judged first (70), then the epoch (71), then whether topics are still named as at the start (106).
        None of these changes the session. Its topics have names, or ids from v13 on.
Rule 2. A request first names, then forgets: what it does both to is forgotten.
Rule 3. A session left empty is closed, and that request is answered as one without a session.
Rule 4. An answer holds a partition that has records, another high watermark or log start than it last had, a
        preferred replica, a diverging epoch, or an error; after an error the high watermark is sent again.
Rule 5. A partition that gave records goes to the end, so that each gets its turn at a limited answer.
Rule 6. Memory is limited (`SessionSlots`). Like the broker's cache, a full one takes the place of sessions that
        nobody has used for two minutes. Without any, a connection's share is what there is divided by the connections
        that have sessions: one that asks for more than its share gets no session, and a client goes on without. For
        one within its share the connection with the most partitions loses its sessions: its client gets the error that
        they are not found, and opens others.

Checked against Kafka 4.3 by tests/integration/test_fetch_sessions.py.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol.fetch.messages import (
    NO_SESSION_ID,
    PARTITIONS_MAX,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    PartitionAnswer,
    PartitionKey,
    key_of,
)
from protocol.wire.errors import ErrorCode

SESSIONS_MAX = 10_000
"""In one process. A broker's `max.incremental.fetch.session.cache.slots` is 1,000; before Tidegate stand the clients
of several brokers."""

PARTITION_BYTES = 600
"""What a partition takes in a session, at most, with topic names of up to 100 characters: measured, 400 to 530."""

SESSION_PARTITIONS_MAX = 100_000
"""In all sessions of one process, unless told otherwise."""

CONNECTION_SESSIONS_MAX = 32
"""Limit for one connection. Clients have one; some open another with each request."""

IDLE_S_MIN = 120.0
"""A session that was used since is not taken away (the broker's `min.incremental.fetch.session.eviction.ms`)."""

UNKNOWN_OFFSET = -1
"""Nothing was sent yet, or an error. No good answer has this offset, so the next answer is sent."""

FIRST_EPOCH = 1
_EPOCH_MAX = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """The epoch of the request after one with this epoch."""
    return FIRST_EPOCH if epoch == _EPOCH_MAX else epoch + 1


class _Remembered:
    """What a session knows of one partition."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET


class FetchSession:
    """One session. `epoch` is what the client's next request must have.

    `upstream_id` is upstream's name for it while it is relayed, 0 while it is ours; `upstream_epoch` is the epoch that
    upstream expects next. `is_doubted`: what is known of a partition turned out to be wrong, and the next request is to
    be judged by all of the session.
    """

    __slots__ = (
        "_partitions",
        "epoch",
        "is_doubted",
        "is_unread",
        "session_id",
        "upstream_epoch",
        "upstream_id",
        "used_at_s",
        "uses_topic_ids",
    )

    def __init__(self, request: FetchRequest) -> None:
        """Open what a full Fetch opens; the session has no id yet."""
        self.session_id = NO_SESSION_ID
        self.epoch = FIRST_EPOCH
        self.upstream_id = NO_SESSION_ID
        self.upstream_epoch = FIRST_EPOCH
        self.used_at_s = 0.0
        self.uses_topic_ids = request.api_version >= TOPIC_ID_VERSION_MIN
        self.is_unread = request.is_unread
        self.is_doubted = False
        self._partitions: dict[PartitionKey, _Remembered] = {}
        self.update(request.partitions, ())

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def is_relayed(self) -> bool:
        return self.upstream_id != NO_SESSION_ID

    def update(self, named: Sequence[FetchPartition], forgotten: Sequence[PartitionKey]) -> None:
        """Rule 2."""
        partitions = self._partitions
        for asked in named:
            key = key_of(asked)
            known = partitions.get(key)
            if known is None:
                partitions[key] = _Remembered(asked)
                continue
            if self.is_relayed and asked.fetch_offset > known.asked.fetch_offset:
                # Upstream's answers are not read, but it must have had records: rule 5.
                partitions[key] = partitions.pop(key)
            known.asked = asked
        for key in forgotten:
            partitions.pop(key, None)

    def still_named(self, request: FetchRequest) -> list[FetchPartition]:
        """Return what a request names and does not forget, once it was noted here."""
        if not request.forgotten:
            return request.partitions
        return [asked for asked in request.partitions if key_of(asked) in self._partitions]

    def asked_of(self, key: PartitionKey) -> FetchPartition | None:
        """Return what was last asked for; None for a partition that is not of the session."""
        known = self._partitions.get(key)
        return None if known is None else known.asked

    def doubt(self) -> None:
        """Something of what it was judged by is wrong."""
        self.is_doubted = True

    def asked(self) -> list[FetchPartition]:
        """Return what is asked of all partitions, in the session's order."""
        return [known.asked for known in self._partitions.values()]

    def become_ours(self) -> None:
        """Upstream has it no longer. What it told was not read."""
        self.upstream_id = NO_SESSION_ID
        for known in self._partitions.values():
            known.high_watermark = known.log_start_offset = UNKNOWN_OFFSET

    def become_relayed(self, upstream_id: int) -> None:
        """Upstream has it, and was asked for all of it just now."""
        self.upstream_id = upstream_id
        self.upstream_epoch = FIRST_EPOCH

    def become_unread(self) -> None:
        """It is upstream's for good."""
        self.is_unread = True
        self._partitions.clear()

    def told_all(self, answers: Sequence[PartitionAnswer]) -> None:
        """All answers to the full Fetch that opened the session go to the client."""
        for answer in answers:
            known = self._partitions.get(key_of(answer))
            if known is not None:
                known.high_watermark = answer.high_watermark
                known.log_start_offset = answer.log_start_offset

    def changed(self, answers: Sequence[PartitionAnswer]) -> list[PartitionAnswer]:
        """Return the answers that go to the client, in their order (rules 4 and 5)."""
        partitions = self._partitions
        told = []
        for answer in answers:
            key = key_of(answer)
            known = partitions.get(key)
            if known is None:
                continue  # a client throws an answer away that holds what it did not ask for
            has_records = any(map(len, answer.records))
            if (
                has_records
                or answer.error_code
                or known.high_watermark != answer.high_watermark
                or known.log_start_offset != answer.log_start_offset
                or answer.preferred_read_replica >= 0
                or answer.has_diverging_epoch
            ):
                told.append(answer)
            known.high_watermark = UNKNOWN_OFFSET if answer.error_code else answer.high_watermark
            known.log_start_offset = answer.log_start_offset
            if has_records:
                partitions[key] = partitions.pop(key)
        return told


@dataclass(slots=True)
class _Holding:
    """What one connection has."""

    sessions: int = 0
    partitions: int = 0


class SessionSlots:
    """What the sessions of all connections may take (rule 6).

    Args:
        on_changed: told how many sessions there are, whenever that changes.
    """

    def __init__(
        self,
        *,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = SESSION_PARTITIONS_MAX,
        on_changed: Callable[[int], None] = lambda _sessions: None,
    ) -> None:
        self.partitions = 0
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._on_changed = on_changed
        self._held: OrderedDict[FetchSession, tuple[SessionTable, int]] = OrderedDict()
        """Whose it is and how many partitions it counts for, the least recently used one first."""
        self._holdings: dict[SessionTable, _Holding] = {}
        """By connection that has a session."""

    @property
    def sessions(self) -> int:
        return len(self._held)

    @property
    def held(self) -> list[FetchSession]:
        """All of them, the least recently used one first."""
        return list(self._held)

    def admit(self, session: FetchSession, table: "SessionTable", now_s: float) -> bool:
        """A new session; False if there is no room for it."""
        self._held[session] = (table, 0)
        self._holdings.setdefault(table, _Holding()).sessions += 1
        if not self.used(session, now_s):
            self.release(session)
            return False
        self._on_changed(self.sessions)
        return True

    def used(self, session: FetchSession, now_s: float) -> bool:
        """It was used, and may have grown; False if there is no room for that, or it is no more."""
        if session not in self._held:
            return False
        table, partitions = self._held[session]
        self._held.move_to_end(session)
        if grown := len(session) - partitions:
            self._held[session] = (table, partitions + grown)
            self.partitions += grown
            self._holdings[table].partitions += grown
        session.used_at_s = now_s
        while len(self._held) > self._sessions_max or self.partitions > self._partitions_max:
            oldest, (owner, _) = next(iter(self._held.items()))
            if now_s - oldest.used_at_s >= IDLE_S_MIN:
                owner.drop(oldest)
            elif self.partitions <= self._partitions_max or self._is_beyond_share(table):
                return False
            else:
                max(self._holdings, key=lambda each: self._holdings[each].partitions).clear()
        return True

    def release(self, session: FetchSession) -> None:
        """It is no more; said twice, it is heard once."""
        held = self._held.pop(session, None)
        if held is None:
            return
        table, partitions = held
        self.partitions -= partitions
        holding = self._holdings[table]
        holding.partitions -= partitions
        holding.sessions -= 1
        if not holding.sessions:
            del self._holdings[table]
        self._on_changed(self.sessions)

    def _is_beyond_share(self, table: "SessionTable") -> bool:
        return self._holdings[table].partitions > self._partitions_max // len(self._holdings)


class SessionTable:
    """The sessions of one client connection; they end with it.

    Args:
        new_id: a positive int32.
    """

    def __init__(self, slots: SessionSlots, new_id: Callable[[], int] | None = None) -> None:
        self._slots = slots
        self._new_id = new_id or _random_id
        self._sessions: set[FetchSession] = set()
        self._by_id: dict[int, FetchSession] = {}

    def begin(self, session: FetchSession, now_s: float) -> bool:
        """Keep what a full Fetch opens, without an id until `give_id`; False if no session can be kept."""
        if len(self._sessions) >= CONNECTION_SESSIONS_MAX:
            oldest = min(self._sessions, key=lambda session: session.used_at_s)
            if now_s - oldest.used_at_s < IDLE_S_MIN:
                return False
            self.drop(oldest)
        if not self._slots.admit(session, self, now_s):
            return False
        self._sessions.add(session)
        return True

    def give_id(self, session: FetchSession, wanted_id: int = NO_SESSION_ID) -> None:
        """Name a session by which it is found: as wanted, if no other of this connection has the name."""
        if session in self._sessions:
            while wanted_id == NO_SESSION_ID or wanted_id in self._by_id:
                wanted_id = self._new_id()
            session.session_id = wanted_id
            self._by_id[wanted_id] = session

    def find(self, request: FetchRequest) -> FetchSession | ErrorCode:
        """The session that an incremental request goes on with, or what it is refused with (rule 1)."""
        session = self._by_id.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != (request.api_version >= TOPIC_ID_VERSION_MIN):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        return session

    def note(self, session: FetchSession, request: FetchRequest, now_s: float) -> bool:
        """Take in an incremental request. An empty session is closed by it (rule 3).

        False if the session cannot be kept with what it has grown to, and is no more.
        """
        if not session.is_unread:
            session.update(request.partitions, request.forgotten)
            if request.is_unread or len(session) > PARTITIONS_MAX:
                if not session.is_relayed:
                    self.drop(session)
                    return False
                session.become_unread()
            elif not len(session):
                self.drop(session)
                return True
        session.epoch = next_epoch(session.epoch)
        if not self._slots.used(session, now_s):
            self.drop(session)
            return False
        return True

    def close(self, session_id: int) -> FetchSession | None:
        """A full Fetch names the session that it replaces; None if there is no such."""
        session = self._by_id.get(session_id)
        if session is not None:
            self.drop(session)
        return session

    def drop(self, session: FetchSession) -> None:
        """It is no more, for whatever reason; said twice, it is heard once."""
        self._slots.release(session)
        self._sessions.discard(session)
        if self._by_id.get(session.session_id) is session:
            del self._by_id[session.session_id]

    def clear(self) -> None:
        """The connection has ended."""
        for session in list(self._sessions):
            self.drop(session)


def _random_id() -> int:
    # Not a secret: a broker lets anyone name any session. Only ids of one connection must differ.
    return random.randint(1, 2**31 - 1)
