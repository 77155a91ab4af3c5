"""Session conversations, played to a broker and to Tidegate at once; the answers must tell a client the same.

Both sides are sent the same steps, each under the session id that it gave itself. What must be equal: error codes,
whether there is a session, and of each partition in an answer its error, offsets and record bytes; of a session that
upstream never had, also their order. Kafka leaves it open how often a partition without news is sent, and Tidegate
sends each once when a session becomes its own (docs/protocol.md#l4): so much more may be in its answers, in just that
request, and without records.

A read from the tier that took longer than either side waits for is answered empty: then records may be missing, on
the side that took so long (`late` counts them).
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.wire.errors import ErrorCode
from tests.support.raw_client import FetchedPartition, FetchResult, FetchTarget, RawClient, fetch_request, fetch_result

LATE_S = 0.4
"""Below the 0.5 s after which a broker gives up a read from its tier."""

FETCH_WAIT_MS = 5000
"""Never waited for, as min_bytes is 0; Tidegate takes it as its own deadline."""

PARTITION_BYTES = 4000
"""More than any batch, and a little part of any segment."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PlayedPartition:
    """A partition that conversations are about; `tier_end` is where its local log begins, 0 without a tier."""

    topic: str
    topic_id: bytes
    partition: int
    tier_end: int
    end: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def target(self, offset: int) -> FetchTarget:
        return self.topic, self.topic_id, self.partition, offset, PARTITION_BYTES


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `session` says what of the session it names: open, go on, close, wrong id or wrong epoch."""

    session: str
    version: int
    named: tuple[tuple[PlayedPartition, int], ...] = ()
    forgotten: tuple[PlayedPartition, ...] = ()
    isolation: int = 0
    max_wait_ms: int = FETCH_WAIT_MS
    min_bytes: int = 0


@dataclass
class Played:
    """What came of conversations."""

    requests: int = 0
    partitions: int = 0
    with_records: int = 0
    became_ours: int = 0
    given_back: int = 0
    repeated: int = 0
    late: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


class SessionPlayer:
    """One conversation: a connection to each side, and what a client knows of its session there."""

    def __init__(self, broker: RawClient, tidegate: RawClient, known: Sequence[PlayedPartition], name: str) -> None:
        self._sides = (broker, tidegate)
        self._names = {each.topic_id: each.topic for each in known}
        self._name = name
        self._session: dict[Place, bool] = {}
        """Partitions of the session; whether the tier has what is wanted of each."""
        self._is_ours = False
        self._was_relayed = False
        self.sessions = [(0, 0), (0, 0)]

    def play(self, step: Step, played: Played) -> tuple[FetchResult, FetchResult]:
        """One request to each side; differences are noted."""
        self.send(step)
        return self.compare(step, played)

    def send(self, step: Step) -> None:
        for client, (session_id, epoch) in zip(self._sides, self.sessions, strict=True):
            client.send(
                fetch_request(
                    step.version,
                    [partition.target(offset) for partition, offset in step.named],
                    isolation=step.isolation,
                    max_wait_ms=step.max_wait_ms,
                    min_bytes=step.min_bytes,
                    session=_named_session(step.session, session_id, epoch),
                    forgotten=[(gone.topic, gone.topic_id, gone.partition) for gone in step.forgotten],
                )
            )

    def compare(self, step: Step, played: Played) -> tuple[FetchResult, FetchResult]:
        """Read the answers to what was sent."""
        results, took_s = [], []
        started_s = time.monotonic()  # both were asked before: what one takes while the other is read is its own time
        for client in self._sides:
            results.append(fetch_result(client.read_frame(), step.version, self._names))
            took_s.append(time.monotonic() - started_s)
        expected, found = results
        was_ours = self._is_ours
        self._follow(step, expected)
        became_ours = self._is_ours and (not was_ours or step.session == "open")
        complaints = self._complaints(expected, found, step, played, became_ours=became_ours, late=max(took_s) > LATE_S)
        played.differences += [f"{self._name}, request {played.requests}: {each}; {step}" for each in complaints]
        played.requests += 1
        played.partitions += len(expected.partitions)
        played.with_records += sum(bool(each.records) for each in expected.partitions)
        played.became_ours += became_ours and not was_ours and step.session == "go on"
        played.given_back += was_ours and not self._is_ours and step.session == "go on"
        for code in [expected.error_code, *(each.error_code for each in expected.partitions)]:
            played.errors[code] = played.errors.get(code, 0) + 1
        self.sessions = [
            _following(step.session, session, result) for session, result in zip(self.sessions, results, strict=True)
        ]
        return expected, found

    def _follow(self, step: Step, expected: FetchResult) -> None:
        """Follow what state Tidegate's session is in after the step."""
        if expected.error_code or step.session in ("wrong id", "wrong epoch"):
            return
        if step.session in ("open", "close"):
            self._session = {}
            self._is_ours = self._was_relayed = False
        named = {partition.place: 0 <= offset < partition.tier_end for partition, offset in step.named}
        gone = [partition.place for partition in step.forgotten] if step.session == "go on" else []
        self._session.update(named)
        for place in gone:
            self._session.pop(place, None)
            named.pop(place, None)
        self._is_ours = any(self._session.values() if self._is_ours else named.values())
        self._was_relayed |= not self._is_ours

    def _complaints(
        self, expected: FetchResult, found: FetchResult, step: Step, played: Played, *, became_ours: bool, late: bool
    ) -> list[str]:
        complaints = []
        theirs_by_place, ours_by_place = _by_place(expected), _by_place(found)
        has_order = (step.session == "open" or not self._was_relayed) and not late
        for what, theirs, ours in (
            ("order", [*theirs_by_place] if has_order else [], [*ours_by_place] if has_order else []),
            ("error", expected.error_code, found.error_code),
            ("session", expected.session_id > 0, found.session_id > 0),
            ("throttle", expected.throttle_time_ms, found.throttle_time_ms),
        ):
            if theirs != ours:
                complaints.append(f"{what} {theirs} and {ours}")
        if len(ours_by_place) != len(found.partitions):
            complaints.append("a partition twice")
        for place, theirs_told in theirs_by_place.items():
            ours_told = ours_by_place.pop(place, None)
            if ours_told is not None and _told(theirs_told) == _told(ours_told):
                continue
            if late and (ours_told is None or not theirs_told.records or not ours_told.records):
                played.late += 1
            else:
                complaints.append(f"{place}: {_shown(theirs_told)} and {_shown(ours_told)}")
        for place, ours_told in ours_by_place.items():
            if late and ours_told.records:
                played.late += 1
            elif became_ours and step.session == "go on" and not ours_told.records and not ours_told.error_code:
                played.repeated += 1
            else:
                complaints.append(f"{place}: nothing and {_shown(ours_told)}")
        return complaints


