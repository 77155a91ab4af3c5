"""The client's own Fetch for what is left to the broker: partitions above the frontier, and those given back; or the
whole of a session that has nothing in the tier at the moment (`fetch_whole`).

It is sent right behind the probe, and asks without waiting, so that a hot partition is answered at once (the broker
too ignores min_bytes once a partition of the request is remote). While tier reads are under way and there is nothing
to answer with, it is asked again each ASK_AGAIN_S, without waiting: a long poll cannot be taken back, and would hold
up a tier read that ends meanwhile. An error, a diverging epoch or a preferred replica would come back as it is: then
only the tier is waited for. Where the tier has nothing to give, one long poll is left (`until_news`).
"""

from collections.abc import Callable, Mapping, Sequence

import trio

from protocol.fetch.messages import NO_TAGS, FetchPartition, FetchRequest, PartitionAnswer, PartitionKey, key_of
from proxy.connection.request_handlers import UpstreamWire
from proxy.connection.slices import each_slice
from proxy.fetch.answer import BrokersWord
from proxy.fetch.plan import FetchPlan, bytes_max_of, local_bytes_max
from proxy.fetch.reads import TierReads
from proxy.fetch.sent_fetch import SentFetch, send_fetch

ASK_AGAIN_S = 0.25
"""A record that comes while the tier is slow waits so long at most; a client costs its broker four questions a second
meanwhile."""


_Asked = tuple[SentFetch, Mapping[PartitionKey, int]]
"""A Fetch, and beyond what each partition's answer exceeds its limit."""


class OwnFetch:
    """The broker's side of one exchange.

    Args:
        said: hears of each answer.
        granted: how much of what is wanted may be asked for, in bytes.
        edit: makes of answers what the client gets.
        put_off: has the client come again for an answer whose batch could not be held.
    """

    def __init__(
        self,
        wire: UpstreamWire,
        said: BrokersWord,
        granted: Callable[[int], int] = lambda wanted_bytes: wanted_bytes,
        edit: Callable[[Sequence[PartitionAnswer]], None] = lambda _answers: None,
        put_off: Callable[[PartitionAnswer], None] = lambda _answer: None,
    ) -> None:
        self.bytes_got = 0
        self.exceeding: set[PartitionKey] = set()
        """Partitions whose answer is larger than was asked for: the broker granted a batch beyond the limit."""
        self._wire = wire
        self._said = said
        self._granted = granted
        self._edit = edit
        self._put_off = put_off
        self._begun: _Asked | None = None
        self.by_key: dict[PartitionKey, PartitionAnswer] = {}
        """The last answer of every partition that was asked for."""

    def bytes_of(self, asked: FetchPartition) -> int:
        """Record bytes that the broker gave for a partition."""
        answer = self.by_key.get(key_of(asked))
        return 0 if answer is None else answer.records_bytes

    @property
    def has_news(self) -> bool:
        """Return whether the broker gave something that the client is not to wait longer for."""
        return any(answer.records or _comes_back(answer) for answer in self.by_key.values())

    async def begin(self, request: FetchRequest, plan: FetchPlan) -> None:
        """Ask for the plan's local partitions; `first_answer` takes the answer."""
        if plan.local:
            exceeds = bytes_max_of(request)  # what is more than their part goes from the tier's
            self._begun = await self._send(request, plan.local, local_bytes_max(request, plan), exceeds=exceeds)

    async def first_answer(self) -> None:
        """Return when what `begin` has asked is answered."""
        if self._begun is not None:
            await self._take(self._begun)

    async def until_ready(
        self, request: FetchRequest, plan: FetchPlan, reads: TierReads, linger_s: float, left_bytes: int
    ) -> None:
        """Wait for all tier reads, the deadline, or a moment longer than until there is something to answer with.
        Meanwhile ask for the plan's local partitions again, as much as the tier's leave."""
        while plan.local and not self.has_news:
            ask_at_s = trio.current_time() + ASK_AGAIN_S
            await reads.wait_any_until(min(ask_at_s, reads.deadline_s))
            if reads.any_records or not reads.pending or ask_at_s >= reads.deadline_s:
                break
            await self.ask(request, plan.local, left_bytes)
            if self._said.whole is not None:
                return
        if not self.bytes_got:
            await reads.wait_any_until(reads.deadline_s)
        since_s = min(trio.current_time(), reads.records_since_s)
        await reads.wait_until(min(reads.deadline_s, since_s + linger_s))

    async def until_news(self, request: FetchRequest, plan: FetchPlan, time_s: float) -> None:
        """There is nothing to answer with: return at that time, or when the plan's local partitions have something."""
        if plan.local:
            left_ms = int((time_s - trio.current_time()) * 1000)
            await self.ask(request, plan.local, bytes_max_of(request), max_wait_ms=max(0, left_ms))
        if not self.has_news and self._said.whole is None:
            await trio.sleep_until(time_s)

    async def ask(
        self, request: FetchRequest, partitions: Sequence[FetchPartition], bytes_max: int, *, max_wait_ms: int = 0
    ) -> None:
        """One Fetch of these partitions as the client asked for them, but without a session."""
        await self._take(await self._send(request, partitions, bytes_max, max_wait_ms=max_wait_ms))

    async def _send(
        self,
        request: FetchRequest,
        partitions: Sequence[FetchPartition],
        bytes_max: int,
        *,
        max_wait_ms: int = 0,
        exceeds: int | None = None,
    ) -> _Asked:
        sent = await send_fetch(
            self._wire,
            request,
            partitions,
            max_wait_ms=max_wait_ms,
            min_bytes=1 if max_wait_ms else 0,
            # The answer is held whole: what a client asks beyond this it gets with its next request.
            max_bytes=self._granted(bytes_max),
        )
        exceeds = bytes_max if exceeds is None else exceeds
        return sent, {key_of(asked): min(asked.partition_max_bytes, exceeds) for asked in partitions}

    async def _take(self, asked: _Asked) -> None:
        sent, limits = asked
        response = await sent.response()
        if self._said.take(response):
            return
        self.bytes_got += sum(answer.records_bytes for answer in response.partitions)
        await each_slice(response.partitions, lambda some: self._keep(limits, some))

    def _keep(self, limits: Mapping[PartitionKey, int], answers: Sequence[PartitionAnswer]) -> None:
        for answer in answers:
            key = key_of(answer)
            self.by_key[key] = answer
            if answer.dropped_bytes:
                self._put_off(answer)
            if answer.records_bytes > limits.get(key, answer.records_bytes):
                self.exceeding.add(key)
        self._edit(answers)


def _comes_back(answer: PartitionAnswer) -> bool:
    """Return whether it is an error, a diverging epoch or a preferred replica: no records come of asking again."""
    return bool(answer.error_code) or answer.preferred_read_replica >= 0 or answer.tags != NO_TAGS
