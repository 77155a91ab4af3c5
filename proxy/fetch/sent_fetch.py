"""A Fetch of our own that stands in the stream of the client's requests, on its upstream connection."""

from collections.abc import Sequence
from functools import partial

from protocol.fetch.messages import NO_SESSION_ID, SESSIONLESS_EPOCH, FetchPartition, FetchRequest, FetchResponse
from protocol.fetch.requests import encode_request
from protocol.fetch.response import decode_response
from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import PendingAnswer, UpstreamWire
from proxy.connection.slices import ITEMS_AT_ONCE, off_loop


async def fetch_whole(wire: UpstreamWire, request: FetchRequest, session_epoch: int, bytes_max: int) -> FetchResponse:
    """All of a request, with the client's own waits, under a session epoch of our own."""
    sent = await send_fetch(
        wire,
        request,
        request.partitions,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=bytes_max,
        session_epoch=session_epoch,
    )
    return await sent.response()


async def close_upstream_session(wire: UpstreamWire, request: FetchRequest, session_id: int) -> None:
    """Make upstream forget a session. Nobody waits for the answer: it is empty, and comes before any to what is asked
    afterwards."""
    if session_id != NO_SESSION_ID:
        await send_fetch(wire, request, (), session_id=session_id)


class SentFetch:
    """A Fetch of our own that stands in the stream of the client's requests."""

    __slots__ = ("_answer", "_partitions", "api_version")

    def __init__(self, answer: PendingAnswer, api_version: int, partitions: int) -> None:
        self._answer = answer
        self._partitions = partitions
        self.api_version = api_version

    async def response(self) -> FetchResponse:
        """The broker's answer, whole; its records are views into the frame. Those for which there was no room have been
        dropped as they arrived."""
        decode = partial(decode_response, await self._answer.frame(), self.api_version, self._partitions)
        response = await off_loop(self._partitions > ITEMS_AT_ONCE, decode)
        for answer, dropped_bytes in zip(response.partitions, self._answer.dropped, strict=False):
            answer.dropped_bytes = dropped_bytes
        return response


async def send_fetch(
    wire: UpstreamWire,
    request: FetchRequest,
    partitions: Sequence[FetchPartition],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 0,
    session_id: int = NO_SESSION_ID,
    session_epoch: int = SESSIONLESS_EPOCH,
    api_version: int | None = None,
    records_bytes_max: int | None = None,
) -> SentFetch:
    """Send a Fetch of our own on behalf of `request`.

    Args:
        api_version: the request's unless given.
        records_bytes_max: what is more than about so much is dropped as it arrives; None: what may not be held is.
    """
    version = request.api_version if api_version is None else api_version
    correlation_id = wire.next_correlation_id()
    encode = partial(
        encode_request,
        request,
        partitions,
        correlation_id=correlation_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        api_version=version,
    )
    frame = await off_loop(len(partitions) > ITEMS_AT_ONCE, encode)
    held_bytes_max = None if records_bytes_max is None else records_bytes_max + ANSWER_OF_REQUEST_MAX * len(frame)
    pending = await wire.ask(ApiKey.FETCH, version, correlation_id, frame, held_bytes_max)
    return SentFetch(pending, version, len(partitions))


ANSWER_OF_REQUEST_MAX = 2
"""A partition takes 29 to 33 bytes of a request, and 34 to 40 without records of its answer."""
