"""KIP-227 as a broker does it, written a second time: lists and plain rules, to compare Tidegate's sessions with.

broker = SessionBroker()                      # FakeBrokerLog that keeps sessions
client = SessionClient(world.client())        # a client behind a FetchService, relayed frames included
answer = await client.fetch(fetch_of([ask(orders, 17)], session_epoch=0))
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.fetch.messages import FetchPartition, FetchRequest, FetchResponse, PartitionAnswer, PartitionKey, key_of
from protocol.fetch.requests import decode_request
from protocol.fetch.response import decode_response, encode_response
from protocol.fetch.walker import edit_partitions
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import decode_request_header
from proxy.connection.request_handlers import Relay
from tests.support.fake_wire import FakeBrokerLog
from tests.support.tier_world import FakeFetcher, client_frame

EPOCH_MAX = 2**31 - 1


@dataclass
class ModelEntry:
    """One partition of a session, and what was last told of it: high watermark and log start."""

    asked: FetchPartition
    told: tuple[int, int] = (-1, -1)


@dataclass
class ModelSession:
    """A session as a list of partitions in their order."""

    by_id: bool
    entries: list[ModelEntry]
    epoch: int = 1

    def find(self, key: PartitionKey) -> ModelEntry | None:
        return next((entry for entry in self.entries if key_of(entry.asked) == key), None)

    def merge(self, request: FetchRequest) -> None:
        for asked in request.partitions:
            if (entry := self.find(key_of(asked))) is None:
                self.entries.append(ModelEntry(asked))
            else:
                entry.asked = asked
        self.entries = [entry for entry in self.entries if key_of(entry.asked) not in set(request.forgotten)]

    def cut(self, answers: Sequence[PartitionAnswer]) -> list[PartitionAnswer]:
        told = []
        for answer in answers:
            entry = self.find(key_of(answer))
            assert entry is not None
            size, offsets = answer.records_bytes, (answer.high_watermark, answer.log_start_offset)
            diverges = answer.tags[:2] == b"\x01\x00"
            if size or answer.error_code or diverges or answer.preferred_read_replica >= 0 or entry.told != offsets:
                told.append(answer)
            entry.told = (-1, answer.log_start_offset) if answer.error_code else offsets
            if size:
                self.entries.remove(entry)
                self.entries.append(entry)
        return told


class SessionBroker(FakeBrokerLog):
    """`requests` are the frames as they came, `fetches` (of the base) what was read for them.

    `gives_sessions` off is a full session cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[int, ModelSession] = {}
        self.requests: list[FetchRequest] = []
        self.gives_sessions = True
        self._ids = itertools.count(1001)

    def number_from(self, session_id: int) -> None:
        """The id of the next session."""
        self._ids = itertools.count(session_id)

    async def answer(self, frame: bytes) -> bytes:
        request = decode_request(memoryview(frame), decode_request_header(memoryview(frame)))
        self.requests.append(request)
        if request.api_version < 7:
            return await super().answer(frame)
        if request.session_epoch in (0, -1):
            self.sessions.pop(request.session_id, None)
            response = await self._read_all(request, _last_wishes(request.partitions))
            session_id = 0
            if request.session_epoch == 0 and self.gives_sessions and not response.throttle_time_ms:
                session_id = next(self._ids)
                self.sessions[session_id] = session = ModelSession(request.api_version >= 13, [])
                session.merge(replace(request, forgotten=()))
                for answer in response.partitions:
                    entry = session.find(key_of(answer))
                    assert entry is not None
                    entry.told = answer.high_watermark, answer.log_start_offset
            return _encoded(request, response, session_id)
        return await self._go_on(request)

    async def _go_on(self, request: FetchRequest) -> bytes:
        session = self.sessions.get(request.session_id)
        by_id = request.api_version >= 13
        code = ErrorCode.NONE
        if session is None:
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        elif session.epoch != request.session_epoch:
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        elif session.by_id != by_id:
            code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session is None or code:
            return _encoded(request, FetchResponse(0, 0, code, 0, []), 0)
        session.merge(request)
        if not session.entries:
            del self.sessions[request.session_id]
            return _encoded(request, await self._read_all(request, _last_wishes(request.partitions)), 0)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        response = await self._read_all(request, [entry.asked for entry in session.entries])
        if not response.throttle_time_ms:
            response.partitions = session.cut(response.partitions)
        return _encoded(request, response, request.session_id)

    async def _read_all(self, request: FetchRequest, partitions: list[FetchPartition]) -> FetchResponse:
        plain = replace(request, partitions=partitions, session_id=0, session_epoch=-1, forgotten=())
        return decode_response(memoryview(await super().answer(client_frame(plain))), request.api_version)


class SessionClient:
    """A client's connection through a FetchService. `relayed` says for each request so far whether it was."""

    def __init__(self, fetcher: FakeFetcher) -> None:
        self.relayed: list[bool] = []
        self.fetcher = fetcher

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """The answer, however it was come by."""
        service, wire = self.fetcher.service, self.fetcher.wire
        frame = bytearray(client_frame(request))
        outcome = await service.handle(memoryview(frame), wire)
        self.relayed.append(isinstance(outcome, Relay))
        if isinstance(outcome, Relay):
            pending = await wire.ask(ApiKey.FETCH, request.api_version, request.correlation_id, bytes(frame))
            answer = bytearray(await pending.frame())
            if outcome.on_response_head is not None:
                outcome.on_response_head(memoryview(answer)[: outcome.head_bytes])
            if outcome.editor is not None:
                edit_partitions(memoryview(answer), request.api_version, outcome.editor)
        else:
            answer = bytearray(b"".join(outcome))
            service.on_answered()
        return decode_response(memoryview(answer), request.api_version)


def _last_wishes(partitions: Sequence[FetchPartition]) -> list[FetchPartition]:
    """Return each partition once: for one named twice, the first place and the last wish."""
    wishes: list[FetchPartition] = []
    for asked in partitions:
        places = [place for place, wish in enumerate(wishes) if key_of(wish) == key_of(asked)]
        if places:
            wishes[places[0]] = asked
        else:
            wishes.append(asked)
    return wishes


def _encoded(request: FetchRequest, response: FetchResponse, session_id: int) -> bytes:
    buffers = encode_response(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=response.throttle_time_ms,
        error_code=response.error_code,
        session_id=session_id,
        answers=response.partitions,
    )
    return b"".join(buffers)
