"""What a Fetch is answered with, before and after it is bytes.

Offsets are the broker's live ones, from the probe; record bytes are the tier's, or the broker's own. Every partition of
the request has one answer, in the order in which the broker would answer (docs/protocol.md#order-of-answers).
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from protocol.fetch.messages import (
    NO_SESSION_ID,
    NO_TAGS,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionAnswer,
    PartitionKey,
    key_of,
)
from protocol.fetch.node_endpoints import endpoints_of
from protocol.fetch.response import encode_response
from protocol.fetch.walker import ENDPOINTS_VERSION_MIN
from protocol.record_batches import Buffer
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.connection.request_handlers import UpstreamWire
from proxy.connection.slices import ITEMS_AT_ONCE, off_loop
from proxy.fetch.authorities import Authority
from proxy.fetch.plan import TierPart
from storage.reading.reader import TierRecords

TOP_LEVEL_ERROR_VERSION_MIN = 7
"""Before, an error of the whole request stands in every partition."""

PLACES_BY_ERROR: Final[Mapping[int, int]] = {
    ErrorCode.UNKNOWN_TOPIC_ID: 1,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 2,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2,
}
"""The broker answers what it does not read last: first ids without a name, then what it refuses or has not. What is
not here is read, place 0."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Answers to the partitions of a request, in the broker's order; none in a throttled answer, or one with an error
    of the whole request.

    `sections` are the tagged sections of the responses that it is made of: they name nodes, at upstream's addresses.
    """

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int = 0
    error_code: int = ErrorCode.NONE
    sections: Sequence[bytes] = ()


@dataclass(slots=True)
class BrokersWord:
    """What a broker's answers to Fetches of our own say beside their partitions.

    `whole` is set when it answered the request as a whole: throttled, or an error of the request. `sections` are the
    tagged sections of its responses.
    """

    whole: FetchResponse | None = None
    throttle_time_ms: int = 0
    sections: list[bytes] = field(default_factory=list)

    def take(self, response: FetchResponse) -> bool:
        """Note one; whether it answers the request as a whole."""
        self.throttle_time_ms = max(self.throttle_time_ms, response.throttle_time_ms)
        if response.tags != NO_TAGS:
            self.sections.append(response.tags)
        if is_whole(response):
            self.whole = self.whole or response
        return self.whole is not None


async def answer_frame(
    request: FetchRequest, answer: FetchAnswer, wire: UpstreamWire, session_id: int = NO_SESSION_ID
) -> list[Buffer]:
    """The whole response frame, in buffers. Listeners of the nodes that it names are bound when this returns."""
    tags = NO_TAGS
    if answer.sections and request.api_version >= ENDPOINTS_VERSION_MIN:
        endpoints = endpoints_of(answer.sections)
        if endpoints:
            tags = endpoints.section(await wire.advertise(endpoints.nodes))
    is_large = len(request.partitions) > ITEMS_AT_ONCE or len(answer.partitions) > ITEMS_AT_ONCE
    return await off_loop(is_large, partial(encode_answer, request, answer, session_id, tags))


def encode_answer(
    request: FetchRequest, answer: FetchAnswer, session_id: int = NO_SESSION_ID, tags: bytes = NO_TAGS
) -> list[Buffer]:
    """The same with a tagged section that is ready.

    What the version cannot say of the whole it says of each partition.
    """
    partitions, error_code = answer.partitions, answer.error_code
    if error_code and request.api_version < TOP_LEVEL_ERROR_VERSION_MIN:
        partitions = [refusal(asked, error_code) for asked in request.partitions]
        error_code = ErrorCode.NONE
    return encode_response(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        answers=partitions,
        tags=tags,
    )


def tier_answer(
    request: FetchRequest, part: TierPart, authority: Authority, result: TierRecords | None
) -> PartitionAnswer:
    """The answer of one vouched-for part; a result of None is a read that was not there in time."""
    asked = part.asked
    return PartitionAnswer(
        asked.topic,
        asked.topic_id,
        asked.partition,
        ErrorCode.NONE,
        authority.high_watermark,
        authority.last_stable_offset,
        authority.log_start_offset,
        aborted_transactions=_aborted(request, authority, result),
        records=() if result is None else result.buffers,
    )


def lacks_aborts(authority: Authority, result: TierRecords | Exception | None) -> bool:
    """Return whether aborted transactions of a READ_COMMITTED answer may be known to neither the tier nor the probe."""
    if not isinstance(result, TierRecords) or result.aborts is None or result.aborts.is_complete:
        return False
    return authority.aborted_tail is None or result.aborts.searched_below < authority.local_log_start_offset


def _aborted(request: FetchRequest, authority: Authority, result: TierRecords | None) -> list[tuple[int, int]] | None:
    """As at the broker: null where nothing was looked for, a list where READ_COMMITTED was answered with records."""
    if request.isolation_level != IsolationLevel.READ_COMMITTED or result is None or result.first_batch_too_large:
        return None
    aborts = result.aborts
    assert aborts is not None, "a READ_COMMITTED read without its search for aborts"
    aborted = [*aborts.transactions]
    if not aborts.is_complete:
        aborted += [entry for entry in authority.aborted_tail or () if entry[1] < aborts.upper_bound_offset]
    return list(dict.fromkeys(aborted))


def withhold_excess(
    request: FetchRequest, answers: MutableMapping[PartitionKey, PartitionAnswer], exceeding: Collection[PartitionKey]
) -> set[PartitionKey]:
    """Empty those answers beyond their limit that stand behind one with records (rule 4), and return which.

    A Fetch of our own grants the first partition that has records a batch beyond its limit; in the client's request
    that right may be another's, and there is one.
    """
    withheld: set[PartitionKey] = set()
    are_records_given = False
    for asked in request.partitions if exceeding else ():
        key = key_of(asked)
        answer = answers.get(key)
        if answer is None or not answer.records_bytes:
            continue
        if are_records_given and key in exceeding:
            answers[key] = replace(answer, records=(), aborted_transactions=None)
            withheld.add(key)
        are_records_given = True
    return withheld


def starved_behind(
    withheld: Collection[PartitionKey], asked: Sequence[FetchPartition], answers: Mapping[PartitionKey, PartitionAnswer]
) -> list[FetchPartition]:
    """Return what was asked for and is empty behind a withheld partition, which may have taken what the broker would
    have given it."""
    keys = [key_of(each) for each in asked]
    first = next((at for at, key in enumerate(keys) if key in withheld), len(keys))
    behind = ((each, answers.get(key)) for each, key in zip(asked[first:], keys[first:], strict=True))
    empty = [each for each, answer in behind if answer and not (answer.records_bytes or answer.error_code)]
    return [each for each in empty if key_of(each) not in withheld]


def assemble(request: FetchRequest, answers: Mapping[PartitionKey, PartitionAnswer], said: BrokersWord) -> FetchAnswer:
    """Return one answer per partition of the request, in the broker's order."""
    # What upstream left out, although it was asked for it: nothing is known of it.
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assembled = [answers.get(key_of(asked)) or refusal(asked, unknown) for asked in request.partitions]
    if [answer for answer in assembled if answer.error_code]:
        assembled.sort(key=lambda answer: PLACES_BY_ERROR.get(answer.error_code, 0))
    return FetchAnswer(assembled, said.throttle_time_ms, sections=said.sections)


def is_whole(answer: FetchResponse | FetchAnswer) -> bool:
    """Return whether it answers the request as a whole: throttled, without partitions, or an error."""
    return bool(answer.error_code) or (not answer.partitions and answer.throttle_time_ms > 0)


def pass_whole(response: FetchResponse) -> FetchAnswer:
    """Return what the broker answered to our part of the request, as the answer to all of it."""
    return FetchAnswer((), response.throttle_time_ms, response.error_code)


def refusal(asked: FetchPartition, error_code: int) -> PartitionAnswer:
    """Return an answer that is an error."""
    return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, error_code)
