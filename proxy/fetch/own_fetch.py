"""The client's own Fetch for what is left to the broker: partitions above the frontier, and those given back; or the
whole of a session that has nothing in the tier at the moment (`fetch_whole`).

It is asked without waiting first, so that a hot partition is answered at once (the broker too ignores min_bytes
once a partition of the request is remote). While the tier is not ready and the broker has nothing, it is asked again:

- at intervals that double from INTERVAL_S_MIN on, at most half of what is left of the exchange's time, and ASKS_MAX
  times in all; then only the tier is waited for;
- the broker waits for records in each, at most POLL_S_MAX and a quarter of what is left: a long poll cannot be taken
  back, and a tier read that ends meanwhile is held up until it ends. The rest of an interval ends with a tier read.

An error, a diverging epoch or a preferred replica would come back as it is, at once: then only the tier is waited for.
"""

from collections.abc import Callable, Mapping, Sequence

import trio

from protocol.fetch.messages import (
    NO_SESSION_ID,
    NO_TAGS,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionAnswer,
)
from protocol.fetch.request import encode_request_in_slices
from protocol.fetch.response import decode_response_in_slices
from protocol.wire.identifiers import ApiKey, IsolationLevel
from protocol.wire.slices import Slices
from proxy.connection.slices import each_slice, in_slices
from proxy.connection.upstream_wire import PendingAnswer, UpstreamWire
from proxy.fetch.assembly import is_whole
from proxy.fetch.frontier import Frontier
from proxy.fetch.plan import FETCH_BYTES_MAX, FetchPlan, PartitionKey, key_of
from proxy.fetch.tier_reads import TierReads

ASKS_MAX = 8
"""Questions for the local partitions of one exchange: with the probe, and the one for what the tier fails to read, a
client's Fetch costs 10 at most."""

INTERVAL_S_MIN = 0.02
POLL_S_MAX = 0.25

LOCAL_ENDS_MAX = 4096
"""Partitions remembered per connection; a full table is dropped whole, as the next answers fill it again."""


_Wish = tuple[int, int, int]
"""Of one partition: fetch offset, current leader epoch, last fetched epoch."""

_NEVER_ANSWERED = (-1, -1, -1, None)


class LocalEnds:
    """Where the records of local partitions end, by the broker's last answers on one connection.

    A client that has taken all that an answer had stands at the end, whatever has come since: a partition is believed
    to have records if the broker's last answer left some behind.
    """

    def __init__(self) -> None:
        self._ends: dict[PartitionKey, tuple[int, int, int, _Wish | None]] = {}
        """Log start, high watermark, last stable offset, and a wish that brought no records."""

    def has_records(self, asked: FetchPartition, frontier: Frontier | None, isolation_level: int) -> bool:
        """Whether the broker is believed to have records of a partition at the offset that is asked for.

        Args:
            frontier: tells where the broker has never answered; without one there is nothing believed.
        """
        start, high_watermark, last_stable_offset, barren = self._ends.get(key_of(asked), _NEVER_ANSWERED)
        if asked.fetch_offset < 0 or asked.partition_max_bytes < 0 or barren == _wish_of(asked):
            return False  # to a limit below 0 the broker answers with an error where it has records
        if high_watermark < 0:
            return frontier is not None and frontier.log_start_offset <= asked.fetch_offset < frontier.log_end_offset
        committed = isolation_level == IsolationLevel.READ_COMMITTED
        return start <= asked.fetch_offset < (last_stable_offset if committed else high_watermark)

    def learn(self, key: PartitionKey, asked: FetchPartition, answer: PartitionAnswer, *, is_barren: bool) -> None:
        """Take in an answer.

        Args:
            key: of what was asked.
            is_barren: the Fetch brought no record of any partition: whatever is said to be there, it does not come, and
                must take nothing from those behind it until something else is asked for.
        """
        if len(self._ends) >= LOCAL_ENDS_MAX:
            self._ends.clear()
        barren = _wish_of(asked) if is_barren or _comes_back(answer) else None
        # Errors tell no offsets: then the frontier counts again.
        ends = (answer.log_start_offset, answer.high_watermark, answer.last_stable_offset, barren)
        self._ends[key] = ends


