"""Merging probe answers, tier records and the broker's own answers into one Fetch response. Pure (design §3.9).

Offsets are the broker's live ones, from the probe; record bytes are the tier's. Every partition of the request
has one answer, in request order. Node endpoints of the parts are left out of a merged response: the partitions'
current-leader tags stay, and clients that miss an address ask for metadata.
"""

from collections.abc import Mapping, Sequence

from protocol.api_01_fetch import NO_SESSION_ID, FetchPartition, FetchRequest, FetchResponse, PartitionAnswer
from protocol.api_01_fetch_response import encode_response
from protocol.errors import ErrorCode
from protocol.identifiers import IsolationLevel
from protocol.record_batches import Buffer
from proxy.authority import Authority
from proxy.errors import error_code_of
from proxy.fetch_plan import PartitionKey, TierPart, key_of
from storage.reader import TierRecords

TOP_LEVEL_ERROR_VERSION_MIN = 7
"""Before, an error of the whole request stands in every partition."""


def tier_answer(
    request: FetchRequest, part: TierPart, authority: Authority, result: TierRecords | Exception | None
) -> PartitionAnswer:
    """The answer of one vouched-for part; a result of None is a read that was not there in time."""
    asked = part.asked
    if isinstance(result, Exception):
        return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, error_code_of(result))
    # As the broker: null where nothing was looked for, a list where READ_COMMITTED was answered with records.
    nothing = result is None or result.first_batch_too_large
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return PartitionAnswer(
        asked.topic,
        asked.topic_id,
        asked.partition,
        ErrorCode.NONE,
        authority.high_watermark,
        authority.last_stable_offset,
        authority.log_start_offset,
        aborted_transactions=[] if committed and not nothing else None,
        records=() if result is None else result.buffers,
    )


def by_key(answers: Sequence[PartitionAnswer]) -> dict[PartitionKey, PartitionAnswer]:
    """Answers of the broker, by what the client asked for."""
    return {(answer.topic, answer.topic_id, answer.partition): answer for answer in answers}


def assemble(
    request: FetchRequest, answers: Mapping[PartitionKey, PartitionAnswer], throttle_time_ms: int
) -> list[Buffer]:
    """The whole response frame, in buffers."""
    return encode_response(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=throttle_time_ms,
        error_code=ErrorCode.NONE,
        session_id=NO_SESSION_ID,
        answers=[answers.get(key_of(asked)) or _unanswered(asked) for asked in request.partitions],
    )


def refuse(request: FetchRequest, error_code: int, throttle_time_ms: int = 0) -> list[Buffer]:
    """A response without partitions: an error of the whole request, or a throttled one (code 0)."""
    return encode_response(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=NO_SESSION_ID,
        answers=(),
    )


def is_whole(response: FetchResponse) -> bool:
    """Whether the broker answered the request as a whole: throttled, without partitions, or an error."""
    return bool(response.error_code) or (not response.partitions and response.throttle_time_ms > 0)


def pass_whole(request: FetchRequest, response: FetchResponse) -> list[Buffer]:
    """What the broker answered to our part of the request, as the answer to all of it."""
    if response.error_code and request.api_version < TOP_LEVEL_ERROR_VERSION_MIN:
        failed = [
            PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, response.error_code)
            for asked in request.partitions
        ]
        return assemble(request, by_key(failed), response.throttle_time_ms)
    return refuse(request, response.error_code, response.throttle_time_ms)


def _unanswered(asked: FetchPartition) -> PartitionAnswer:
    """Upstream left out a partition that it was asked for: nothing is known of it."""
    return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
