"""The client's own Fetch for what is left to the broker: partitions above the frontier, and those given back; or the
whole of a session that has nothing in the tier at the moment (`fetch_whole`).

It is asked without waiting first, so that a hot partition is answered at once (the broker too ignores min_bytes
once a partition of the request is remote). While the tier is not ready and the broker has nothing, it is asked
again in waits of `tier.linger.ms`: new records end the wait, and a finished tier read is held up no longer. An error,
a diverging epoch or a preferred replica would come back as it is, at once: then only the tier is waited for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from protocol.api_01_fetch import NO_SESSION_ID, NO_TAGS, FetchPartition, FetchRequest, FetchResponse, PartitionAnswer
from protocol.api_01_fetch_request import encode_request, encode_request_in_slices
from protocol.api_01_fetch_response import decode_response_in_slices
from protocol.identifiers import ApiKey
from proxy.assembly import is_whole
from proxy.fetch_plan import FETCH_BYTES_MAX, FetchPlan, PartitionKey, key_of
from proxy.slices import each_slice, in_slices
from proxy.tier_reads import TierReads
from proxy.upstream_wire import UpstreamWire

WAIT_S_MIN = 0.005
"""Of one question to the broker, lest a `tier.linger.ms` of 0 makes a busy loop."""


class OwnFetch:
    """The broker's side of one exchange. `whole` is set when the broker answered the request as a whole; `sections` are
    the tagged sections of its responses.

    Args:
        granted: how much of what is wanted may be asked for, in bytes.
    """

    def __init__(self, wire: UpstreamWire, granted: Callable[[int], int] = lambda wanted_bytes: wanted_bytes) -> None:
        self.whole: FetchResponse | None = None
        self.throttle_time_ms = 0
        self.bytes_got = 0
        self.sections: list[bytes] = []
        self._wire = wire
        self._granted = granted
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

    def withhold_excess(self, partitions: Sequence[FetchPartition]) -> None:
        """Empty the answers that are larger than was asked for: a Fetch of our own granted its first partition a batch
        beyond its limit, and in the client's request another one has that right."""
        for asked in partitions:
            answer = self._answers.get(key_of(asked))
            if answer is not None and answer.records_bytes > asked.partition_max_bytes:
                self.bytes_got -= answer.records_bytes
                self._answers[key_of(asked)] = replace(answer, records=(), aborted_transactions=None)

    @property
    def has_news(self) -> bool:
        """Whether the broker gave something that the client is not to wait longer for."""
        return any(
            answer.records or answer.error_code or answer.preferred_read_replica >= 0 or answer.tags != NO_TAGS
            for answer in self._answers.values()
        )

    async def until_ready(self, request: FetchRequest, plan: FetchPlan, reads: TierReads, linger_s: float) -> None:
        """Ask for the plan's local partitions until there is something to answer with: records, all tier reads,
        or the deadline."""
        wait_s = 0.0
        while plan.local and not self.has_news and self.whole is None:
            asked_at_s = trio.current_time()
            await self.ask(request, plan.local, plan.local_bytes_max, max_wait_ms=int(wait_s * 1000))
            if not reads.pending or trio.current_time() >= reads.deadline_s:
                return
            # Should the broker not have waited, we do.
            await reads.wait_any_until(min(reads.deadline_s, asked_at_s + wait_s))
            wait_s = max(linger_s, WAIT_S_MIN)
            if reads.any_records:
                break
        if self.whole is not None:
            return
        if not self.bytes_got:
            await reads.wait_any_until(reads.deadline_s)
        await reads.wait_until(min(reads.deadline_s, trio.current_time() + linger_s))

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
        frame = await in_slices(
            encode_request_in_slices(
                request,
                partitions,
                correlation_id=correlation_id,
                max_wait_ms=max_wait_ms,
                min_bytes=1 if max_wait_ms else 0,
                # The answer is held whole: what a client asks beyond this it gets with its next request.
                max_bytes=self._granted(min(bytes_max, FETCH_BYTES_MAX)),
            )
        )
        pending = await self._wire.ask(ApiKey.FETCH, request.api_version, correlation_id, frame)
        response = await in_slices(decode_response_in_slices(await pending.frame(), request.api_version))
        self.throttle_time_ms = max(self.throttle_time_ms, response.throttle_time_ms)
        if response.tags != NO_TAGS:
            self.sections.append(response.tags)
        if is_whole(response):
            self.whole = response
            return
        await each_slice(response.partitions, self._take)

    def _take(self, answers: Sequence[PartitionAnswer]) -> None:
        for answer in answers:
            self._answers[answer.topic, answer.topic_id, answer.partition] = answer
            self.bytes_got += answer.records_bytes


async def fetch_whole(wire: UpstreamWire, request: FetchRequest, session_epoch: int, bytes_max: int) -> FetchResponse:
    """All of a request, with the client's own waits, under a session epoch of our own."""
    correlation_id = wire.next_correlation_id()
    frame = await in_slices(
        encode_request_in_slices(
            request,
            request.partitions,
            correlation_id=correlation_id,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=bytes_max,
            session_epoch=session_epoch,
        )
    )
    pending = await wire.ask(ApiKey.FETCH, request.api_version, correlation_id, frame)
    return await in_slices(decode_response_in_slices(await pending.frame(), request.api_version))


async def close_upstream_session(wire: UpstreamWire, request: FetchRequest, session_id: int) -> None:
    """Have upstream forget a session. Nobody waits for the answer: it is empty, and comes before any to what is asked
    afterwards."""
    if session_id == NO_SESSION_ID:
        return
    correlation_id = wire.next_correlation_id()
    frame = encode_request(
        request,
        (),
        correlation_id=correlation_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=0,
        session_id=session_id,
    )
    await wire.ask(ApiKey.FETCH, request.api_version, correlation_id, frame)