class OwnFetch:
    """The broker's side of one exchange. `whole` is set when the broker answered the request as a whole; `sections` are
    the tagged sections of its responses.

    Args:
        granted: how much of what is wanted may be asked for, in bytes.
    """

    def __init__(
        self, wire: UpstreamWire, ends: LocalEnds, granted: Callable[[int], int] = lambda wanted_bytes: wanted_bytes
    ) -> None:
        self.whole: FetchResponse | None = None
        self.throttle_time_ms = 0
        self.bytes_got = 0
        self.sections: list[bytes] = []
        self.exceeding: set[PartitionKey] = set()
        """Partitions whose answer is larger than was asked for: the broker granted a batch beyond the limit."""
        self._wire = wire
        self._granted = granted
        self._ends = ends
        self._answers: dict[PartitionKey, PartitionAnswer] = {}

    @property
    def answers(self) -> Sequence[PartitionAnswer]:
        """The last answer of every partition that was asked for."""
        return tuple(self._answers.values())

    @property
    def by_key(self) -> Mapping[PartitionKey, PartitionAnswer]:
        """The same, by what the client asked for."""
        return self._answers

    def bytes_of(self, asked: FetchPartition) -> int:
        """Record bytes that the broker gave for a partition."""
        answer = self._answers.get(key_of(asked))
        return 0 if answer is None else answer.records_bytes

    @property
    def has_news(self) -> bool:
        """Whether the broker gave something that the client is not to wait longer for."""
        return any(answer.records or _comes_back(answer) for answer in self._answers.values())

    async def until_ready(self, request: FetchRequest, plan: FetchPlan, reads: TierReads, linger_s: float) -> None:
        """Ask for the plan's local partitions until there is something to answer with: records, all tier reads,
        or the deadline."""
        doubled_s = 0.0
        for _ in range(ASKS_MAX if plan.local else 0):
            asked_at_s = trio.current_time()
            left_s = max(0.0, reads.deadline_s - asked_at_s)
            interval_s = min(doubled_s, left_s / 2)
            poll_s = min(interval_s, left_s / 4, POLL_S_MAX)
            await self.ask(request, plan.local, plan.local_bytes_max, max_wait_ms=int(poll_s * 1000))
            if self.whole is not None or not reads.pending:
                return
            if self.has_news or trio.current_time() >= reads.deadline_s:
                break
            # Should the broker not have waited, we do.
            await reads.wait_any_until(asked_at_s + interval_s)
            if reads.any_records or not reads.pending:
                break
            doubled_s = max(2 * doubled_s, INTERVAL_S_MIN)
        if not self.bytes_got:
            await reads.wait_any_until(reads.deadline_s)
        since_s = min(trio.current_time(), reads.records_since_s)
        await reads.wait_until(min(reads.deadline_s, since_s + linger_s))

    async def until_news(self, request: FetchRequest, plan: FetchPlan, time_s: float) -> None:
        """There is nothing to answer with: return at that time, or when the plan's local partitions have something."""
        if plan.local:
            left_ms = int((time_s - trio.current_time()) * 1000)
            await self.ask(request, plan.local, plan.local_bytes_max, max_wait_ms=max(0, left_ms))
        if not self.has_news and self.whole is None:
            await trio.sleep_until(time_s)

    async def ask(
        self, request: FetchRequest, partitions: Sequence[FetchPartition], bytes_max: int, *, max_wait_ms: int = 0
    ) -> None:
        """One Fetch of these partitions as the client asked for them, but without a session."""
        correlation_id = self._wire.next_correlation_id()
        frame = encode_request_in_slices(
            request,
            partitions,
            correlation_id=correlation_id,
            max_wait_ms=max_wait_ms,
            min_bytes=1 if max_wait_ms else 0,
            # The answer is held whole: what a client asks beyond this it gets with its next request.
            max_bytes=self._granted(min(bytes_max, FETCH_BYTES_MAX)),
        )
        sent = await send_fetch(self._wire, request.api_version, correlation_id, frame)
        response = await sent.response()
        self.throttle_time_ms = max(self.throttle_time_ms, response.throttle_time_ms)
        if response.tags != NO_TAGS:
            self.sections.append(response.tags)
        if is_whole(response):
            self.whole = response
            return
        bytes_got = sum(answer.records_bytes for answer in response.partitions)
        self.bytes_got += bytes_got
        asked_by_key = {key_of(asked): asked for asked in partitions}
        await each_slice(response.partitions, lambda some: self._take(asked_by_key, some, is_barren=not bytes_got))

    def _take(
        self,
        asked_by_key: Mapping[PartitionKey, FetchPartition],
        answers: Sequence[PartitionAnswer],
        *,
        is_barren: bool,
    ) -> None:
        for answer in answers:
            key = key_of(answer)
            self._answers[key] = answer
            asked = asked_by_key.get(key)
            if asked is not None:
                self._ends.learn(key, asked, answer, is_barren=is_barren)
                if answer.records_bytes > asked.partition_max_bytes:
                    self.exceeding.add(key)


def _wish_of(asked: FetchPartition) -> _Wish:
    return asked.fetch_offset, asked.current_leader_epoch, asked.last_fetched_epoch


def _comes_back(answer: PartitionAnswer) -> bool:
    """Whether it is an error, a diverging epoch or a preferred replica: no records come of asking again."""
    return bool(answer.error_code) or answer.preferred_read_replica >= 0 or answer.tags != NO_TAGS


async def fetch_whole(wire: UpstreamWire, request: FetchRequest, session_epoch: int, bytes_max: int) -> FetchResponse:
    """All of a request, with the client's own waits, under a session epoch of our own."""
    correlation_id = wire.next_correlation_id()
    frame = encode_request_in_slices(
        request,
        request.partitions,
        correlation_id=correlation_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=bytes_max,
        session_epoch=session_epoch,
    )
    sent = await send_fetch(wire, request.api_version, correlation_id, frame)
    return await sent.response()


async def close_upstream_session(wire: UpstreamWire, request: FetchRequest, session_id: int) -> None:
    """Have upstream forget a session. Nobody waits for the answer: it is empty, and comes before any to what is asked
    afterwards."""
    if session_id != NO_SESSION_ID:
        own_id = wire.next_correlation_id()
        frame = encode_request_in_slices(
            request, (), correlation_id=own_id, max_wait_ms=0, min_bytes=0, max_bytes=0, session_id=session_id
        )
        await send_fetch(wire, request.api_version, own_id, frame)


class SentFetch:
    """A Fetch of our own that stands in the stream of the client's requests."""

    __slots__ = ("_answer", "_api_version")

    def __init__(self, answer: PendingAnswer, api_version: int) -> None:
        self._answer = answer
        self._api_version = api_version

    async def response(self) -> FetchResponse:
        """The broker's answer, whole; its records are views into the frame."""
        return await in_slices(decode_response_in_slices(await self._answer.frame(), self._api_version))


async def send_fetch(wire: UpstreamWire, version: int, correlation_id: int, frame: Slices[bytes]) -> SentFetch:
    """Send a Fetch of our own, made with the wire's next correlation id."""
    return SentFetch(await wire.ask(ApiKey.FETCH, version, correlation_id, await in_slices(frame)), version)