class Script:
    """The steps of one seed. `produces` are those before which a record is to be added to a partition."""

    def __init__(
        self, seed: int, number: int, partitions: Sequence[PlayedPartition], versions: tuple[int, int]
    ) -> None:
        self._chance = random.Random(f"{seed}:{number}")
        self._partitions = partitions
        self._versions = versions
        self._version = self._chance.randint(*versions)
        self._is_open = False

    def step(self) -> Step:
        """The next request."""
        chance = self._chance
        kind = chance.random()
        session = "go on"
        if not self._is_open or kind < 0.05:
            session = "open"
            self._is_open = True
        elif kind < 0.08:
            session = "close"
            self._is_open = False
        elif kind < 0.14:
            session = chance.choice(("wrong id", "wrong epoch"))
        version = self._version
        if kind > 0.85:
            # Now and then over the border between names and ids (v13), which the broker refuses.
            version = chance.randint(*self._versions)
        low, high = (2, 5) if session == "open" else (0, 2)
        named = tuple((each, self._offset(each)) for each in chance.sample(self._partitions, chance.randint(low, high)))
        if named and chance.random() < 0.1:
            named = (*named, (named[0][0], self._offset(named[0][0])))
        count = chance.choice((0, 0, 0, 1, 2)) if chance.random() < 0.95 else len(self._partitions)
        forgotten = tuple(chance.sample(self._partitions, count)) if session == "go on" else ()
        return Step(session, version, named, forgotten, isolation=int(chance.random() < 0.1))

    def wants_record(self) -> PlayedPartition | None:
        """Return whether a record is produced before the next request, and where."""
        still = [each for each in self._partitions if not each.tier_end and each.end >= 0]
        return self._chance.choice(still) if self._chance.random() < 0.2 else None

    def _offset(self, partition: PlayedPartition) -> int:
        chance = self._chance
        kind = chance.random()
        if partition.tier_end and kind < 0.35:
            return chance.randrange(partition.tier_end)
        if kind < 0.55:
            return chance.randrange(partition.tier_end, max(partition.end, partition.tier_end + 1))
        if kind < 0.95:
            return max(partition.end, 0)
        return chance.choice((-1, partition.tier_end - 1, partition.tier_end, partition.end + 1000))


def _named_session(what: str, session_id: int, epoch: int) -> tuple[int, int]:
    if what == "open":
        return session_id, 0
    if what == "close":
        return session_id, -1
    if what == "wrong id":
        return session_id ^ 0x15, max(epoch, 1)
    if what == "wrong epoch":
        return session_id, epoch + 3
    return session_id, max(epoch, 1)


def _following(what: str, session: tuple[int, int], result: FetchResult) -> tuple[int, int]:
    session_id, epoch = session
    if result.error_code:
        return session
    if what == "open" or not result.session_id:
        return result.session_id, 1
    return session_id, epoch + 1


def _by_place(result: FetchResult) -> dict[Place, FetchedPartition]:
    return {(each.topic, each.partition): each for each in result.partitions}


def _told(answer: FetchedPartition) -> tuple[object, ...]:
    offsets = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
    return answer.error_code, offsets, answer.preferred_read_replica, set(answer.aborted or ()), answer.records


def _shown(answer: FetchedPartition | None) -> str:
    if answer is None:
        return "nothing"
    code = ErrorCode(answer.error_code).name
    return f"{code} high watermark {answer.high_watermark} log start {answer.log_start_offset} {len(answer.records)} B"


def summary(played: Played) -> Mapping[str, object]:
    """For printing."""
    return {name: getattr(played, name) for name in Played.__dataclass_fields__ if name != "differences"}
